"""Deadlines: a stated one is hard, a lane's own only orders, and an unstated wait ends after the lane's longest."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairlane.scheduler.protocol.settings import LaneSettings, LanesSettings
from tests.support.gateway.served import ASKED, CHAT, Served, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(limits={"tokens_per_day": 100_000})
    return fresh_gateway


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"deadline_ms": 300}, {}),
        ({}, {"x_fairlane_deadline_ms": "300"}),
        ({}, {"x_fairlane_ttft_ms": "300"}),
        ({}, {"x_llm_d_slo_ttft_ms": "300"}),
    ],
)
async def test_a_stated_deadline_that_passes_in_the_queue_is_504_and_free(
    served: Served, body: dict[str, Any], headers: dict[str, str]
) -> None:
    served.worker.taking = False

    answer = await served.post(CHAT, {**ASKED, **body}, **headers)
    await served.landed()

    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    assert answer.headers["x-should-retry"] == "false"
    limits = await served.limits()
    assert limits["tokens_per_day"].used == limits["tokens_per_day"].reserved == 0


async def test_a_deadline_that_passes_while_running_ends_the_job_and_charges_what_came(served: Served) -> None:
    served.worker.limit = 2

    answer = await served.post(CHAT, {**ASKED, "deadline_ms": 400})
    await served.landed()

    assert answer.status_code == 504
    assert len(served.worker.cancelled) == 1
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("expired", 2)]


async def test_a_hard_first_token_deadline_that_was_met_ends_nothing(served: Served) -> None:
    answer = await served.post(CHAT, ASKED, x_fairlane_ttft_ms="5000")

    assert answer.status_code == 200


async def test_an_unstated_wait_ends_with_the_lanes_longest(valkey_url: str) -> None:
    lanes = LanesSettings(latency=LaneSettings(max_wait_s=0.3))
    async with serving(settings(valkey_url, lanes=lanes)) as served:
        await served.tenant()
        served.worker.taking = False

        answer = await served.post(CHAT, ASKED)

        assert answer.status_code == 504


async def test_a_job_whose_workers_cannot_reach_the_gateway_ends_with_the_lanes_longest_wait(
    valkey_url: str, tmp_path: Path
) -> None:
    lanes = LanesSettings(latency=LaneSettings(max_wait_s=0.3))
    async with serving(settings(valkey_url, section={"link_host": str(tmp_path)}, lanes=lanes)) as served:
        await served.tenant()
        for socket in tmp_path.iterdir():  # noqa: ASYNC240 - local
            socket.unlink()

        answer = await served.post(CHAT, ASKED)

        assert served.worker.seen
        assert answer.status_code == 504


async def test_a_job_that_a_worker_has_taken_outlasts_the_lanes_longest_wait(valkey_url: str) -> None:
    lanes = LanesSettings(latency=LaneSettings(max_wait_s=0.2))
    async with serving(settings(valkey_url, lanes=lanes)) as served:
        await served.tenant()
        served.worker.limit = 0
        running = asyncio.create_task(served.post(CHAT, ASKED))
        await until(lambda: bool(served.worker.leases))

        await asyncio.sleep(0.4)  # twice the longest wait
        served.worker.limit = None

        assert (await running).status_code == 200


async def test_the_official_sdks_own_patience_bounds_a_plain_wait(served: Served) -> None:
    served.worker.taking = False

    answer = await served.post(CHAT, ASKED, x_stainless_read_timeout="0.3")

    assert answer.status_code == 504
