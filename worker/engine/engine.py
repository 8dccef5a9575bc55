"""The engine: planner and runner in turns. One thread calls it; nothing in it waits for anything but the arithmetic.

`build_engine` measures what steps and copies take here, before the first request: the first choice between swap and
recompute rests on it. Every step of the measurement computes rows, and copies blocks first, so that the copies find the
caches as rows leave them. It uses blocks that nobody holds yet, and leaves no trace but KV in free ones.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import cycle

import msgspec
from llguidance import LLMatcher

from fairlane.scheduler.planner.costs import CostModel, Measurement
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Copy, Ended, Row, SeqId, StepOutcome, StepPlan, StepResult, features
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Event, Job, Lease, Outcome, Sampling, TokenDelta
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.engine.kv_cache import KVCache, size_pools
from fairlane.worker.engine.runner import Runner
from fairlane.worker.model.cuda_graphs import with_graphs
from fairlane.worker.model.files import ModelFiles
from fairlane.worker.model.interface import Model
from fairlane.worker.model.select import load_fastest, precision

COPIES_AHEAD = 8
"""Blocks copied ahead in a step: of 16 tokens, twice what 64 decodes fill, and a fraction of what a link moves."""

CALIBRATION_S = 0.2
"""No step of the measurement begins later."""
_COPIED = (32, 8, 1)
"""Blocks, each time out and back: the most first, since memory is slow when it is used for the first time."""
_REPEATS = 3
_UNCOUNTED = 2
"""Steps that come first: what runs for the first time allocates and compiles."""
_DECODES = 8
_CONTEXT = 32
"""KV tokens of each decode."""
_PREFILLS = (16, 64)
"""Tokens of each prefill."""

_CALIBRATION = "calibration"
"""The id of the job that the measurement's rows belong to."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step that was run: its plan, its result, and what is to be published of it."""

    plan: StepPlan
    result: StepResult
    outcome: StepOutcome
    epochs: tuple[int, ...] = ()
    """Under which each of the tokens in `outcome` was produced."""

    @property
    def events(self) -> list[Event]:
        """For the gateways, in order: what befell choices, then their new tokens. The ends are in `outcome`. Made when
        asked for: the engine's thread has a next step to run."""
        logprobs = self.result.logprobs
        events: list[Event] = [*self.plan.events]
        for produced, epoch in zip(self.outcome.produced, self.epochs, strict=True):
            job_id, choice = produced.seq
            delta = TokenDelta(
                job_id=job_id,
                epoch=epoch,
                choice=choice,
                first_index=produced.index,
                token_ids=(produced.token_id,),
                logprobs=(logprobs[produced.seq],) if produced.seq in logprobs else (),
                finish_reason=produced.finish_reason,
                cached_tokens=produced.cached_tokens,
            )
            events.append(delta)
        return events

    def __repr__(self) -> str:
        return f"StepReport({self.plan.number}, {len(self.plan.rows)} rows, {len(self.epochs)} tokens)"


@dataclass(slots=True)
class _Compiling:
    """A job whose grammar is being compiled."""

    lease: Lease
    came_ms: float
    matcher: Future[LLMatcher]

    def grant(self, granted_until: int) -> None:
        """As `Planner.grant`."""
        job = self.lease.job
        granted = msgspec.structs.replace(job, granted_until=max(granted_until, job.granted_until))
        self.lease = msgspec.structs.replace(self.lease, job=granted)


class Engine:
    """Continuous batching of leased jobs. Call `add` and its like between steps, from the thread that steps."""

    def __init__(self, planner: Planner, runner: Runner, *, precision: str = "") -> None:
        """`precision`: what its model computes in, in words."""
        self.precision = precision
        self.planner = planner
        self.runner = runner
        self.on_ready: Callable[[], None] = lambda: None
        """Called, by any thread, when a job that could not run at once can."""
        self._epochs: dict[str, int] = {}
        self._compiling: dict[str, _Compiling] = {}

    def add(self, lease: Lease, now_ms: float) -> None:
        """Take up a job; its tokens come out of later steps. One whose grammar has to be compiled waits for that, and
        nothing else does."""
        self._epochs[lease.job.job_id] = lease.epoch
        matcher = self.runner.prepare(lease.job)
        if matcher is None or matcher.done():
            self._start(lease, now_ms)
        else:
            self._compiling[lease.job.job_id] = _Compiling(lease, now_ms, matcher)
            matcher.add_done_callback(lambda _: self.on_ready())

    def _start(self, lease: Lease, now_ms: float) -> None:
        self.planner.add(lease, now_ms)
        self.runner.register(lease)

    def _start_compiled(self, now_ms: float) -> None:
        for waiting in [one for one in self._compiling.values() if one.matcher.done()]:
            lease = waiting.lease
            del self._compiling[lease.job.job_id]
            waited_ms = lease.arrived_ms_ago + now_ms - waiting.came_ms
            self._start(msgspec.structs.replace(lease, arrived_ms_ago=waited_ms), now_ms)

    def cancel(self, job_id: str) -> Ended | None:
        """End a job; its blocks are free at once. None if it is unknown."""
        if self._compiling.pop(job_id, None) is not None:
            self._forget(job_id)
            return Ended(job_id, Outcome.CANCELLED)
        ended = self.planner.cancel(job_id)
        if ended is not None:  # else it is unknown, or its end is yet to be told
            self._forget(job_id)
        return ended

    def grant(self, job_id: str, granted_until: int) -> None:
        """Let a job produce up to so many tokens per choice."""
        waiting = self._compiling.get(job_id)
        if waiting is not None:
            waiting.grant(granted_until)
        self.planner.grant(job_id, granted_until)

    def drop(self, job_id: str) -> None:
        """Forget a job that is no longer ours; nothing of it is reported."""
        self._compiling.pop(job_id, None)
        self.planner.drop(job_id)
        self._forget(job_id)

    @property
    def epochs(self) -> Mapping[str, int]:
        """The jobs in hand, the oldest first, and the epoch of each; a view."""
        return self._epochs

    @property
    def has_work(self) -> bool:
        """A further step would do something."""
        return self.planner.has_work or any(waiting.matcher.done() for waiting in self._compiling.values())

    def step(self, now_ms: float, on_forward: Callable[[], None] = lambda: None) -> StepReport:
        """Plan, run, learn, report. `now_ms` is the caller's clock at the start of the step; `on_forward` as of
        `Runner.run`."""
        self._start_compiled(now_ms)
        plan = self.planner.plan(now_ms)
        result = self.runner.run(plan, on_forward, self.planner.look_ahead)
        outcome = self.planner.apply(result, now_ms + result.copy_ms + result.run_ms)
        epochs = self._epochs
        report = StepReport(plan, result, outcome, tuple([epochs[one.seq.job_id] for one in outcome.produced]))
        if outcome.ended:
            self._forget(*(ended.job_id for ended in outcome.ended))
        return report

    def _forget(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self._epochs.pop(job_id, None)
            self.runner.forget(job_id)


def build_engine(
    files: ModelFiles,
    *,
    lanes: Mapping[LaneName, Lane],
    costs: CostModel | None = None,
    kv_bytes: int | None = None,
    host_kv_bytes: int | None = None,
    block_size: int = 16,
    max_sequences: int = 64,
    max_step_tokens: int = 512,
    prefix_share: float | None = None,
    dtype: str = "auto",
    device: str = "auto",
    grammars: Grammars | None = None,
) -> Engine:
    """Load, prove, wire up and measure everything for one model; `costs` learns from its steps. Without a
    `prefix_share` there is no prefix cache.

    Raises ModelError or KVMemoryError, each in one line.
    """
    model = load_fastest(files, dtype=dtype, device=device)
    cache = make_cache(model, kv_bytes, host_kv_bytes, block_size=block_size, max_sequences=max_sequences)
    costs = costs or CostModel()
    planner = planner_for(
        cache,
        costs,
        lanes=lanes,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        prefix_share=prefix_share,
    )
    runner = Runner(with_graphs(model, cache, max_sequences), cache, grammars=grammars)
    calibrate(runner, costs, max_sequences=max_sequences, max_step_tokens=max_step_tokens)
    return Engine(planner, runner, precision=precision(model))


def make_cache(
    model: Model, kv_bytes: int | None, host_kv_bytes: int | None, *, block_size: int, max_sequences: int
) -> KVCache:
    """Both pools, as large as set or as fits. Raises KVMemoryError."""
    sizes = size_pools(
        model.shape.block_bytes(block_size),
        device=model.device,
        kv_bytes=kv_bytes,
        host_bytes=host_kv_bytes,
        most_blocks=max_sequences * -(-model.context_length // block_size),
    )
    _log.info("KV cache: %d blocks of %d tokens, %d host slots", sizes.blocks, block_size, sizes.host_slots)
    return KVCache(
        model.shape, blocks=sizes.blocks, host_slots=sizes.host_slots, block_size=block_size, device=model.device
    )


def planner_for(
    cache: KVCache,
    costs: CostModel,
    *,
    max_sequences: int,
    max_step_tokens: int = 512,
    lanes: Mapping[LaneName, Lane] = DEFAULT_LANES,
    prefix_share: float | None = None,
    copies_ahead: int | None = None,
) -> Planner:
    """A planner that knows a cache's pools, and of `costs` what its blocks weigh. `copies_ahead`: see Planner; None:
    none on a CPU, where a copy takes its time from the step."""
    if copies_ahead is None:
        copies_ahead = 0 if cache.device.type == "cpu" else COPIES_AHEAD
    return Planner(
        lanes=lanes,
        block_size=cache.block_size,
        blocks=cache.blocks,
        host_slots=cache.host_slots,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        costs=costs,
        bytes_per_block=cache.shape.block_bytes(cache.block_size),
        prefix_share=prefix_share,
        copies_ahead=copies_ahead,
    )


def calibrate(runner: Runner, costs: CostModel, *, max_sequences: int, max_step_tokens: int) -> None:
    """Measure on an idle runner and let `costs` start from that; with a pool too small for it, do nothing."""
    cache, decodes = runner.cache, min(_DECODES, max_sequences, max_step_tokens)
    short, long = (min(tokens, max_step_tokens) for tokens in _PREFILLS)
    width = -(-max(_CONTEXT, long) // cache.block_size)
    if cache.blocks < decodes * width:
        return
    tables = [tuple(range(choice * width, (choice + 1) * width)) for choice in range(decodes)]
    shapes = [_decodes(tables, cache), _prefill(short, cache), _decodes(tables[:1], cache), _prefill(long, cache)]
    lease = _lease(decodes)
    steps = [StepPlan(0, rows, *copies) for copies, rows in zip(_copies(cache), cycle(shapes), strict=False)]
    for plan in steps[:_UNCOUNTED]:
        _measure(runner, lease, plan)
    began, found = time.perf_counter(), list[Measurement]()
    for plan in steps[_UNCOUNTED:]:
        if time.perf_counter() - began > CALIBRATION_S:
            break
        found.append(_measure(runner, lease, plan))
    runner.forget(_CALIBRATION)
    costs.start_from(found)
    took_ms = (time.perf_counter() - began) * 1e3
    _log.info("measured what %d steps take, in %.0f ms", len(found), took_ms)


def _measure(runner: Runner, lease: Lease, plan: StepPlan) -> Measurement:
    runner.register(lease)  # anew: no choice has an output yet
    result = runner.run(plan)
    return Measurement(features(plan.rows), result.run_ms, plan.copies, result.copy_ms)


def _copies(cache: KVCache) -> Iterator[tuple[tuple[Copy, ...], tuple[Copy, ...]]]:
    """Of each step, out and back."""
    for count in _COPIED * _REPEATS:
        same = tuple(Copy(block, block) for block in range(min(count, cache.blocks, cache.host_slots)))
        yield same, ()
        yield (), same


def _decodes(tables: list[tuple[int, ...]], cache: KVCache) -> tuple[Row, ...]:
    held = -(-_CONTEXT // cache.block_size)
    return tuple(
        Row(SeqId(_CALIBRATION, choice), (0,), _CONTEXT - 1, table[:held], samples=True, output_index=0)
        for choice, table in enumerate(tables)
    )


def _prefill(tokens: int, cache: KVCache) -> tuple[Row, ...]:
    table = tuple(range(-(-tokens // cache.block_size)))
    return (Row(SeqId(_CALIBRATION, 0), (0,) * tokens, 0, table, samples=True, output_index=0),)


def _lease(choices: int) -> Lease:
    job = Job(
        job_id=_CALIBRATION,
        gateway_id="",
        tenant="",
        lane=LaneName.THROUGHPUT,
        prompt=(0,),
        n=choices,
        max_tokens=1,
        granted_until=1,
        sampling=Sampling(temperature=0.0),
        ttft_ms=0.0,
        tpot_ms=0.0,
    )
    return Lease(job=job, epoch=0, arrived_ms_ago=0.0)
