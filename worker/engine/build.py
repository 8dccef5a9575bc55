"""Builds our own engine (model, KV cache, planner and runner), and measures it before the first request.

Every step of the measurement copies blocks and then computes rows, so that the copies find the CPU caches as rows leave
them. The result decides the first choice between swap and recompute."""

import logging
import time
from collections.abc import Iterator, Mapping
from itertools import cycle

from fairlane.scheduler.planner.costs import CostModel, Measurement
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Copy, Row, SeqId, StepPlan, features
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Sampling
from fairlane.worker.config import WorkerSection
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache, size_pools
from fairlane.worker.model.cuda_graphs import with_graphs
from fairlane.worker.model.files import ModelFiles
from fairlane.worker.model.interface import Model
from fairlane.worker.model.select import load_fastest, precision

# Blocks copied ahead in a step: twice what 64 decodes fill at 16 tokens per block, and a fraction of what a link moves.
COPIES_AHEAD = 8

CALIBRATION_S = 0.2
# Blocks copied out and back, the largest number first, since the first use of memory is slow.
_COPIED = (32, 8, 1)
_REPEATS = 3
# Steps whose time is discarded: the first run of each shape allocates and compiles.
_UNCOUNTED = 2
_DECODES = 8
_CONTEXT = 32
_PREFILLS = (16, 64)

_CALIBRATION = "calibration"

_log = logging.getLogger(__name__)


def build_engine(
    files: ModelFiles,
    section: WorkerSection,
    lanes: Mapping[LaneName, Lane],
    costs: CostModel,
    grammars: Grammars | None,
) -> tuple[Engine, str]:
    """Load, verify and measure a model; return its engine and its precision. Raises ModelError or KVMemoryError."""
    model = load_fastest(files, dtype=section.dtype, device=section.device)
    cache = _make_cache(model, section)
    max_sequences, max_step_tokens = section.max_sequences, section.max_step_tokens
    planner = planner_for(
        cache,
        costs,
        lanes=lanes,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        prefix_share=section.prefix_share if section.prefix_cache else None,
    )
    runner = Runner(with_graphs(model, cache, max_sequences), cache, grammars=grammars)
    calibrate(runner, costs, max_sequences=max_sequences, max_step_tokens=max_step_tokens)
    return Engine(planner, runner), precision(model)


def _make_cache(model: Model, section: WorkerSection) -> KVCache:
    block_size = section.block_size
    blocks, host_slots = size_pools(
        model.shape.block_bytes(block_size),
        device=model.device,
        kv_bytes=section.kv_memory,
        host_bytes=section.host_kv_memory,
        most_blocks=section.max_sequences * -(-model.context_length // block_size),
    )
    _log.info("KV cache: %d blocks of %d tokens, %d host slots", blocks, block_size, host_slots)
    return KVCache(model.shape, blocks=blocks, host_slots=host_slots, block_size=block_size, device=model.device)


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
    """Return a planner for a cache's pools. By default a CPU copies no blocks ahead, since copies delay its steps."""
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
    """Measure an idle runner and initialise `costs` from the result. Does nothing if the pool is too small."""
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
    _log.info("measured %d steps in %.0f ms", len(found), took_ms)


def _measure(runner: Runner, lease: Lease, plan: StepPlan) -> Measurement:
    runner.register(lease)  # again, so that no choice has an output yet
    result = runner.run(plan)
    return Measurement(features(plan.rows), result.run_ms, plan.copies, result.copy_ms)


def _copies(cache: KVCache) -> Iterator[tuple[tuple[Copy, ...], tuple[Copy, ...]]]:
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
