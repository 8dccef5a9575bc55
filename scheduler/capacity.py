"""How full a worker is: what it could start next, by lane, and how many sequences stand where."""

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
    for seq in sequences:
        computes = seq.state in (State.PREFILL, State.DECODE)
        runs = computes and seq.stalled_since_ms is None
        (counts.running if runs else counts.waiting)[seq.job.lane] += 1
        counts.preempted[seq.job.lane] += seq.state in PREEMPTED or (computes and not runs)
    return counts


def measure(
    sequences: list[Sequence], lanes: Mapping[LaneName, Lane], pool: BlockPool, max_sequences: int, costs: CostModel
) -> Capacity:
    """What each lane could start in the next step: what is free or held by lanes below, less what work of its own
    lane and above has yet to take, and one block for each of those to grow."""
    return Capacity(
        sequences={name: _free_rows(sequences, lane, lanes, max_sequences) for name, lane in lanes.items()},
        kv_tokens={name: _free_blocks(sequences, lane, lanes, pool) * pool.block_size for name, lane in lanes.items()},
        prefill_ms=costs.prefill_ms()[0] if costs.has_learnt else 0.0,
    )


def _free_rows(sequences: list[Sequence], lane: Lane, lanes: Mapping[LaneName, Lane], max_sequences: int) -> int:
    ahead = sum(seq.is_runnable and lanes[seq.job.lane].rank <= lane.rank for seq in sequences)
    return max(0, max_sequences - ahead)


def _free_blocks(sequences: list[Sequence], lane: Lane, lanes: Mapping[LaneName, Lane], pool: BlockPool) -> int:
    ahead = [seq for seq in sequences if lanes[seq.job.lane].rank <= lane.rank]
    below = [seq.table for seq in sequences if lanes[seq.job.lane].rank > lane.rank]
    wanted = sum(max(1, 1 + pool.blocks_for(seq.length) - len(seq.table)) for seq in ahead if seq.is_runnable)
    return max(0, pool.free_blocks + pool.freed_by(below) - wanted)
