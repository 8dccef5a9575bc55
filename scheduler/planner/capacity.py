"""Load of a worker: the work that it could start next, by lane, and its sequences by state."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.lane_floors import own_blocks
from fairlane.scheduler.planner.priority import CROWD
from fairlane.scheduler.planner.sequence import Sequence, State
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import Lane, LaneName

# Maximum number of newcomers that wait in a worker for others to yield. While a prompt in progress keeps them waiting,
# the worker may take as many more whose prompts are shorter than the rest of that prompt.
MAX_NEWCOMERS = 8
PREEMPTED = frozenset({State.SWAPPED, State.DROPPED})


@dataclass(frozen=True, slots=True)
class Counts:
    """Sequences by lane, as `WorkerStatus` reports them."""

    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    preempted: dict[str, int] = field(default_factory=dict)


def count_all(index: SequenceIndex) -> Counts:
    """Count all sequences of a worker."""
    decodes = [alike for _, alike in index.decodes.alike()]
    return count(chain(index.not_decoding(), *decodes), index.lanes)


def count(sequences: Iterable[Sequence], lanes: Iterable[LaneName]) -> Counts:
    """Count sequences by state, with an entry for every lane."""
    counts = Counts(*({lane.value: 0 for lane in lanes} for _ in range(3)))
    places = Counter([(seq.job.lane, seq.state, seq.stalled_since_ms is None) for seq in sequences])
    for (lane, state, undisturbed), number in places.items():
        computes = state in (State.PREFILL, State.DECODE)
        runs = computes and undisturbed
        (counts.running if runs else counts.waiting)[lane] += number
        if state in PREEMPTED or (computes and not runs):
            counts.preempted[lane] += number
    return counts


def measure(
    index: SequenceIndex, lanes: Mapping[LaneName, Lane], pool: BlockPool, max_sequences: int, costs: CostModel
) -> Capacity:
    """Return what each lane could start in the next step, and what its own work would yield.

    A lane could start what is free or held by lower lanes outside their share floors, minus what its own and higher
    work needs, with one block of growth for each sequence. If neither has work here, the lower lanes' floors do not
    count. A row whose next token is its last counts as free, so that the queue is asked for its successor in time."""
    size = pool.block_size
    tables: dict[LaneName, list[list[int]]] = {name: [] for name in lanes}
    idle: dict[LaneName, list[list[int]]] = {name: [] for name in lanes}
    rows, wanted = dict.fromkeys(lanes, 0), dict.fromkeys(lanes, 0)
    for name, decodes in index.decodes.alike():
        tables[name] += [seq.table for seq in decodes]
        rows[name] += len(decodes) - sum([seq.remaining == 1 for seq in decodes])
        wanted[name] += len(decodes) + sum([seq.num_computed >= len(seq.table) * size for seq in decodes])
    for seq in index.not_decoding():
        (tables if seq.is_runnable else idle)[seq.job.lane].append(seq.table)
        if seq.is_runnable:
            rows[seq.job.lane] += 1
            wanted[seq.job.lane] += _wanted(seq, size)
    used = {name: pool.freed_by(tables[name]) + wanted[name] for name in lanes}
    free_rows: dict[str, int] = {}
    free_tokens: dict[str, int] = {}
    yielding: dict[str, Yielding] = {}
    for name, lane in lanes.items():
        above = [other for other in lanes if lanes[other].rank < lane.rank]
        below = [other for other in lanes if lanes[other].rank > lane.rank]
        under = [table for other in below for table in (*tables[other], *idle[other])]
        left = max_sequences - sum([rows[other] for other in above])
        whole = blocks = pool.free_blocks - sum([wanted[other] for other in above])
        if any(rows[other] for other in (name, *above)):
            blocks -= sum([min(own_blocks(lanes[other], pool.blocks), used[other]) for other in below])
        own, own_kv = math.ceil(lane.share_floor * (max_sequences - 1)), own_blocks(lane, pool.blocks)
        free_rows[name] = max(0, max(left, own) - rows[name])
        free_tokens[name] = max(0, blocks + pool.freed_by(under) - wanted[name], own_kv - used[name]) * size
        if index.lanes[name].begun or index.lanes[name].waits:
            held = max(0, whole + pool.freed_by([*under, *tables[name], *idle[name]]), own_kv) * size
            yielding[name] = _yielding(index, name, max(left, own), held)
    return Capacity(
        free_rows,
        free_tokens,
        prefill_ms=costs.prefill_ms()[0] if costs.has_learnt else 0.0,
        max_sequences=max_sequences,
        pool_tokens=pool.blocks * size,
        yielding=yielding,
    )


def _yielding(index: SequenceIndex, name: LaneName, rows: int, kv_tokens: int) -> Yielding:
    """Return what the lane's work would yield to tenants with nothing or little here.

    Only the needs of waiting guaranteed work are subtracted: a waiting long prompt would otherwise block short ones.
    No jobs of tenants with little here are requested while many of them wait: they would take the newcomers' slots."""
    lane = index.lanes[name]
    lesser, promised = lane.lesser(), lane.guaranteed()
    if len(lesser.intersection(lane.waiting)) >= MAX_NEWCOMERS:
        lesser = set()
    jobs, shorter_than = _places(index, name)
    crowded = len(lane.begun) >= CROWD * rows
    return Yielding(
        begun=tuple(tenant for tenant in lane.begun if tenant not in lesser),
        waiting=tuple(lane.waiting),
        jobs=0 if crowded else jobs,
        sequences=max(0, rows - len(promised)),
        kv_tokens=max(0, kv_tokens - sum([seq.length + 1 for seq in promised])),
        shorter_than=shorter_than,
    )


def _places(index: SequenceIndex, name: LaneName) -> tuple[int, int]:
    """Return the number of newcomers that the lane has room for, and the exclusive bound of their prompt tokens
    (0: none).

    A prompt in progress without a token runs before newcomers' prompts that are no shorter than its remainder
    (`LaneOrder.is_outside`). Once all slots are taken, there are as many more for shorter prompts."""
    lane = index.lanes[name]
    free = MAX_NEWCOMERS - len([tenant for tenant in lane.waiting if tenant not in lane.begun])
    if free > 0:
        return free, 0
    others = [seq for seq in index.others.values() if seq.job.lane == name]
    left = [seq.pending for seq in others if not lane.has_token(seq.job.tenant)]
    return (max(0, free + MAX_NEWCOMERS), min(left)) if left else (0, 0)


def _wanted(seq: Sequence, block_size: int) -> int:
    return max(1, 1 - (-seq.length // block_size) - len(seq.table))
