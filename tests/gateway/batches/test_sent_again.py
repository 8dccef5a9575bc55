"""A batch that is asked for again, since the first answer was lost: with an idempotency key it is made once."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.support.gateway.batch_files import lines, upload
from tests.support.gateway.served import COMPLETIONS, Served

pytestmark = pytest.mark.anyio
DAY_S = 86_400


async def asked(served: Served, body: dict[str, Any], key: str | None, *, tenant: str = "acme") -> httpx.Response:
    headers = {"authorization": f"Bearer {served.keys[tenant]}"}
    headers |= {} if key is None else {"idempotency-key": key}
    async with served.http as client:
        return await client.post("/v1/batches", json=body, headers=headers)


async def a_body(served: Served, *, tenant: str = "acme") -> dict[str, Any]:
    kept = (await upload(served, lines(2), tenant=tenant)).json()
    return {"input_file_id": kept["id"], "endpoint": COMPLETIONS, "completion_window": "24h", "metadata": {"of": "us"}}


async def listed(served: Served, *, tenant: str = "acme") -> list[str]:
    async with served.http as client:
        found = await client.get("/v1/batches", headers={"authorization": f"Bearer {served.keys[tenant]}"})
    return [each["id"] for each in found.json()["data"]]


async def test_a_batch_that_is_asked_for_twice_with_one_key_is_made_once(served: Served) -> None:
    await served.tenant()
    body = await a_body(served)

    first, *others = await asyncio.gather(*[asked(served, body, "one") for _ in range(4)])
    later = await asked(served, body, "one")

    assert {answer.status_code for answer in (first, *others, later)} == {200}
    assert await listed(served) == [first.json()["id"]]
    assert {answer.json()["id"] for answer in (*others, later)} == {first.json()["id"]}
    assert later.headers["idempotent-replayed"] == "true"


async def test_a_key_stands_for_one_body(served: Served) -> None:
    await served.tenant()
    body = await a_body(served)
    await asked(served, body, "one")

    other = await asked(served, {**body, "metadata": None}, "one")

    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert len(await listed(served)) == 1


async def test_without_a_key_or_with_another_each_request_makes_a_batch(served: Served) -> None:
    await served.tenant()
    await served.tenant("other")
    body = await a_body(served)

    for key in (None, None, "one", "two"):
        assert (await asked(served, body, key)).status_code == 200
    theirs = await asked(served, await a_body(served, tenant="other"), "one", tenant="other")

    assert len(await listed(served)) == 4
    assert await listed(served, tenant="other") == [theirs.json()["id"]]


async def test_a_day_later_the_key_stands_for_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.tenant()
    body = await a_body(served)
    first = (await asked(served, body, "one")).json()
    made_at = first["created_at"]

    monkeypatch.setattr(time, "time", lambda: made_at + DAY_S - 1.0)
    assert (await asked(served, body, "one")).json()["id"] == first["id"]
    monkeypatch.setattr(time, "time", lambda: made_at + DAY_S + 1.0)
    assert (await asked(served, body, "one")).json()["id"] != first["id"]


async def test_a_malformed_key_is_refused(served: Served) -> None:
    await served.tenant()

    refused = await asked(served, await a_body(served), "k" * 256)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "idempotency-key")
