"""Several prompts in one body: one request for every limit and for the ledger, however its jobs end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.settings import LaneSettings, LanesSettings
from tests.support.gateway.served import COMPLETIONS, Served, error_of, serving, settings, until

pytestmark = pytest.mark.anyio

TWO: dict[str, Any] = {"model": "tiny", "prompt": [[5], [6, 7]], "max_tokens": 9, "ignore_eos": True}
THREE: dict[str, Any] = {**TWO, "prompt": [[5, 5, 5], [6, 6, 6], [7, 7, 7]], "max_tokens": 2}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        yield opened


async def reserved(served: Served) -> dict[str, int]:
    """What each limit counts as reserved or running."""
    return {name: status.reserved for name, status in (await served.limits()).items()}


async def test_a_list_is_one_request_in_headers_limits_and_ledger(served: Served) -> None:
    await served.tenant(limits={"requests_per_minute": 2, "concurrent_requests": 1, "tokens_per_minute": 100})

    answer = await served.post(COMPLETIONS, THREE)

    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining-requests"] == "1"
    usage = answer.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 6)
    assert await served.ledger() == [("finished", 9, 6)]
    assert (await served.limits())["tokens_per_minute"].used == 15
    assert (await served.post(COMPLETIONS, THREE)).status_code == 200
    assert error_of(await served.post(COMPLETIONS, THREE)) == (429, "rate_limit_exceeded")


async def test_a_list_waits_as_one_request_until_its_first_job_is_taken(served: Served) -> None:
    await served.tenant(limits={"queued_requests": 2})
    served.worker.taking = False
    waiting = [asyncio.create_task(served.post(COMPLETIONS, THREE)) for _ in range(2)]
    await until(lambda: sum(job.message is not None for job in served.resources.fleet.dispatcher.jobs.values()) == 6)

    shown = (await served.get("/v1/limits")).json()["limits"]["queued_requests"]
    refused = await served.post(COMPLETIONS, THREE)
    served.worker.taking = True

    assert (shown["limit"], shown["used"]) == (2, 2)
    assert error_of(refused) == (429, "queue_full")
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_list_that_can_never_fit_is_a_400(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 14})

    refused = await served.post(COMPLETIONS, THREE)

    assert error_of(refused) == (400, "request_exceeds_limit")
    assert refused.json()["error"]["limit"]["requested"] == 15


async def test_without_max_tokens_the_prompts_share_what_the_limits_leave(served: Served) -> None:
    await served.tenant(limits={"tokens_per_minute": 50}, reserve="full")

    endless = {"model": "tiny", "prompt": [[5], [6]], "ignore_eos": True}
    answer = (await served.post(COMPLETIONS, endless)).json()

    assert answer["usage"]["completion_tokens"] == 48
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["fairlane"] == {"limited_by": "tokens_per_minute"}


async def test_each_prompt_is_held_to_the_longest_that_the_tenant_may_send(served: Served) -> None:
    await served.tenant(limits={"max_prompt_tokens": 3})

    longer = {**THREE, "prompt": [*THREE["prompt"], [8, 8, 8, 8]]}

    assert (await served.post(COMPLETIONS, THREE)).status_code == 200
    assert error_of(await served.post(COMPLETIONS, longer)) == (400, "request_exceeds_limit")


async def test_a_stop_string_bounds_the_charge_of_its_choice_alone(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 1_000})

    answer = (await served.post(COMPLETIONS, {**THREE, "max_tokens": 30, "n": 2, "stop": ["capital"]})).json()
    await served.landed()

    usage = answer["usage"]
    assert {choice["text"] for choice in answer["choices"]} == {"The "}
    assert await served.ledger() == [("finished", 9, usage["completion_tokens"])]
    assert (await served.limits())["tokens_per_day"].used == usage["total_tokens"]


async def test_a_lane_that_fills_half_way_gives_all_back(valkey_url: str) -> None:
    lanes = LanesSettings(latency=LaneSettings(max_queued=2))
    async with serving(settings(valkey_url, lanes=lanes)) as served:
        await served.tenant(limits={"requests_per_minute": 10, "concurrent_requests": 5, "tokens_per_day": 1_000})
        served.worker.taking = False

        refused = await served.post(COMPLETIONS, THREE)
        await served.landed()

        assert error_of(refused) == (429, "overloaded")
        assert {name: status.used + status.reserved for name, status in (await served.limits()).items()} == {
            "requests_per_minute": 0,
            "concurrent_requests": 0,
            "tokens_per_day": 0,
        }
        assert await served.ledger() == []
        assert (await served.worker.queue.depths())[LaneName.LATENCY].queued == 0


async def half_done(served: Served) -> "asyncio.Task[Any]":
    """A list of two: one prompt is finished, the other has said one token."""
    await served.tenant(limits={"concurrent_requests": 1, "tokens_per_minute": 1_000, "requests_per_minute": 10})
    served.worker.limit = 1
    running = asyncio.create_task(served.post(COMPLETIONS, TWO))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [1, 1])
    first, second = served.worker.leases
    served.worker.held.add(second)
    served.worker.limit = None
    await until(lambda: first not in served.worker.leases)
    return running


async def test_nothing_is_settled_before_the_last_prompt_has_ended(served: Served) -> None:
    running = await half_done(served)

    before, entries = await reserved(served), await served.ledger()
    served.worker.held.clear()
    answer = await running

    assert before["tokens_per_minute"] == 3 + 2 * 9
    assert entries == []
    assert answer.json()["usage"]["completion_tokens"] == 18
    assert await served.ledger() == [("finished", 3, 18)]
    assert sum((await reserved(served)).values()) == 0


async def test_a_client_that_leaves_pays_for_what_all_prompts_published(served: Served) -> None:
    running = await half_done(served)

    running.cancel()
    await asyncio.wait({running})
    await served.landed()

    assert await served.ledger() == [("cancelled", 3, 10)]
    assert sum((await reserved(served)).values()) == 0
    assert (await served.limits())["requests_per_minute"].used == 1


async def test_a_lost_reservation_ends_the_whole_request(served: Served) -> None:
    running = await half_done(served)
    request = next(iter(served.resources.fleet.dispatcher.jobs.values())).request
    await until(lambda: bool(request.charges))
    await served.resources.accounts.quotas.settle(
        "acme", request.id, request.charges[0]
    )  # as another gateway's reaper would

    await served.resources.requests.reaper.renew()
    answer = await running
    await served.landed()

    assert error_of(answer) == (503, "quota_store_unavailable")
    assert len(await served.ledger()) == 1
    assert len(served.worker.cancelled) == 1


async def test_a_fault_of_ours_in_one_ends_all_and_leaves_them_to_the_reaper(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings(valkey_url, section={"reservation_lease_s": 1.0}, lease_s=1.5)) as served:
        with monkeypatch.context() as broken:
            broken.setattr(LiveJob, "charge", _at_fault)
            answer = await (await half_done(served))
            await served.landed()

        await until(lambda: served.resources.requests.reaper.reaped == 1)

        assert error_of(answer) == (500, "internal_error")
        assert await served.ledger() == [("cancelled", 3, 10)]
        assert sum((await reserved(served)).values()) == 0


def _at_fault(*_: object, **__: object) -> None:
    raise RuntimeError("not a charge")
