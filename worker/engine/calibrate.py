"""What steps and copies take here, measured before the first request: the first choice of a victim rests on it.

Every step of the measurement computes rows, and copies blocks first: the copies find the caches as rows leave them. It
uses blocks that nobody holds yet, and leaves no trace but KV in free ones.
"""

import logging
import time
from collections.abc import Iterator
from itertools import cycle

from fairlane.scheduler.planner.costs import CostModel, Measurement
from fairlane.scheduler.planner.steps import Copy, Row, SeqId, StepPlan, features
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Sampling
from fairlane.worker.engine.kv_cache import KVCache
from fairlane.worker.engine.runner import Runner

LIMIT_S = 0.2
"""No step of the measurement begins later."""
COPIED = (32, 8, 1)
"""Blocks, each time out and back: the most first, since memory is slow when it is used for the first time."""
REPEATS = 3
UNCOUNTED = 2
"""Steps: what runs for the first time allocates and compiles."""
DECODES = 8
CONTEXT = 32
"""KV tokens of each decode."""
PREFILLS = (16, 64)
"""Tokens."""

_FLIGHT = "calibration"
_log = logging.getLogger(__name__)


def calibrate(runner: Runner, costs: CostModel, *, max_sequences: int, max_step_tokens: int) -> None:
    """Measure on an idle runner and let `costs` start from that; not with a pool too small for it."""
    cache, decodes = runner.cache, min(DECODES, max_sequences, max_step_tokens)
    short, long = (min(tokens, max_step_tokens) for tokens in PREFILLS)
    width = -(-max(CONTEXT, long) // cache.block_size)
    if cache.blocks < decodes * width:
        return
    tables = [tuple(range(choice * width, (choice + 1) * width)) for choice in range(decodes)]
    shapes = [_decodes(tables, cache), _prefill(short, cache), _decodes(tables[:1], cache), _prefill(long, cache)]
    lease = _lease(decodes)
    steps = [StepPlan(0, rows, *copies) for copies, rows in zip(_copies(cache), cycle(shapes), strict=False)]
    for plan in steps[:UNCOUNTED]:
        _measure(runner, lease, plan)
    began, found = time.perf_counter(), list[Measurement]()
    for plan in steps[UNCOUNTED:]:
        if time.perf_counter() - began > LIMIT_S:
            break
        found.append(_measure(runner, lease, plan))
    runner.forget(_FLIGHT)
    costs.start_from(found)
    took_ms = (time.perf_counter() - began) * 1e3
    _log.info("measured what %d steps take, in %.0f ms", len(found), took_ms)


def _measure(runner: Runner, lease: Lease, plan: StepPlan) -> Measurement:
    runner.register(lease)  # anew: no choice has an output yet
    result = runner.run(plan)
    return Measurement(features(plan.rows), result.run_ms, plan.copies, result.copy_ms)


def _copies(cache: KVCache) -> Iterator[tuple[tuple[Copy, ...], tuple[Copy, ...]]]:
    """Of each step, out and back."""
    for count in COPIED * REPEATS:
        same = tuple(Copy(block, block) for block in range(min(count, cache.blocks, cache.host_slots)))
        yield same, ()
        yield (), same


def _decodes(tables: list[tuple[int, ...]], cache: KVCache) -> tuple[Row, ...]:
    held = -(-CONTEXT // cache.block_size)
    return tuple(
        Row(SeqId(_FLIGHT, choice), (0,), CONTEXT - 1, table[:held], samples=True, output_index=0)
        for choice, table in enumerate(tables)
    )


def _prefill(tokens: int, cache: KVCache) -> tuple[Row, ...]:
    table = tuple(range(-(-tokens // cache.block_size)))
    return (Row(SeqId(_FLIGHT, 0), (0,) * tokens, 0, table, samples=True, output_index=0),)


def _lease(choices: int) -> Lease:
    job = Job(
        job_id=_FLIGHT,
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
