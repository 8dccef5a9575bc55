"""Metrics: every name as documented, with its unit, and no content anywhere."""

import msgspec
import pytest
from prometheus_client import generate_latest

from fairlane.scheduler.planner.costs import LEARNT_AFTER, CostModel
from fairlane.scheduler.planner.steps import Capacity, Row, SeqId, StepFeatures, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.protocol.messages import (
    Event,
    Finished,
    Lease,
    Outcome,
    Preempted,
    Resumed,
    TokenDelta,
    WorkerStatus,
)
from fairlane.worker.engine.engine import StepReport
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.reports import LaneTokens, Publication, Report, WorkerLoad
from fairlane.worker.telemetry import Metrics
from tests.support.worker.scripted import job

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ABOUT = WorkerStatus(
    worker_id="worker", model="tiny", queue="tiny@0", card_sha256="0", started_at_ms=0.0,
    blocks_total=64, host_slots_total=16,
)  # fmt: skip
PREEMPTED = Preempted(job_id="job", choice=0, mode="swap", blocks=3, predicted_ms=7.0)
RESUMED = Resumed(job_id="job", choice=0, stalled_ms=250.0)
FINISHED = Finished(job_id="job", epoch=1, outcome=Outcome.FINISHED, cached_tokens=16)


def lease(epoch: int = 1) -> Lease:
    traced = msgspec.structs.replace(job(max_tokens=8), traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
    return Lease(job=traced, epoch=epoch, arrived_ms_ago=5.0)


def delta(first_index: int, *token_ids: int) -> TokenDelta:
    return TokenDelta(job_id="job", epoch=1, choice=0, first_index=first_index, token_ids=token_ids)


def report(
    *events: Event,
    epoch: int = 1,
    step: StepReport | None = None,
    output: int = 0,
    begun: dict[str, float] | None = None,
) -> Report:
    said = Publication(lease(epoch), events)
    return Report(
        applied=1,
        publications=[said] if events else [],
        capacity=Capacity({}, {}),
        jobs=1,
        load=WorkerLoad(
            running={"latency": 2},
            waiting={"latency": 1},
            preempted={},
            blocks_free=60,
            blocks_cached=9,
            host_slots_free=12,
        ),
        step=step,
        tokens={"latency": LaneTokens(prefill=32, output=output)} if step else {},
        begun=begun or {},
    )


def step() -> StepReport:
    row = Row(SeqId("job", 0), (51, 52), 0, (0,), samples=True, output_index=0)
    plan = StepPlan(number=1, rows=(row,), waits={"blocks": 3}, predicted_ms=30.0)
    return StepReport(plan, StepResult(number=1, run_ms=16.0, copy_ms=4.0), StepOutcome(), ())


def test_a_step_and_its_events_are_counted() -> None:
    metrics = Metrics(ABOUT)
    metrics.took([lease()])
    metrics.turned(report(PREEMPTED, RESUMED, FINISHED, step=step(), output=2))
    metrics.lost(["job"])
    shown = generate_latest(metrics.registry).decode()
    for line in (
        'fairlane_worker_tokens_total{kind="prefill",lane="latency"} 32.0',
        'fairlane_worker_tokens_total{kind="output",lane="latency"} 2.0',
        'fairlane_worker_preemptions_total{mode="swap"} 1.0',
        'fairlane_worker_preempted_blocks_total{mode="swap"} 3.0',
        "fairlane_worker_stall_seconds_sum 0.25",
        'fairlane_worker_kv_blocks{pool="device",state="used"} 4.0',
        'fairlane_worker_kv_blocks{pool="host",state="free"} 12.0',
        'fairlane_worker_sequences{lane="latency",state="running"} 2.0',
        'fairlane_worker_kv_usage_ratio{pool="device"} 0.0625',
        'fairlane_worker_kv_usage_ratio{pool="host"} 0.25',
        "fairlane_worker_requests_running 2.0",
        "fairlane_worker_requests_waiting 1.0",
        'fairlane_worker_cache_config_info{block_size="16",num_gpu_blocks="64"} 1.0',
        "fairlane_worker_step_seconds_sum 0.02",
        "fairlane_worker_step_predicted_seconds_sum 0.03",
        "fairlane_worker_batch_rows_sum 1.0",
        'fairlane_worker_waits{reason="blocks"} 3.0',
        'fairlane_worker_waits{reason="slots"} 0.0',
        'fairlane_worker_jobs_taken_total{lane="latency"} 1.0',
        'fairlane_worker_jobs_ended_total{outcome="finished"} 1.0',
        "fairlane_worker_jobs_lost_total 1.0",
        "fairlane_worker_prefix_hits_total 1.0",
        "fairlane_worker_prefix_tokens_total 16.0",
        "fairlane_worker_prefix_blocks 9.0",
    ):
        assert line in shown


def test_metrics_say_their_units_and_not_when_counting_began() -> None:
    metrics = Metrics(ABOUT)
    metrics.turned(report(PREEMPTED, step=step(), output=2))
    shown = generate_latest(metrics.registry).decode()
    assert "_created" not in shown
    assert 'fairlane_worker_build_info{engine="own",model="tiny",' in shown
    assert "process_cpu_seconds_total" in shown
    for family in metrics.registry.collect():
        if family.name.startswith("fairlane"):
            units = {"_seconds": "in seconds", "_ratio": "ratio", "_info": "as labels"}
            unit = next((unit for ending, unit in units.items() if family.name.endswith(ending)), "Number of")
            assert family.documentation.endswith(".")
            assert unit in family.documentation, family.name


def test_the_heartbeats_rates_follow_the_steps() -> None:
    now_s, costs = 0.0, CostModel()
    heartbeat = Heartbeat(ABOUT, costs, clock=lambda: now_s)
    for number in range(1_000):  # 2 tokens each 20 ms
        now_s += 0.02
        heartbeat.turned(report(step=step(), output=2))
        if number in (50, 999):  # after a second as after twenty
            assert heartbeat.status(draining=False).tokens_per_s["latency"] == pytest.approx(100.0, rel=0.05)
    status = heartbeat.status(draining=True)
    assert status.step_ms == pytest.approx(20.0)
    assert status.prefill_tokens_per_s == pytest.approx(2_000.0)
    assert status.step_weights == ()
    for _ in range(LEARNT_AFTER):
        costs.observe(StepFeatures(1, 0, 0, 0), 20.0, 0, 0.0)
    assert heartbeat.status(draining=False).step_weights == costs.step_weights()
    assert (status.draining, status.blocks_free, status.running) == (True, 60, {"latency": 2})
    now_s += 100.0
    assert heartbeat.status(draining=False).tokens_per_s["latency"] < 0.1
