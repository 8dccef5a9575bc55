"""How full a worker is: what it could start next, by lane, and how many sequences stand where."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.blocks import BlockPool
from scheduler.costs import CostModel
from scheduler.lanes import Lane, LaneName
from scheduler.sequence import Sequence, State
from scheduler.steps import Capacity

PREEMPTED = frozenset({State.SWAPPED, State.DROPPED})


@dataclass(frozen=True, slots=True)
class Counts:
    """Sequences by lane, as `WorkerStatus` reports them."""

    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    """Taken but not running: fresh, preempted or paused."""
    preempted: dict[str, int] = field(default_factory=dict)


def count(sequences: Iterable[Sequence], lanes: Iterable[LaneName]) -> Counts:
    """Where the sequences stand, with a figure for every lane."""
    counts = Counts(*({lane.value: 0 for lane in lanes} for _ in range(3)))
    standing = Counter([(seq.job.lane, seq.state, seq.stalled_since_ms is None) for seq in sequences])
    for (lane, state, undisturbed), number in standing.items():
        computes = state in (State.PREFILL, State.DECODE)
        runs = computes and undisturbed
        (counts.running if runs else counts.waiting)[lane] += number
        if state in PREEMPTED or (computes and not runs):
            counts.preempted[lane] += number
    return counts


def measure(
    sequences: Iterable[Sequence], lanes: Mapping[LaneName, Lane], pool: BlockPool, max_sequences: int, costs: CostModel
) -> Capacity:
    """What each lane could start in the next step: what is free or held by lanes below, less what work of its own
    lane and above has yet to take, and one block for each of those to grow."""
    held: dict[LaneName, list[Sequence]] = {name: [] for name in lanes}
    for seq in sequences:
        held[seq.job.lane].append(seq)
    runnable = {name: [seq for seq in held[name] if seq.is_runnable] for name in lanes}
    rows = {name: len(runnable[name]) for name in lanes}
    wanted = {name: sum([_wanted(seq, pool.block_size) for seq in runnable[name]]) for name in lanes}
    free_rows: dict[str, int] = {}
    free_tokens: dict[str, int] = {}
    for name, lane in lanes.items():
        above = [other for other in lanes if lanes[other].rank <= lane.rank]
        below = [seq.table for other in lanes if lanes[other].rank > lane.rank for seq in held[other]]
        free_rows[name] = max(0, max_sequences - sum(rows[other] for other in above))
        free = pool.free_blocks + pool.freed_by(below) - sum(wanted[other] for other in above)
        free_tokens[name] = max(0, free) * pool.block_size
    return Capacity(free_rows, free_tokens, costs.prefill_ms()[0] if costs.has_learnt else 0.0)


def _wanted(seq: Sequence, block_size: int) -> int:
    """Blocks that it lacks for its tokens and one more; one to grow by at least."""
    return max(1, 1 - (-seq.length // block_size) - len(seq.table))
