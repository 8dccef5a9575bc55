"""Alarms say who is slow, why, and since when."""

import time
from typing import Any

import pytest

from fairlane.gateway.control.admin.alarms import WINDOW_S, Alarm, LaneState, alarms, began
from fairlane.gateway.insight.fleet_metrics.metrics_store import RINGS, FleetMetricsStore, ReportedState, Step
from fairlane.gateway.insight.fleet_metrics.sums import Sums, observe
from fairlane.scheduler.protocol.messages import WorkerStatus
from tests.support.gateway.admin_app import AdminBench, worker

NOW_S = 10_000.0
BATCH: dict[str, Any] = {"running": {"throughput": 8}, "blocks_free": 50}
FULL = "is full of batch work (the throughput lane)"
SLOW: dict[str, Any] = {"step_ms": 112.0, "single_stream_ms": 35.0, "kv_blocks": {"acme": 2, "batchco": 9}}
OWNED = "; batchco holds the most KV memory"
IDLE: dict[str, Any] = {"running": {}, "blocks_free": 100}


def measured(
    *, ttft_ms: float = 100.0, tpot_ms: float = 10.0, count: int = 10, late: dict[str, int] | None = None
) -> Sums:
    """A minute of one lane, in which some tenants' requests were late."""
    sums = Sums(samples=1)
    lane = sums.lane("latency")
    lane.requests = lane.judged = lane.met = count
    for _ in range(count):
        observe(lane.ttft, ttft_ms)
        observe(lane.tpot, tpot_ms)
    for tenant, number in (late or {}).items():
        sums.tenant(tenant).late["latency"] = number
    return sums


def refused(codes: dict[str, int], ended: int, **tenants: int) -> Sums:
    sums = Sums(refusals=codes)
    sums.lane("latency").requests = ended
    for tenant, number in tenants.items():
        sums.tenant(tenant).refused = number
    return sums


def found(sums: Sums, *workers: WorkerStatus, queued: int = 0, oldest_wait_ms: float = 0.0) -> list[Alarm]:
    lane = LaneState("latency", 1_000.0, 50.0, queued, oldest_wait_ms)
    return alarms(sums, [lane], workers or [worker(**IDLE)], ["tiny"], NOW_S)


def told(alarm: Alarm) -> tuple[str, str]:
    return alarm.view["what"], alarm.view["why"]


def test_a_fleet_within_its_targets_has_none() -> None:
    assert found(measured()) == []
    assert found(measured(ttft_ms=5_000.0, count=4)) == [], "four requests are no alarm"
    assert found(refused({"rate_limit_exceeded": 9}, ended=100)) == [], "less than a tenth"


def test_first_tokens_are_late_because_workers_are_full_of_batch_work() -> None:
    sums = measured(ttft_ms=2_400.0, late={"acme": 7, "zoo": 1, "": 9})
    workers = [worker(f"w{number}", **BATCH) for number in range(3)]

    (alarm,) = found(sums, *workers, worker("w4", **IDLE))

    what, why = told(alarm)
    assert what.startswith("First tokens of the latency lane are slower than their target (one in twenty takes 2.")
    assert what.endswith(" s or longer instead of 1 s), most of acme and zoo")
    assert why == "3 of 4 workers are full of batch work (the throughput lane)"
    assert (alarm.view["kind"], alarm.view["lane"], alarm.view["tenants"]) == (
        "first_token",
        "latency",
        ["acme", "zoo"],
    )


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        ([worker(running={"latency": 8})], "the only worker is full of requests of the latency lane"),
        ([worker(blocks_free=2, running={"throughput": 1})], f"the only worker {FULL}"),
        ([worker(kv_blocks={"reports": 60}, running={})], "reports holds most of the workers' KV memory"),
        ([worker("w1", **IDLE), worker("w2", draining=True)], "1 of 2 workers take no more jobs"),
        (
            [worker(running={"latency": 1, "throughput": 4}, **SLOW)],
            f"5 sequences share w1 (4 of the throughput lane and 1 of the latency lane{OWNED}): "
            "112 ms a token instead of 35 ms for one alone",
        ),
        ([worker("w1", **BATCH, kv_blocks={"zoo": 1, "batchco": 2})], f"the only worker {FULL}{OWNED}"),
        ([worker(**IDLE)], "no worker is full: the slowest requests tell more"),
    ],
)  # fmt: skip
def test_the_cause_is_read_from_the_workers(workers: list[WorkerStatus], why: str) -> None:
    (alarm,) = found(measured(tpot_ms=80.0), *workers)

    assert alarm.view["kind"] == "pace"
    assert told(alarm)[1] == why


def test_requests_that_wait_are_an_alarm_before_any_first_token() -> None:
    (alarm,) = found(Sums(), queued=3, oldest_wait_ms=4_200.0)

    assert told(alarm)[0] == "3 requests of the latency lane wait, the oldest for 4.2 s"


def test_goodput_is_an_alarm_where_no_figure_alone_is() -> None:
    sums = measured()
    sums.lane("latency").met = 8

    (alarm,) = found(sums)

    assert told(alarm)[0] == "2 of 10 requests of the latency lane missed its targets"


@pytest.mark.parametrize(
    ("codes", "severity", "why"),
    [
        ({"rate_limit_exceeded": 7}, "warn", "all with rate_limit_exceeded: a limit of the tenant itself"),
        ({"model_not_allowed": 7}, "warn", "all with model_not_allowed: the key or tenant may not do this"),
        ({"overloaded": 5, "rate_limit_exceeded": 2}, "bad", "most with overloaded: the system had no room or failed"),
    ],
)
def test_refusals_name_the_code_and_whose_they_are(codes: dict[str, int], severity: str, why: str) -> None:
    (alarm,) = found(refused(codes, ended=20, acme=6, zoo=1))

    assert told(alarm) == ("7 of 20 requests were refused in the last minute, most of acme and zoo", why)
    assert (alarm.view["severity"], alarm.view["lane"]) == (severity, None)


@pytest.mark.parametrize(
    ("workers", "severity", "what"),
    [
        ([], "bad", "Requests for tiny are refused with 503"),
        ([worker(draining=True)], "bad", "Requests for tiny are refused with 503"),
        ([worker(model="other")], "warn", "Requests for tiny are refused with 503"),
    ],
)
def test_a_model_without_workers_is_named(workers: list[WorkerStatus], severity: str, what: str) -> None:
    (alarm,) = alarms(Sums(), [], workers, ["tiny"], NOW_S)

    assert (alarm.view["kind"], alarm.view["severity"], alarm.view["what"]) == ("no_worker", severity, what)


def test_an_alarm_began_with_the_run_of_steps_in_which_it_held() -> None:
    (alarm,) = found(measured(ttft_ms=2_000.0))
    assert alarm.held is not None
    slow, fast, lone = measured(ttft_ms=2_000.0), measured(), measured(ttft_ms=2_000.0, count=1)
    minute = WINDOW_S // 10

    def start(*states: Sums | None) -> float:
        """The start, given the steps up to the current one."""
        steps = [Step(1_001 - len(states) + place, each) for place, each in enumerate(states) if each is not None]
        return began(alarm.held or bool, steps, 10, NOW_S)

    assert start(slow, *[fast] * 2 * minute, slow, None, slow, fast) == NOW_S - 30
    assert start(*[slow] * 2 * minute) == NOW_S - 110
    assert start(fast, fast, slow, *[slow] * (minute + 3)) == NOW_S - 90, "not those before it in its minute"
    assert start(lone, *[None] * 5, lone, *[None] * 5, slow) == NOW_S, "a slow request a minute is no alarm"
    assert start(*[lone] * minute, slow) == NOW_S - 10, "with the fifth slow request of its minute"
    assert start(slow, *[None] * (minute + 5), slow) == NOW_S, "nor does it bridge a minute without requests"
    assert start() == NOW_S


@pytest.mark.anyio
async def test_the_overview_tells_since_when_also_of_a_day_ago(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker(**BATCH)]
    metrics, slot = FleetMetricsStore(bench.redis), int(time.time() // 10)
    for back in (1, 2):
        sums = measured(ttft_ms=2_400.0, late={"acme": 3})
        await metrics.report(slot - back, "a", ReportedState(int(time.time() * 1e3), sums))
    day = RINGS[1]
    now = int(time.time() // day.step_s)
    first = int(time.time() // 10)
    await metrics._write(RINGS[0], [(first - back, [measured(ttft_ms=2_400.0)]) for back in range(400)], first)
    await metrics._write(day, [(now - back, [measured(ttft_ms=2_400.0)]) for back in range(50)], now)

    (alarm,) = (await bench.done("GET", "/overview"))["alarms"]

    assert alarm["since"] == (now - 49) * day.step_s
    assert (alarm["tenants"], alarm["kind"]) == (["acme"], "first_token")
