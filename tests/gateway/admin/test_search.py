"""Search: a whole id of a request or key, and parts of the names of tenants, workers and models."""

from typing import Any

import pytest

from tests.support.gateway.admin_app import AdminBench, worker

pytestmark = pytest.mark.anyio


async def found(bench: AdminBench, text: str) -> list[tuple[str, str, str | None]]:
    """Kind, id and tenant of each result."""
    data = (await bench.done("GET", "/search", params={"q": text}))["data"]
    return [(one["kind"], one["id"], one["tenant"]) for one in data]


async def tenant(bench: AdminBench, name: str) -> Any:
    await bench.done("POST", "/tenants", json={"id": name})
    return await bench.done("POST", f"/tenants/{name}/keys", json={"name": "web"})


async def test_tenants_are_found_by_a_part_of_their_id_those_that_begin_with_it_first(bench: AdminBench) -> None:
    for name in ("big-acme", "Acme2", "acme", "zoo"):
        await tenant(bench, name)
    await bench.done("DELETE", "/tenants/zoo")

    assert await found(bench, "acme") == [("tenant", name, None) for name in ("acme", "Acme2", "big-acme")]
    assert await found(bench, "zoo") == []


async def test_a_key_is_found_by_its_id_and_a_pasted_secret_is_not_answered(bench: AdminBench) -> None:
    key = await tenant(bench, "acme")

    assert await found(bench, key["id"]) == [("key", key["id"], "acme")]
    assert await found(bench, key["key"]) == [("key", key["id"], "acme")]
    assert key["key"] not in (await bench.call("GET", "/search", params={"q": key["key"]})).text


async def test_workers_and_models_are_found_and_bounded(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker(f"node-{number:02}", model="tiny-chat") for number in range(12)]

    assert await found(bench, "NODE-1") == [("worker", "node-10", None), ("worker", "node-11", None)]
    assert len(await found(bench, "node")) == 8
    assert await found(bench, "tiny") == [("model", "tiny-chat", None)]


@pytest.mark.parametrize("text", ["", " ", "nothing", "*", "[a", "a\x00b", "é", "x" * 200])
async def test_what_matches_nothing_is_empty(bench: AdminBench, text: str) -> None:
    assert await found(bench, text) == []


async def test_a_longer_text_is_refused(bench: AdminBench) -> None:
    assert await bench.refused("GET", "/search", params={"q": "x" * 201}) == (400, "invalid_request_error", "q")
