"""Every class of error, as the SDK raises it: its class, code, field, limit, and what it says of trying again."""

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from fairlane.quotas.limits import LIMIT_NAMES
from tests.support.system.harness import Server
from tests.support.system.sdk import ASKED, COMPLETED, chat, chat_chunks, complete, refused
from tests.system.sdk.conftest import NewKey, NewTenant

pytestmark = pytest.mark.system

TEN: dict[str, Any] = {"prompt": [504], "max_tokens": 9, "extra_body": {"ignore_eos": True}}
"""One token in, nine out."""


def sure(error: openai.APIStatusError) -> str | None:
    return error.response.headers.get("x-should-retry")


@pytest.mark.parametrize("wrong", ["fl-nobody-nothing", "sk-of-another-house", "fl--"])
def test_a_key_that_does_not_work(server: Server, wrong: str) -> None:
    with server.sdk(wrong, max_retries=0) as stranger:
        for asked in (stranger.models.list, lambda: chat(stranger), lambda: complete(stranger)):
            error = refused(asked)

            assert isinstance(error, openai.AuthenticationError)
            assert (error.code, error.type, sure(error)) == ("invalid_api_key", "invalid_request_error", "false")


def test_no_key(server: Server) -> None:
    with server.sdk("none", max_retries=0) as nobody:
        error = refused(chat, nobody, extra_headers={"Authorization": openai.Omit()})

    assert isinstance(error, openai.AuthenticationError)


def test_a_revoked_key(server: Server, new_tenant: NewTenant) -> None:
    tenant = new_tenant()
    with server.sdk(tenant.key, max_retries=0) as client, server.admin() as admin:
        client.models.list()
        (key,) = admin.get(f"/tenants/{tenant.id}/keys").json()["data"]
        admin.delete(f"/tenants/{tenant.id}/keys/{key['id']}").raise_for_status()

        error = until_refused(client)

    assert (error.status_code, error.code) == (401, "invalid_api_key")


def until_refused(client: openai.OpenAI) -> openai.APIStatusError:
    """What becomes of a key within a second."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            client.models.list()
        except openai.APIStatusError as error:
            return error
    raise AssertionError("still served")


def test_a_suspended_tenant(server: Server, new_tenant: NewTenant) -> None:
    tenant = new_tenant()
    with server.sdk(tenant.key, max_retries=0) as client, server.admin() as admin:
        admin.post(f"/tenants/{tenant.id}/suspend").raise_for_status()

        error = until_refused(client)

    assert isinstance(error, openai.PermissionDeniedError)
    assert (error.code, sure(error)) == ("tenant_suspended", "false")


FORBIDDEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("lane_not_allowed", {"lanes": ["latency"]}, {"extra_headers": {"x-fairlane-lane": "throughput"}}),
    ("model_not_allowed", {"models": ["another"]}, {}),
]


@pytest.mark.parametrize(("code", "tenant", "asked"), FORBIDDEN, ids=str)
def test_what_a_tenant_may_not(
    server: Server, new_key: NewKey, code: str, tenant: dict[str, Any], asked: dict[str, Any]
) -> None:
    with server.sdk(new_key(**tenant), max_retries=0) as client:
        error = refused(chat, client, **asked)

    assert isinstance(error, openai.PermissionDeniedError)
    assert (error.status_code, error.code, error.type, sure(error)) == (403, code, "permission_error", "false")


def test_an_endpoint_that_a_key_may_not_use(server: Server, new_tenant: NewTenant) -> None:
    scoped = {"name": "chat", "scopes": {"endpoints": ["/v1/chat/completions"]}}
    with server.admin() as admin:
        made = admin.post(f"/tenants/{new_tenant().id}/keys", json=scoped).raise_for_status().json()
    with server.sdk(made["key"], max_retries=0) as client:
        assert chat(client, max_tokens=1).choices
        assert refused(complete, client).code == "endpoint_not_allowed"


@pytest.mark.parametrize("ask", [chat, chat_chunks, complete])
def test_an_unknown_model(client: openai.OpenAI, ask: Callable[..., object]) -> None:
    error = refused(ask, client, model="gpt-4")

    assert isinstance(error, openai.NotFoundError)
    assert (error.code, error.param, sure(error)) == ("model_not_found", "model", "false")


def test_an_unknown_path(client: openai.OpenAI) -> None:
    error = refused(client.images.generate, prompt="a boat")

    assert isinstance(error, openai.NotFoundError)
    assert error.code == "not_found"


def test_a_method_that_a_path_does_not_take(client: openai.OpenAI) -> None:
    error = refused(client.get, "/chat/completions", cast_to=httpx.Response)

    assert (error.status_code, error.code) == (405, "method_not_allowed")
    assert "POST" in error.response.headers["allow"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null"])
def test_a_body_that_is_no_object(client: openai.OpenAI, body: bytes) -> None:
    error = refused(client.post, "/chat/completions", cast_to=httpx.Response, content=body)

    assert isinstance(error, openai.BadRequestError)
    assert (error.code, error.param) == ("invalid_request_error", None)


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_field_that_is_missing(client: openai.OpenAI, missing: str) -> None:
    body = {name: value for name, value in ASKED.items() if name != missing}
    error = refused(client.post, "/chat/completions", cast_to=httpx.Response, body=body)

    assert (error.status_code, error.param) == (400, missing)


@pytest.mark.parametrize(
    ("ask", "asked", "param"),
    [
        (chat, {"max_tokens": 8_192, "messages": [{"role": "user", "content": "word " * 9_000}]}, "messages"),
        (complete, {"max_tokens": 8_192, "prompt": "word " * 9_000}, "prompt"),
    ],
    ids=["messages", "prompt"],
)
def test_more_than_the_context_holds(
    client: openai.OpenAI, ask: Callable[..., object], asked: dict[str, Any], param: str
) -> None:
    error = refused(ask, client, **asked)

    assert isinstance(error, openai.BadRequestError)
    assert (error.code, error.param) == ("context_length_exceeded", param)


def test_a_body_that_is_too_large(client: openai.OpenAI) -> None:
    error = refused(chat, client, messages=[{"role": "user", "content": "word " * 2_000_000}])

    assert (error.status_code, error.code, sure(error)) == (413, "request_too_large", "false")


SPENT: dict[str, tuple[int, str, str | None]] = {
    "requests_per_minute": (1, "rate_limit_exceeded", None),
    "tokens_per_minute": (10, "rate_limit_exceeded", None),
    "input_tokens_per_minute": (1, "rate_limit_exceeded", None),
    "output_tokens_per_minute": (9, "rate_limit_exceeded", None),
    "tokens_per_day": (10, "insufficient_quota", "false"),
    "tokens_per_month": (10, "insufficient_quota", "false"),
}
"""By limit: a figure that lets TEN in once, and how the next is refused."""
NEVER: dict[str, int] = {"max_prompt_tokens": 0, "max_output_tokens": 8, "tokens_per_day": 9, "tokens_per_minute": 9}
"""By limit: a figure that TEN never fits."""
TAKEN = {"concurrent_requests": "concurrency_limit_exceeded", "queued_requests": "queue_full"}
OF_BATCHES = {"enqueued_batch_tokens"}
OF_MONEY = {"spend_per_day", "spend_per_month"}
"""Which refuse nobody without prices: tests/gateway/requests/test_money.py has some."""


def test_no_limit_is_left_out() -> None:
    assert {*SPENT, *NEVER, *TAKEN, *OF_BATCHES, *OF_MONEY} == {*LIMIT_NAMES}


@pytest.mark.parametrize("limit", SPENT)
def test_a_spent_limit(server: Server, new_key: NewKey, limit: str) -> None:
    figure, code, again = SPENT[limit]
    with server.sdk(new_key(limits={limit: figure}, reserve="full"), max_retries=0) as client:
        complete(client, **TEN)
        error = refused(complete, client, **TEN)

    assert isinstance(error, openai.RateLimitError)
    assert (error.code, sure(error)) == (code, again)
    assert isinstance(error.body, dict)
    assert (error.body["limit"]["name"], error.body["limit"]["limit"]) == (limit, figure)
    headers = error.response.headers
    assert int(headers["retry-after"]) >= 1
    assert 0 < int(headers["retry-after-ms"]) <= int(headers["retry-after"]) * 1000
    of = "requests" if limit.startswith("requests") else "tokens"
    assert headers[f"x-ratelimit-limit-{of}"] == str(figure)
    assert headers[f"x-ratelimit-remaining-{of}"] == "0"


@pytest.mark.parametrize("limit", NEVER)
def test_a_limit_that_a_request_can_never_fit(server: Server, new_key: NewKey, limit: str) -> None:
    with server.sdk(new_key(limits={limit: NEVER[limit]}, reserve="full"), max_retries=0) as client:
        error = refused(complete, client, **TEN)

    assert isinstance(error, openai.BadRequestError)
    assert (error.code, sure(error)) == ("request_exceeds_limit", "false")


@pytest.fixture
def still_worker(server: Server) -> Iterator[None]:
    """Nothing that is asked is answered meanwhile; for less than the worker's lease."""
    worker = server.child("worker")
    worker.send_signal(signal.SIGSTOP)
    yield
    worker.send_signal(signal.SIGCONT)


@pytest.mark.usefixtures("still_worker")
@pytest.mark.parametrize("limit", TAKEN)
def test_a_place_that_is_taken(server: Server, new_key: NewKey, limit: str) -> None:
    asked = {**COMPLETED, **TEN, "stream": True}
    with (
        server.sdk(new_key(limits={limit: 1}), max_retries=0) as client,
        client.completions.with_streaming_response.create(**asked),
    ):
        error = refused(complete, client, **TEN)

    assert isinstance(error, openai.RateLimitError)
    assert error.code == TAKEN[limit]
    assert int(error.response.headers["retry-after-ms"]) >= 1


@pytest.mark.usefixtures("still_worker")
def test_a_deadline_that_passes(client: openai.OpenAI) -> None:
    error = refused(complete, client, extra_headers={"x-fairlane-deadline-ms": "1500"})

    assert isinstance(error, openai.InternalServerError)
    assert (error.status_code, error.code, sure(error)) == (504, "deadline_exceeded", "false")


def test_a_deadline_that_cannot_be_kept(client: openai.OpenAI) -> None:
    error = refused(complete, client, max_tokens=4_000, extra_body={"deadline_ms": 5})

    assert isinstance(error, openai.RateLimitError)
    assert (error.code, error.type) == ("deadline_unattainable", "overloaded_error")


def test_nobody_to_serve(server: Server, client: openai.OpenAI) -> None:
    with server.admin() as admin:
        (worker,) = admin.get("/workers").json()["data"]
        admin.post(f"/workers/{worker['id']}/drain").raise_for_status()
        try:
            until_ready(server, ready=False)
            error = refused(complete, client)
        finally:
            admin.post(f"/workers/{worker['id']}/undrain").raise_for_status()
            until_ready(server, ready=True)

    assert isinstance(error, openai.InternalServerError)
    assert (error.status_code, error.code, sure(error)) == (503, "no_worker", None)
    assert int(error.response.headers["retry-after-ms"]) >= 1


def until_ready(server: Server, *, ready: bool) -> None:
    deadline_s = time.monotonic() + 20
    while httpx.get(f"{server.url}/readyz").is_success is not ready:
        assert time.monotonic() < deadline_s


@pytest.mark.thorough
def test_a_store_that_is_away(server: Server, client: openai.OpenAI) -> None:
    store = server.store()
    store.send_signal(signal.SIGSTOP)
    try:
        error = refused(complete, client)
    finally:
        store.send_signal(signal.SIGCONT)
        until_ready(server, ready=True)

    assert isinstance(error, openai.InternalServerError)
    assert (error.status_code, error.code) == (503, "quota_store_unavailable")
    assert int(error.response.headers["retry-after-ms"]) >= 1
