"""The dry run: what would become of a request now."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlane.gateway.control.admin.explain import limit_refusal
from fairlane.quotas.limits import RULES, Demand, LimitStatus
from fairlane.quotas.store import Ask, Denied
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.types import LaneDepth
from tests.support.gateway.admin_app import QUEUE, AdminBench, ask, worker

pytestmark = pytest.mark.anyio


async def explain(bench: AdminBench, **sizes: Any) -> dict[str, Any]:
    body = {"prompt_tokens": 10, "max_output_tokens": 5, "lane": "latency", **sizes}
    answer: dict[str, Any] = await bench.done("POST", "/tenants/acme/explain", json=body)
    return answer


async def tenant(bench: AdminBench, **fields: Any) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme", **fields})


async def test_what_fits_is_admitted_with_its_expected_wait(bench: AdminBench) -> None:
    await tenant(bench, limits={"tokens_per_day": 15})
    door, ahead = bench.open_requests.at(QUEUE), Request(lane=LaneName.LATENCY, prompt_tokens=2_000, max_tokens=10)
    door.look(bench.fleet.statuses, bench.open_requests.now_ms)
    door.enter("ahead", ahead, guaranteed=False, now_ms=bench.open_requests.now_ms)

    answer = await explain(bench)

    assert answer["admitted"] is True
    assert answer["code"] is None
    assert answer["expected_wait_ms"] > 1000


async def test_nothing_is_reserved_or_counted(bench: AdminBench) -> None:
    await tenant(bench, limits={"tokens_per_day": 15, "requests_per_minute": 1})

    assert [(await explain(bench))["admitted"] for _ in range(3)] == [True, True, True]

    limits = (await bench.done("GET", "/tenants/acme/quota"))["limits"]
    assert [(limit["used"], limit["reserved"]) for limit in limits.values()] == [(0, 0), (0, 0)]


async def test_the_limit_that_binds_is_named_with_its_figures(bench: AdminBench) -> None:
    await tenant(bench, limits={"tokens_per_day": 20, "requests_per_minute": 100}, reserve="full")
    await bench.spend("acme", prompt=10, output=5)

    answer = await explain(bench)

    assert (answer["admitted"], answer["code"]) == (False, "insufficient_quota")
    assert answer["limit"]["name"] == "tokens_per_day"
    assert (answer["limit"]["used"], answer["limit"]["requested"], answer["limit"]["limit"]) == (15, 15, 20)
    assert 0 < answer["retry_after_s"] <= 86_400


async def test_who_reserves_progressively_needs_one_token_at_first(bench: AdminBench) -> None:
    await tenant(bench, limits={"tokens_per_day": 26})
    await bench.spend("acme", prompt=10, output=5)

    first = await explain(bench)
    await bench.done("PATCH", "/tenants/acme/quota", json={"tokens_per_day": 25})
    second = await explain(bench)

    assert first["admitted"] is True
    assert (second["code"], second["limit"]["requested"]) == ("insufficient_quota", 11)


@pytest.mark.parametrize(("model", "code"), [("tiny", "rate_limit_exceeded"), (None, "rate_limit_exceeded")])
async def test_limits_of_a_model_and_lane_bind_where_they_apply(
    bench: AdminBench, model: str | None, code: str
) -> None:
    by = [
        {"model": "tiny", "lane": "latency", "limits": {"requests_per_minute": 1}},
        {"model": "other", "limits": {"requests_per_minute": 0}},
    ]
    await tenant(bench, limits_by=by)
    before = await explain(bench, model=model)
    await bench.spend("acme")

    after, elsewhere = await explain(bench, model=model), await explain(bench, model=model, lane="throughput")

    assert (before["admitted"], after["code"], elsewhere["admitted"]) == (True, code, True)
    assert after["limit"]["scope"] == "model_lane"


async def test_the_limits_of_the_tenants_above_bind_too(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "holding", "limits": {"max_prompt_tokens": 9}})
    await tenant(bench, parent="holding")

    answer = await explain(bench)

    assert (answer["code"], answer["limit"]["scope"]) == ("request_exceeds_limit", "parent")
    assert "the tenant above this one" in answer["message"]


async def test_below_a_suspended_tenant_nothing_is_admitted(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "holding"})
    await tenant(bench, parent="holding")
    await bench.done("POST", "/tenants/holding/suspend")

    assert (await explain(bench))["code"] == "tenant_suspended"


async def test_a_model_is_looked_for_and_must_be_allowed(bench: AdminBench) -> None:
    await tenant(bench, models=["another"])

    assert (await explain(bench, model="unheard"))["code"] == "model_not_found"
    assert (await explain(bench, model="another"))["code"] == "model_not_found"
    await bench.done("PATCH", "/tenants/acme", json={"models": ["tiny"]})
    assert (await explain(bench, model="tiny"))["admitted"] is True


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"tokens_per_minute": 14}, "request_exceeds_limit"),
        ({"max_prompt_tokens": 9}, "request_exceeds_limit"),
        ({"max_output_tokens": 4}, "request_exceeds_limit"),
        ({"concurrent_requests": 0}, "request_exceeds_limit"),
    ],
)
async def test_what_can_never_fit_says_so(bench: AdminBench, limits: dict[str, int], code: str) -> None:
    await tenant(bench, limits=limits)

    answer = await explain(bench)

    assert (answer["admitted"], answer["code"], answer["retry_after_s"]) == (False, code, None)


async def test_a_running_request_takes_its_place(bench: AdminBench) -> None:
    await tenant(bench, limits={"concurrent_requests": 1})
    await bench.budgets.reserve(ask("acme", "running"))

    answer = await explain(bench)

    assert (answer["admitted"], answer["code"]) == (False, "concurrency_limit_exceeded")


async def test_a_limit_in_shadow_refuses_nothing(bench: AdminBench) -> None:
    await tenant(bench, limits={"tokens_per_day": 1}, shadow=["tokens_per_day"])

    assert (await explain(bench))["admitted"] is True


async def test_access_comes_before_limits(bench: AdminBench) -> None:
    await tenant(bench, lanes=["latency"], limits={"tokens_per_day": 0})

    wrong_lane = await explain(bench, lane="throughput")
    await bench.done("POST", "/tenants/acme/suspend")
    suspended = await explain(bench)

    assert (wrong_lane["code"], suspended["code"]) == ("lane_not_allowed", "tenant_suspended")


async def test_without_a_worker_nothing_is_admitted(bench: AdminBench) -> None:
    await tenant(bench)
    bench.fleet.statuses = [worker(draining=True)]

    answer = await explain(bench)

    assert (answer["admitted"], answer["code"], answer["expected_wait_ms"]) == (False, "no_worker", None)


async def test_what_no_pool_can_hold_is_refused(bench: AdminBench) -> None:
    await tenant(bench)

    answer = await explain(bench, max_output_tokens=2000)

    assert (answer["admitted"], answer["code"]) == (False, "request_exceeds_limit")
    assert "1600" in answer["message"]


async def test_a_deadline_that_cannot_be_met_is_refused(bench: AdminBench) -> None:
    await tenant(bench)
    bench.fleet.depth = {LaneName.LATENCY: LaneDepth(100, 100)}

    late = await explain(bench, deadline_ms=50)
    relaxed = await explain(bench, deadline_ms=1e9)

    assert (late["admitted"], late["code"]) == (False, "deadline_unattainable")
    assert relaxed["admitted"] is True


async def test_what_this_gateway_let_in_counts(bench: AdminBench) -> None:
    await tenant(bench)
    door, now_ms = bench.open_requests.at(QUEUE), bench.open_requests.now_ms
    in_time = await explain(bench, deadline_ms=2_000)
    for number in range(20):
        other = Request(lane=LaneName.LATENCY, prompt_tokens=500, max_tokens=5, ttft_ms=60_000.0)
        door.enter(f"other-{number}", other, guaranteed=True, now_ms=now_ms)

    late = await explain(bench, deadline_ms=2_000)

    assert in_time["admitted"] is True
    assert (late["admitted"], late["code"]) == (False, "deadline_unattainable")


async def test_what_no_context_can_hold_is_refused(bench: AdminBench) -> None:
    await tenant(bench, limits={"max_prompt_tokens": 1})

    answer = await explain(bench, prompt_tokens=3000, max_output_tokens=2)

    assert (answer["admitted"], answer["code"]) == (False, "context_length_exceeded")
    assert "3000" in answer["message"]
    assert "completion" not in answer["message"]  # no output would fit


async def test_output_beyond_the_context_is_cut(bench: AdminBench) -> None:
    await tenant(bench)

    answer = await explain(bench, prompt_tokens=1000, max_output_tokens=3000)
    assert answer["admitted"] is True


async def test_without_a_model_that_the_tenant_may_use_nobody_serves(bench: AdminBench) -> None:
    await tenant(bench, models=["another"])

    assert (await explain(bench))["code"] == "no_worker"


async def test_a_full_queue_of_the_tenants_refuses_after_its_budgets(bench: AdminBench) -> None:
    await tenant(bench, limits={"queued_requests": 3})
    bench.fleet.queued = {"acme": 2, "other": 100}
    with_room = await explain(bench)
    bench.fleet.queued = {"acme": 3}

    full = await explain(bench)
    await bench.done("PATCH", "/tenants/acme/quota", json={"max_prompt_tokens": 9})
    too_long = await explain(bench)

    assert with_room["admitted"] is True
    assert (full["admitted"], full["code"]) == (False, "queue_full")
    assert (full["limit"]["name"], full["limit"]["used"], full["limit"]["limit"]) == ("queued_requests", 3, 3)
    assert too_long["code"] == "request_exceeds_limit"


async def test_a_lane_at_its_cap_refuses(bench: AdminBench) -> None:
    await tenant(bench)
    cap = DEFAULT_LANES[LaneName.LATENCY].max_queued
    bench.fleet.depth = {LaneName.LATENCY: LaneDepth(cap, 2 * cap)}

    full, other_lane = await explain(bench), await explain(bench, lane="throughput")

    assert (full["admitted"], full["code"]) == (False, "overloaded")
    assert full["retry_after_s"] == 0.002
    assert other_lane["admitted"] is True


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"prompt_tokens": 1.5}, "prompt_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"lane": "slow"}, "lane"),
        ({"lane": None}, "lane"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"model": 7}, "model"),
        ({"tenant": "acme"}, "tenant"),
    ],
)
async def test_wrong_sizes_are_named(bench: AdminBench, body: dict[str, Any], param: str) -> None:
    await tenant(bench)
    sizes = {"prompt_tokens": 10, "max_output_tokens": 5, "lane": "latency", **body}

    assert await bench.refused("POST", "/tenants/acme/explain", json=sizes) == (400, "invalid_request_error", param)


STATUSES = st.lists(
    st.builds(
        LimitStatus,
        name=st.sampled_from([rule.name for rule in RULES]),
        scope=st.just("tenant"),
        limit=st.integers(0, 60),
        used=st.integers(0, 40),
        reserved=st.integers(0, 40),
        resets_at=st.none(),
        reset_after_s=st.floats(0, 100),
        shadow=st.booleans(),
    ),
    max_size=6,
)


@pytest.mark.parametrize(
    ("name", "figure", "used", "told"),
    [
        ("tokens_per_minute", 600, 595, " 11 asked for to begin with, 595 used "),
        ("tokens_per_minute", 100, 0, " 510 asked for, 0 used "),
        ("max_output_tokens", 100, 0, " 500 asked for, 0 used "),
        ("requests_per_minute", 1, 1, " 1 asked for, 1 used "),
    ],
)
def test_a_refusal_says_whether_a_part_or_the_whole_was_asked_for(name: str, figure: int, used: int, told: str) -> None:
    status = LimitStatus(
        name=name, scope="tenant", limit=figure, used=used, reserved=0, resets_at=None, reset_after_s=0.0
    )
    refusal = limit_refusal([status], Demand(input=10, ceiling=500, choice=1, choices=1), in_part=True)

    assert refusal is not None
    assert told in refusal.message


@given(statuses=STATUSES, prompt=st.integers(0, 40), output=st.integers(1, 40))
def test_a_refusal_names_a_limit_that_is_really_short(statuses: list[LimitStatus], prompt: int, output: int) -> None:
    demand = Demand(input=prompt, ceiling=output, choice=output, choices=1)
    amounts = {rule.name: demand.amount(rule) for rule in RULES}
    short = [status for status in statuses if not status.shadow and amounts[status.name] > status.remaining]

    refusal = limit_refusal(statuses, demand, in_part=False)

    assert (refusal is None) == (not short)
    if refusal is not None:
        assert refusal.limit is not None
        assert refusal.limit.name in {status.name for status in short}


BOOKED = {rule.name for rule in RULES} - {"queued_requests"}
"""Limits that a reservation decides; the queue behind it decides the other."""


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limits=st.dictionaries(st.sampled_from(sorted(BOOKED)), st.integers(0, 60), max_size=4),
    earlier=st.lists(st.integers(1, 20), max_size=3),
    prompt_tokens=st.integers(0, 40),
    max_output_tokens=st.integers(1, 40),
    reserve=st.sampled_from(["progressive", "full"]),
)
async def test_the_dry_run_agrees_with_the_reservation(
    bench: AdminBench,
    limits: dict[str, int],
    earlier: list[int],
    prompt_tokens: int,
    max_output_tokens: int,
    reserve: str,
) -> None:
    await bench.redis.flushall()
    await tenant(bench, limits=limits, reserve=reserve)
    for number, prompt in enumerate(earlier):
        with suppress(Denied):
            await bench.budgets.reserve(ask("acme", f"earlier-{number}", prompts=(prompt,)))
    answer = await explain(bench, prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens)

    quantum = 7 if reserve == "progressive" else None
    wanted = ask("acme", "real", prompts=(prompt_tokens,), max_output_tokens=max_output_tokens, quantum=quantum)
    denied = await _denied(bench, wanted)
    assert answer["admitted"] is (denied is None)
    assert denied is None or answer["limit"]["name"] == denied.status.name


async def _denied(bench: AdminBench, wanted: Ask) -> Denied | None:
    try:
        await bench.budgets.reserve(wanted)
    except Denied as denied:
        return denied
    return None
