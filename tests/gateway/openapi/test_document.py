"""The OpenAPI document: whole, well-formed, and true."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import msgspec
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import BaseRoute, Mount, Route

from fairlane.gateway.app import create_app
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.admin.inputs import LimitsBody
from fairlane.gateway.control.openapi import document as openapi
from fairlane.gateway.control.openapi.examples import BODIES
from fairlane.gateway.dialects.anthropic.request_bodies import NEUTRAL_MESSAGES, NEUTRAL_PROMPT
from fairlane.gateway.dialects.openai.compaction import NEUTRAL_COMPACTION
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, HintValues, Neutral
from fairlane.gateway.dialects.openai.response_body import NEUTRAL_RESPONSE
from fairlane.gateway.dialects.pooling.embeddings import NEUTRAL_EMBEDDINGS
from fairlane.gateway.dialects.pooling.scores import NEUTRAL_SCORES
from fairlane.gateway.errors import TABLE
from fairlane.gateway.runtime.resources import Resources
from fairlane.quotas.limits import LIMIT_NAMES
from tests.support.gateway.admin_app import AdminBench
from tests.support.gateway.batch_files import a_batch
from tests.support.gateway.served import ASKED, CHAT, serving, settings

pytestmark = pytest.mark.anyio

DOCUMENT = openapi.document()
METHODS = {"get", "put", "post", "patch", "delete"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def routed(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of every route, as OpenAPI writes them."""
    for route in routes:
        if isinstance(route, Mount):
            yield from routed(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = re.sub(r":\w+}", "}", prefix + route.path)
            yield from ((method, path) for method in (route.methods or set()) - {"HEAD"})


def nodes(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def schema(name: str) -> Draft202012Validator:
    """A component, able to check documents."""
    whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(whole)


async def test_the_gateway_serves_the_document(bench: AdminBench) -> None:
    answer = await bench.http.get("/openapi.json")

    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == msgspec.to_builtins(DOCUMENT)


async def test_the_document_and_the_application_have_the_same_routes() -> None:
    app = create_app(Resources(GatewaySettings(redis_url="unix:///nowhere")))

    documented = {(method.upper(), path) for path, method, _ in operations()}

    files = ("/console/", "/docs/", "/portal/")
    assert documented == {found for found in routed(app.routes) if not found[1].startswith(files)}


async def test_the_document_says_its_version_and_knows_only_real_methods() -> None:
    assert re.fullmatch(r"3\.1\.\d+", DOCUMENT["openapi"])
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    assert {method for _, method, _ in operations()} <= METHODS


async def test_every_reference_leads_somewhere() -> None:
    for node in nodes(DOCUMENT):
        if "$ref" in node:
            prefix, _, name = node["$ref"].rpartition("/")
            assert prefix in ("#/components/schemas", "#/components/headers")
            assert name in DOCUMENT["components"][prefix.rpartition("/")[2]]


async def test_every_schema_is_valid_json_schema() -> None:
    for name, component in DOCUMENT["components"]["schemas"].items():
        Draft202012Validator.check_schema(component)
        assert component.get("description"), name
        assert "__" not in name, "two shapes have one name"


async def test_every_property_has_a_type_and_words() -> None:
    for name, component in DOCUMENT["components"]["schemas"].items():
        for field, told in component.get("properties", {}).items():
            assert told.get("description"), f"{name}.{field}"
            assert "default" not in told, f"{name}.{field}: TypeScript's generators take it for required"
    for node in nodes(DOCUMENT["components"]["schemas"]):
        assert "type" in node or not isinstance(node.get("enum"), list), node
    for _, _, operation in operations():
        assert all(parameter["description"] for parameter in operation["parameters"])


async def test_every_body_has_an_example_and_every_example_is_valid() -> None:
    for path, method, operation in operations():
        shown = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if shown.get("schema") not in (None, {"$ref": "#/components/schemas/Nothing"}):
            assert "example" in shown, f"{method} {path}"
            whole = {"components": DOCUMENT["components"], **shown["schema"]}
            Draft202012Validator(whole).validate(shown["example"])
    assert {*BODIES} <= {operation["operationId"] for _, _, operation in operations()}


async def test_what_http_can_have_wrong_is_said_of_every_call() -> None:
    for path, _, operation in operations():
        assert {"400", "405", "431"} <= operation["responses"].keys(), path


async def test_every_operation_is_whole() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    security = DOCUMENT["components"]["securitySchemes"]

    assert len(names) == len(set(names))
    for path, _, operation in operations():
        in_path = [field["name"] for field in operation["parameters"] if field["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path)
        assert operation["summary"]
        assert any(status.startswith(("1", "2")) for status in operation["responses"])
        assert all(response["description"] for response in operation["responses"].values())
        assert all(scheme in security for needed in operation["security"] for scheme in needed)


async def test_what_needs_a_key_says_so() -> None:
    for path, _, operation in operations():
        is_admin = path.startswith(("/admin/", "/metrics"))
        is_tenants = path.startswith(("/v1/", "/v2/", "/tokenize", "/detokenize", "/pooling", "/score", "/rerank"))
        who = "admin" if is_admin else "tenant" if is_tenants else None
        ways: dict[str | None, list[Any]] = {
            "tenant": [{"tenant": []}, {"tenant_key": []}, {"tenant_azure_key": []}],
            "admin": [{"admin": []}],
            None: [],
        }
        assert operation["security"] == ways[who]
        assert ("401" in operation["responses"]) == bool(who)


async def test_refusals_are_those_of_the_one_table() -> None:
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            for code in response["description"].split(" | ") if not status.startswith(("1", "2")) else []:
                assert TABLE[code].status == int(status)


async def test_every_limit_is_in_the_document() -> None:
    assert tuple(LimitsBody.model_fields) == LIMIT_NAMES


@pytest.mark.parametrize(
    ("name", "operation", "known"),
    [
        ("ChatBody", "create_chat_completion", NEUTRAL_CHAT),
        ("CompletionBody", "create_completion", NEUTRAL_COMPLETION),
        ("MessagesBody", "create_message", NEUTRAL_MESSAGES),
        ("PromptBody", "count_message_tokens", NEUTRAL_PROMPT),
        ("ResponseBody", "create_response", NEUTRAL_RESPONSE),
        ("CompactBody", "compact_response", NEUTRAL_COMPACTION),
        ("EmbeddingsBody", "create_embeddings", NEUTRAL_EMBEDDINGS),
        ("ScoreBody", "score", NEUTRAL_SCORES),
        ("RerankBody", "rerank", NEUTRAL_SCORES),
    ],
)
async def test_a_body_may_name_unsupported_fields_at_neutral_values(name: str, operation: str, known: Neutral) -> None:
    neutral = {field: values[0] if values else None for field, values in known.items()}

    schema(name).validate({**BODIES[operation], **neutral})

    for field in neutral:
        if isinstance(known[field], HintValues):
            schema(name).validate({**BODIES[operation], field: {"no": "neutral value"}})
            continue
        with pytest.raises(jsonschema.ValidationError):
            schema(name).validate({**BODIES[operation], field: {"no": "neutral value"}})


async def test_a_chat_body_may_have_unknown_fields_but_no_wrong_ones() -> None:
    body = BODIES["create_chat_completion"]

    with pytest.raises(jsonschema.ValidationError):
        schema("ChatBody").validate({**body, "tools": [{"type": "function"}]})
    schema("ChatBody").validate({**body, "nonsense": 1})


@pytest.mark.parametrize("empty", [None, "", [], {}])
async def test_thinking_and_arguments_may_be_empty(empty: object) -> None:
    schema("Part").validate({"type": "text", "text": "a", "think": empty})
    schema("CallItem").validate({"type": "function_call", "call_id": "1", "arguments": empty})


async def test_a_message_needs_no_type() -> None:
    for kind in ({}, {"type": None}, {"type": "message"}):
        schema("MessageItem").validate({"role": "user", "content": "a", **kind})


async def test_the_admin_api_answers_as_documented(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_day": 100}})
    await bench.spend("acme")
    await BatchRecords(bench.redis, most_open=1).create("acme", a_batch(), 10, tenant_limit=None, key_limit=None)
    sizes = {"prompt_tokens": 1000, "max_output_tokens": 5, "lane": "latency"}

    answers = {
        "NewKeyView": await bench.done("POST", "/tenants/acme/keys", json={"name": "k"}),
        "Page_TenantView_": await bench.done("GET", "/tenants"),
        "Page_KeyView_": await bench.done("GET", "/tenants/acme/keys"),
        "QuotaView": await bench.done("GET", "/tenants/acme/quota"),
        "UsageView": await bench.done("GET", "/tenants/acme/usage?group_by=lane,day"),
        "ExplainView": await bench.done("POST", "/tenants/acme/explain", json=sizes),
        "Page_WorkerView_": await bench.done("GET", "/workers"),
        "Page_LaneView_": await bench.done("GET", "/lanes"),
        "Page_OpenBatchView_": await bench.done("GET", "/batches"),
        "Page_AuditView_": await bench.done("GET", "/audit"),
        "Deleted": await bench.done("DELETE", "/tenants/acme"),
        "Error": (await bench.call("GET", "/tenants/acme")).json(),
    }

    for name, answer in answers.items():
        schema(name).validate(answer)


async def test_answers_have_the_headers_that_the_document_names(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as served:
        await served.tenant(limits={"requests_per_minute": 1, "tokens_per_day": 1000})
        asked = {parameter["name"] for parameter in DOCUMENT["paths"][CHAT]["post"]["parameters"]}
        done = await served.post(CHAT, ASKED, x_fairlane_lane="latency", x_fairlane_ttft_ms="60000")
        spent, wrong = await served.post(CHAT, ASKED), await served.post(CHAT, b"{")

    assert asked >= {"x-fairlane-lane", "x-fairlane-deadline-ms", "x-fairlane-ttft-ms", "x-request-id"}
    may_be_absent = {200: {"idempotent-replayed", "x-fairlane-ignored"}, 429: {"x-should-retry"}}
    for answer in (done, spent, wrong):
        named = DOCUMENT["paths"][CHAT]["post"]["responses"][str(answer.status_code)]["headers"].keys()
        given = {name for name in answer.headers if name.startswith(("x-", "openai-", "retry-"))}
        assert given == named - {"x-fairlane-degraded"} - may_be_absent.get(answer.status_code, set())
        assert "x-fairlane-degraded" in named


async def test_the_responses_api_answers_as_documented(valkey_url: str) -> None:
    asked = {"model": "tiny", "input": "Who?", "text": {"format": {"type": "text"}}, "top_logprobs": 1}
    async with serving(settings(valkey_url)) as served:
        await served.tenant()
        schema("ResponseBody").validate(asked)
        made = (await served.post("/v1/responses", asked)).json()
        cut = (await served.post("/v1/responses", {**asked, "max_output_tokens": 2})).json()
        listed = (await served.get(f"/v1/responses/{made['id']}/input_items")).json()

    for response in (made, cut):
        schema("ResponseObject").validate(response)
    schema("InputItemList").validate(listed)
