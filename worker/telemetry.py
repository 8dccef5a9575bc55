"""All metrics of the worker. Labels come from closed sets; no metric holds a prompt, completion or key."""

import logging
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from operator import sub

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from fairlane.common.otlp_metrics import exported_over_otlp
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import Row, SeqId, StepFeatures, StepPlan, WaitReason, Yield, features
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import (
    Event,
    Finished,
    Lease,
    Outcome,
    Preempted,
    PreemptionMode,
    Resumed,
    WorkerStatus,
    YieldMode,
)
from fairlane.worker.engine.engine import StepReport
from fairlane.worker.reports import EngineObserver, Report

SERVICE = "fairlane-worker"
VERSION = metadata.version("fairlane")
CLOSE_S = 2.0
_STEP_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_STALL_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_RATIO = (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)

_MODES: tuple[PreemptionMode, ...] = ("keep", "swap", "recompute")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """One completed preemption."""

    mode: PreemptionMode
    predicted_ms: float
    actual_ms: float

    @property
    def ratio(self) -> float:
        return self.actual_ms / self.predicted_ms


@dataclass(slots=True)
class _Preemption:
    mode: YieldMode
    first: int
    # The range of tokens whose KV is gone.
    end: int
    predicted_ms: float
    actual_ms: float = 0.0


class PreemptionCosts(EngineObserver):
    """Compares the expected and the actual cost of each preemption; `on_found` receives each completed one.

    A swap costs its share of the copies out and in. A recompute costs the share of its steps' time that the cost model
    attributes to recomputed tokens."""

    def __init__(self, costs: CostModel, block_size: int, on_found: Callable[[PreemptionCost], None]) -> None:
        self._costs = costs
        self._block_size = block_size
        self._on_found = on_found
        self._preempted: dict[SeqId, _Preemption] = {}

    def lost(self, job_ids: Iterable[str]) -> None:
        self._leave(job_ids)

    def turned(self, report: Report) -> None:
        if report.step is not None:
            self.stepped(report.step)

    def stepped(self, step: StepReport) -> None:
        plan = step.plan
        copy_ms = step.result.copy_ms / max(1, plan.copies)
        for one in plan.yields:
            self._yielded(one, copy_ms)
        if not self._preempted:
            return
        for event in plan.events:
            if isinstance(event, Resumed):
                self._resumed(SeqId(event.job_id, event.choice), copy_ms)
        for row in plan.rows:
            self._recomputed(row, plan, step.result.run_ms)
        self._leave(ended.job_id for ended in step.outcome.ended)

    def _yielded(self, one: Yield, copy_ms: float) -> None:
        # A sequence that yielded by the other mode before starts again: one mode is compared at a time.
        preempted = self._preempted.get(one.seq)
        if preempted is None or preempted.mode != one.mode:
            preempted = self._preempted[one.seq] = _Preemption(one.mode, one.first, one.end, 0.0)
        preempted.first, preempted.end = min(preempted.first, one.first), max(preempted.end, one.end)
        preempted.predicted_ms += one.predicted_ms
        if one.mode == "swap":
            preempted.actual_ms += copy_ms * one.copied

    def _resumed(self, seq: SeqId, copy_ms: float) -> None:
        preempted = self._preempted.get(seq)
        if preempted is not None and preempted.mode == "swap":
            blocks = -(-preempted.end // self._block_size) - preempted.first // self._block_size
            preempted.actual_ms += copy_ms * blocks
            self._completed(seq)

    def _recomputed(self, row: Row, plan: StepPlan, run_ms: float) -> None:
        preempted = self._preempted.get(row.seq)
        if preempted is None or preempted.mode != "recompute":
            return
        whole_ms = self._costs.step_ms(plan.features)
        others = StepFeatures(*map(sub, plan.features, features([row])))
        others_ms = self._costs.step_ms(
            others._replace(rows=others.rows + row.samples)
        )  # it would have a row in any case
        again = max(0, min(row.context_length, preempted.end) - row.first_position) / len(row.token_ids)
        preempted.actual_ms += run_ms * again * (whole_ms - others_ms) / max(whole_ms, 1e-9)
        if row.samples or row.context_length >= preempted.end:
            self._completed(row.seq)

    def _completed(self, seq: SeqId) -> None:
        preempted = self._preempted.pop(seq)
        if preempted.predicted_ms > 0.0:
            self._on_found(PreemptionCost(preempted.mode, preempted.predicted_ms, preempted.actual_ms))

    def _leave(self, job_ids: Iterable[str]) -> None:
        gone = set(job_ids)
        for seq in [seq for seq in self._preempted if seq.job_id in gone]:
            del self._preempted[seq]


class Metrics(EngineObserver):
    """A worker's metrics. Inference gateways route by the waiting and running requests, `kv_usage_ratio` and cache
    config."""

    def __init__(self, about: WorkerStatus, *, engine: str = "own") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._about = about
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._add_step_metrics(gauge, counter, histogram)
        self._add_kv_metrics(gauge, counter)
        self._add_job_metrics(counter, histogram)
        build = gauge(
            "fairlane_worker_build_info",
            "1, with the version of Fairlane and of Python, the model and the engine as labels.",
            ["version", "python", "model", "engine"],
        )
        build.labels(VERSION, platform.python_version(), about.model, engine).set(1)
        self._begin_at_zero()

    def exported_over_otlp(self, environ: Mapping[str, str]) -> AbstractContextManager[None]:
        return exported_over_otlp(
            self.registry, environ, service=SERVICE, version=VERSION, instance=self._about.worker_id
        )

    def _begin_at_zero(self) -> None:
        # Create all possible series: `rate` would miss a series' first increase.
        for mode in _MODES:
            for of_modes in (self.preemptions, self.preempted_blocks, self.preemption_cost):
                of_modes.labels(mode)
        for outcome in Outcome:
            self.ended.labels(outcome)
        for lane in LaneName:
            self.taken.labels(lane)
            for kind in ("prefill", "output"):
                self.tokens.labels(lane, kind)

    def _add_step_metrics(
        self, gauge: "partial[Gauge]", counter: "partial[Counter]", histogram: "partial[Histogram]"
    ) -> None:
        self.step = histogram("fairlane_worker_step_seconds", "Time of a step, in seconds.", buckets=_STEP_S)
        self.predicted = histogram(
            "fairlane_worker_step_predicted_seconds",
            "Time that the cost model expected a step to take, in seconds.",
            buckets=_STEP_S,
        )
        self.copies = counter(
            "fairlane_worker_copy_seconds", "Time that copies of KV blocks kept steps waiting, in seconds."
        )
        self.rows = histogram("fairlane_worker_batch_rows", "Number of sequences in a step.", buckets=_ROWS)
        self.tokens = counter(
            "fairlane_worker_tokens", "Number of tokens computed; `kind` is prefill or output.", ["lane", "kind"]
        )
        self.sequences = gauge(
            "fairlane_worker_sequences", "Number of sequences in the worker by lane and state.", ["lane", "state"]
        )
        self.waiting = gauge("fairlane_worker_requests_waiting", "Number of sequences in the worker that do not run.")
        self.running = gauge("fairlane_worker_requests_running", "Number of sequences that run.")
        waits = gauge(
            "fairlane_worker_waits", "Number of sequences that the last step gave no row, by reason.", ["reason"]
        )
        self.waits = {reason: waits.labels(reason) for reason in WaitReason}

    def _add_kv_metrics(self, gauge: "partial[Gauge]", counter: "partial[Counter]") -> None:
        self.blocks = gauge("fairlane_worker_kv_blocks", "Number of KV blocks.", ["pool", "state"])
        self.kv_usage = gauge(
            "fairlane_worker_kv_usage_ratio",
            "Share of a pool's KV blocks that sequences hold, as a ratio from 0 to 1; "
            "blocks that are only cached count as free.",
            ["pool"],
        )
        config = gauge(
            "fairlane_worker_cache_config_info",
            "1, with the number of tokens in a KV block and the number of blocks on the device as labels.",
            ["block_size", "num_gpu_blocks"],
        )
        config.labels(str(self._about.block_size), str(self._about.blocks_total)).set(1)
        self.prefix_blocks = gauge(
            "fairlane_worker_prefix_blocks", "Number of KV blocks kept as cached prefixes; these are free, too."
        )
        self.prefix_hits = counter(
            "fairlane_worker_prefix_hits", "Number of jobs that ended and had a part of their prompt cached."
        )
        self.prefix_tokens = counter(
            "fairlane_worker_prefix_tokens", "Number of prompt tokens of ended jobs that were cached."
        )
        self.audits = counter(
            "fairlane_worker_kv_audits", "Number of idle audits that found every KV block accounted for."
        )

    def _add_job_metrics(self, counter: "partial[Counter]", histogram: "partial[Histogram]") -> None:
        self.preemptions = counter("fairlane_worker_preemptions", "Number of preemptions.", ["mode"])
        self.preempted_blocks = counter(
            "fairlane_worker_preempted_blocks", "Number of KV blocks that preemptions freed.", ["mode"]
        )
        self.stall = histogram(
            "fairlane_worker_stall_seconds", "Time from preempted to resumed, in seconds.", buckets=_STALL_S
        )
        self.preemption_cost = histogram(
            "fairlane_worker_preemption_cost_ratio",
            "Time that preemptions cost, as a ratio to what was expected.",
            ["mode"],
            buckets=_RATIO,
        )
        self.taken = counter("fairlane_worker_jobs_taken", "Number of jobs taken.", ["lane"])
        self.ended = counter("fairlane_worker_jobs_ended", "Number of jobs ended here.", ["outcome"])
        self.lost_jobs = counter("fairlane_worker_jobs_lost", "Number of jobs refused or returned to the queue.")

    def took(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self.taken.labels(lease.job.lane).inc()

    def preemption_found(self, cost: PreemptionCost) -> None:
        self.preemption_cost.labels(cost.mode).observe(cost.ratio)

    def lost(self, job_ids: Iterable[str]) -> None:
        self.lost_jobs.inc(len(list(job_ids)))

    def turned(self, report: Report) -> None:
        self.audits.inc(report.audited)
        load = report.load
        for state, by_lane in (("running", load.running), ("waiting", load.waiting), ("preempted", load.preempted)):
            for lane, count in by_lane.items():
                self.sequences.labels(lane, state).set(count)
        self.running.set(sum(load.running.values()))
        self.waiting.set(sum(load.waiting.values()))
        for pool, total, free in (
            ("device", self._about.blocks_total, load.blocks_free),
            ("host", self._about.host_slots_total, load.host_slots_free),
        ):
            self.blocks.labels(pool, "free").set(free)
            self.blocks.labels(pool, "used").set(total - free)
            self.kv_usage.labels(pool).set((total - free) / total if total else 0.0)
        self.prefix_blocks.set(load.blocks_cached)
        for publication in report.publications:
            self._count_events(publication.events)
        if report.step is not None and report.ran:
            self._stepped(report.step)
            for lane, tokens in report.tokens.items():
                self.tokens.labels(lane, "prefill").inc(tokens.prefill)
                self.tokens.labels(lane, "output").inc(tokens.output)

    def _stepped(self, step: StepReport) -> None:
        plan, result = step.plan, step.result
        self.step.observe((result.run_ms + result.copy_ms) / 1e3)
        self.predicted.observe(plan.predicted_ms / 1e3)
        self.copies.inc(result.copy_ms / 1e3)
        self.rows.observe(len(plan.rows))
        for reason, gauge in self.waits.items():
            gauge.set(plan.waits.get(reason, 0))

    def _count_events(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Preempted():
                    self.preemptions.labels(event.mode).inc()
                    self.preempted_blocks.labels(event.mode).inc(event.blocks)
                case Resumed():
                    self.stall.observe(event.stalled_ms / 1e3)
                case Finished():
                    self.ended.labels(event.outcome).inc()
                    self.prefix_hits.inc(event.cached_tokens > 0)
                    self.prefix_tokens.inc(event.cached_tokens)
