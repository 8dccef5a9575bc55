"""What may happen to a request while a full minute pauses it: each end is told, charged once and leaves nothing."""

import asyncio
import glob
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlane.gateway.pipeline import delivery as dispatch
from fairlane.gateway.pipeline import grants as grants
from fairlane.gateway.pipeline import recovery as reaper
from fairlane.gateway.runtime import fleet as runtime_fleet
from fairlane.quotas import keyspace
from tests.support.gateway.served import COMPLETIONS, Served, error_of, serving, settings, until
from tests.support.quotas.house import forget_minute
from tests.support.store import topology

pytestmark = pytest.mark.anyio

ENDLESS = {"model": "tiny", "prompt": [5], "ignore_eos": True}
QUANTUM = 8
LIMITS = {"tokens_per_minute": 40, "tokens_per_day": 1_000}
EARLIER = ("finished", 1, 23)
"""What the minute was used for before: 16 tokens are left."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at each second is looked at more often."""
    monkeypatch.setattr(grants, "LATEST_S", 0.05)
    monkeypatch.setattr(reaper, "WATCH_EVERY_S", 0.05)


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"quantum_tokens": QUANTUM})) as found:
        yield found


async def paused(served: Served, **asked: Any) -> "asyncio.Task[httpx.Response]":
    """A request that has got all that the minute gives: a prompt token and 15 of output."""
    await served.tenant(limits=LIMITS)
    await served.post(COMPLETIONS, {**ENDLESS, "max_tokens": 23})
    asking = asyncio.create_task(served.post(COMPLETIONS, {**ENDLESS, **asked}))
    await served.paused()
    assert not asking.done(), asking.result().text
    return asking


async def settled(served: Served) -> tuple[list[tuple[str, int, int]], tuple[int, int]]:
    """What is new in the ledger, and used or reserved of the day, once all is over; nobody waits any more."""
    await served.landed()
    day = (await served.limits()).get("tokens_per_day")
    assert not await served.store.zcard(keyspace.of_root("acme") + "paused:tenant:acme")
    ledger = await served.ledger()
    ledger.remove(EARLIER)
    return ledger, (day.used - 24, day.reserved) if day is not None else (0, 0)


async def test_its_deadline_ends_it(served: Served) -> None:
    asking = await paused(served, deadline_ms=1_500, max_tokens=39)

    assert error_of(await asking) == (504, "deadline_exceeded")
    assert await settled(served) == ([("expired", 1, 15)], (16, 0))


async def test_a_limit_that_is_lowered_holds_and_one_that_is_raised_lets_it_go_on(served: Served) -> None:
    asking = await paused(served, max_tokens=30)
    await served.resources.accounts.tenants.update("acme", {"limits": {**LIMITS, "tokens_per_minute": 3}})
    await forget_minute(served.store, "acme")
    job = served.worker.seen[-1].job.job_id
    await until(lambda: len(served.worker.produced[job]) == 18)
    assert not asking.done()
    await served.resources.accounts.tenants.update("acme", {"limits": LIMITS})

    assert (await asking).json()["usage"]["completion_tokens"] == 30
    assert await settled(served) == ([("finished", 1, 30)], (31, 0))


async def test_a_day_that_is_lowered_below_what_is_used_ends_it(served: Served) -> None:
    asking = await paused(served)
    await served.resources.accounts.tenants.update("acme", {"limits": {**LIMITS, "tokens_per_day": 5}})
    answer = (await asking).json()

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["fairlane"] == {"limited_by": "tokens_per_day"}
    assert await settled(served) == ([("finished", 1, 15)], (16, 0))


async def test_a_deleted_tenants_ends(served: Served) -> None:
    asking = await paused(served)
    await served.resources.accounts.tenants.delete("acme")

    assert error_of(await asking) == (401, "tenant_deleted")
    assert await settled(served) == ([("cancelled", 1, 15)], (0, 0))


async def test_what_is_used_up_is_charged_at_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOONEST_S", "LATEST_S"):
        monkeypatch.setattr(grants, name, 60.0)
    asking = await paused(served)

    day = (await served.limits())["tokens_per_day"]
    assert (day.used, day.reserved) == (40, 0)
    await served.resources.accounts.tenants.suspend("acme")
    assert error_of(await asking) == (403, "tenant_suspended")


async def test_a_suspended_tenants_ends(served: Served) -> None:
    asking = await paused(served)
    await served.resources.accounts.tenants.suspend("acme")

    assert error_of(await asking) == (403, "tenant_suspended")
    assert await settled(served) == ([("cancelled", 1, 15)], (16, 0))


async def test_a_revoked_keys_goes_on(served: Served) -> None:
    asking = await paused(served, max_tokens=20)
    tenant = await served.resources.accounts.tenants.get("acme")
    assert tenant is not None
    key = (await served.resources.accounts.keys.list(tenant))[0]
    await served.resources.accounts.keys.revoke(tenant, key.id)
    await forget_minute(served.store, "acme")

    assert (await asking).json()["usage"]["completion_tokens"] == 20
    assert await settled(served) == ([("finished", 1, 20)], (21, 0))


async def test_its_worker_may_be_lost(valkey_url: str) -> None:
    """Whoever takes it next has all that was granted since, and makes no token twice."""
    async with serving(settings(valkey_url, section={"quantum_tokens": QUANTUM}, lease_s=1.0)) as served:
        asking = await paused(served, max_tokens=30)
        lost = served.worker.seen[-1]
        served.worker.leases.clear()
        served.worker.worker_id = "another"
        await until(lambda: served.worker.seen[-1].epoch > lost.epoch)
        await forget_minute(served.store, "acme")

        assert (await asking).json()["usage"]["completion_tokens"] == 30
        assert [lease.job.job_id for lease in served.worker.seen[1:]] == [lost.job.job_id] * 2
        assert [len(made) for made in served.worker.produced.values()] == [23, 30]
        assert await settled(served) == ([("finished", 1, 30)], (31, 0))


async def test_what_a_crash_of_the_store_took_back_is_charged_again(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may lack what it has answered for last; the job's record stays until the reservation has lapsed."""
    monkeypatch.setattr(dispatch, "TEND_EVERY_S", 0.05)
    monkeypatch.setattr(runtime_fleet, "KEPT_MORE_S", 60.0)
    section = {"quantum_tokens": QUANTUM, "reservation_lease_s": 1.0}
    async with (
        serving(settings(valkey_url, section=section)) as served,
        topology.client(valkey_url) as raw,
    ):
        asking = await paused(served, max_tokens=20)
        names = f"{glob.escape(keyspace.of_root('acme'))}*"
        before = {key: await raw.dump(key) async for key in raw.scan_iter(match=names)}
        await forget_minute(served.store, "acme")
        assert (await asking).json()["usage"]["completion_tokens"] == 20
        assert len(await served.ledger()) == 2
        await raw.delete(*[key async for key in raw.scan_iter(match=names)])
        for key, value in before.items():
            assert value is not None
            await raw.restore(key, 0, value)

        async with asyncio.timeout(20):
            while len(await served.ledger()) < 2:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.01)
        assert await settled(served) == ([("finished", 1, 20)], (21, 0))


@pytest.mark.parametrize(
    ("stream", "asked"), [(True, {"n": 2}), (False, {"prompt": [[5], [6]]})], ids=["choices", "prompts"]
)
async def test_all_of_several_wait_and_all_end(served: Served, stream: bool, asked: dict[str, Any]) -> None:
    asking = await paused(served, **asked, max_tokens=11, stream=stream, stream_options=usage_of(stream))
    made = [len(made) for made in served.worker.produced.values()]
    renewing = asyncio.create_task(keep_forgetting(served))
    answer = await asking
    renewing.cancel()

    prompts = len(asked.get("prompt", [1]))
    assert made == [23, *[7] * prompts]
    assert '"completion_tokens":22' in answer.text.replace(" ", "")
    ledger, day = await settled(served)
    assert ledger == [("finished", prompts, 22)]
    assert day == (22 + prompts, 0)


def usage_of(stream: bool) -> dict[str, bool] | None:
    return {"include_usage": True} if stream else None


async def keep_forgetting(served: Served) -> None:
    while True:
        await forget_minute(served.store, "acme")
        await asyncio.sleep(0.05)
