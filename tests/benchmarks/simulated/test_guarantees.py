"""Guarantees are kept in the worlds in which each of these broke."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.common.clients import Client, flood
from benchmarks.scheduling.lines.guarantees import Case, play, play_case
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.synthetic_tenants import Tier, lane_tiers
from fairlane.scheduler.simulation.workload import Arrival

BATCH, PLAIN = lane_tiers(0.0)[1], lane_tiers(1.0)[0]


DATED = Tier(name="dated", lane=LaneName.LATENCY, share=1.0, ttft_ms=1_000.0, tpot_ms=100.0)


def asked(clients: Iterable[Client], duration_s: float) -> list[Arrival]:
    """What they ask for; a tenant may be several of them."""
    arrivals = flood(list(clients), duration_s, seed=1)
    return [replace(one, job_id=f"{number}/{one.job_id}") for number, one in enumerate(arrivals)]


@pytest.mark.parametrize(
    "deadlines",
    [{"hard_ttft_ms": 2_000.0}, pytest.param({"deadline_ms": 20_000.0}, marks=pytest.mark.thorough)],
    ids=["first token", "end"],
)
def test_a_backlogged_tenants_guarantees_hold(deadlines: dict[str, Any]) -> None:
    flooding = Client(tenant="acme", rate_per_s=24.0, prompt=(100, 2_000), output=(20, 400), tier=PLAIN)
    few = Client(tenant="acme", rate_per_s=0.5, prompt=(100, 400), output=(20, 100), tier=replace(DATED, **deadlines))

    given = play(asked([flooding, few], 20.0))

    assert given.guaranteed >= 5
    assert given.broken == 0


@pytest.mark.thorough
def test_guarantees_hold_for_a_tenant_outside_its_window() -> None:
    tier = replace(DATED, lane=LaneName.THROUGHPUT, hard_ttft_ms=4_000.0)
    all_dated = Client(tenant="acme", rate_per_s=2.0, prompt=(1_000, 2_000), output=(200, 400), tier=tier)
    undated = [
        Client(tenant=f"t{number}", rate_per_s=3.0, prompt=(100, 2_000), output=(20, 400), tier=BATCH)
        for number in range(7)
    ]

    given = play(asked([all_dated, *undated], 30.0))

    assert given.guaranteed >= 20
    assert given.broken == 0


def crowd(count: int) -> list[Arrival]:
    """Work by which a worker learns its costs; then long prompts, all at once, each with two seconds to its first
    token."""
    early = [request(f"early {number}", 100.0 * number, 500, None) for number in range(100)]
    return early + [request(f"dated {number}", 20_000.0 + 2.0 * number, 5_500, 2_000.0) for number in range(count)]


def request(job_id: str, at_ms: float, prompt_tokens: int, hard_ttft_ms: float | None) -> Arrival:
    return Arrival(
        at_ms=at_ms,
        job_id=job_id,
        tenant="acme",
        lane=LaneName.LATENCY,
        prompt_tokens=prompt_tokens,
        output_tokens=50,
        max_tokens=64,
        ttft_ms=1_000.0,
        tpot_ms=100.0,
        hard_ttft_ms=hard_ttft_ms,
    )


@pytest.mark.parametrize("doors", [4, *(pytest.param(doors, marks=pytest.mark.thorough) for doors in (2, 8))])
def test_several_doors_promise_what_one_would(doors: int) -> None:
    alone = play(crowd(40), heartbeat_ms=0.0)

    given = play(crowd(40), doors=doors)

    assert given.guaranteed >= 0.8 * alone.guaranteed > 0
    assert given.broken == 0


@pytest.mark.thorough
def test_doors_that_hear_of_each_other_give_what_one_gives_that_sees_all_and_keep_it() -> None:
    """Four times what the worker can serve, dated and undated, in both lanes: each door alone knew a part of what the
    lane above asked for, and promised the lane below what was not there."""
    case = Case(workers=1, doors=8, load=4.0, seed=0, duration_s=5.0, ends=False)

    given, alone = play_case(case), play_case(case._replace(doors=0))

    assert given.broken == alone.broken == 0
    assert given.guaranteed >= 0.8 * alone.guaranteed > 20
