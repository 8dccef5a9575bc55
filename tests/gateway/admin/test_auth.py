"""Who may call the admin API, and how its troubles are told."""

import httpx
import pytest
from redis.asyncio import Redis

from fairlane.gateway.control.admin import routes as admin
from fairlane.gateway.errors import TABLE
from tests.support.gateway.admin_app import ADMIN_KEY, HEADERS, AdminBench, HandFleet, application

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {ADMIN_KEY}"},
        {"authorization": ADMIN_KEY},
        {"authorization": f"Bearer {ADMIN_KEY}x"},
        {"authorization": f"Bearer {ADMIN_KEY.upper()}"},
        {"x-api-key": ADMIN_KEY},
    ],
)
async def test_nobody_else_is_let_in(bench: AdminBench, headers: dict[str, str]) -> None:
    for operation in admin.OPERATIONS:
        path = operation.path.replace("{", "").replace("}", "")
        answer = await bench.http.request(operation.method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), operation.name


async def test_a_tenant_s_key_opens_nothing_here(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    key = (await bench.done("POST", "/tenants/acme/keys", json={"name": "k"}))["key"]

    answer = await bench.http.get("/admin/v1/tenants", headers={"authorization": f"Bearer {key}"})

    assert answer.status_code == 401


async def test_a_refused_call_changes_and_notes_nothing(bench: AdminBench) -> None:
    await bench.http.post("/admin/v1/tenants", json={"id": "acme"})

    assert (await bench.done("GET", "/tenants"))["data"] == []
    assert await bench.audit() == []


async def test_answers_are_kept_by_no_cache(bench: AdminBench) -> None:
    answer = await bench.call("GET", "/tenants")

    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"


async def test_a_path_that_is_not_there_is_404_in_the_contract_s_words(bench: AdminBench) -> None:
    assert await bench.refused("GET", "/nothing") == (404, "not_found", None)


async def test_a_method_that_is_not_taken_is_405(bench: AdminBench) -> None:
    assert await bench.refused("PUT", "/tenants") == (405, "method_not_allowed", None)


async def test_a_body_over_the_limit_is_413(bench: AdminBench) -> None:
    body = b'{"id": "' + b"a" * 2**20 + b'"}'

    assert (await bench.refused("POST", "/tenants", content=body))[:2] == (413, "request_too_large")


@pytest.mark.parametrize(("method", "path"), [("GET", "/tenants"), ("POST", "/tenants"), ("GET", "/audit")])
async def test_without_the_store_every_call_is_503_with_a_time(method: str, path: str, tmp_path: object) -> None:
    async with Redis.from_url(f"unix://{tmp_path}/nowhere.sock") as away:
        transport = httpx.ASGITransport(application(away, HandFleet()))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            body = {"id": "acme"} if method == "POST" else None
            answer = await http.request(method, f"/admin/v1{path}", headers=HEADERS, json=body)

    assert answer.status_code == TABLE["quota_store_unavailable"].status == 503
    assert answer.json()["error"]["code"] == "quota_store_unavailable"
    assert int(answer.headers["retry-after"]) >= 1
