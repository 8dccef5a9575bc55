"""What one step may hold: rows, tokens, a pace that decodes of the first lane can bear, and each lane's own share."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.costs import CostModel
from scheduler.lanes import Lane, LaneName
from scheduler.sequence import Sequence, State
from scheduler.steps import StepFeatures

LEAST_PREFILL_PART = 8
"""However tight the pace of decodes, a step may prefill this fraction of its tokens: 1 / 8."""


class Budget(NamedTuple):
    """Limits of one step."""

    rows: int
    """Sequences: the batch's slots. A sequence without one keeps its KV blocks and waits."""
    tokens: int
    prefill_tokens: int
    """Of `tokens`, those that rows of more than one may use."""
    floors: Mapping[LaneName, int]
    """Rows that are a lane's own: its share floor, as far as it has work that runs."""


def step_budget(
    begun: Iterable[Sequence], lanes: Mapping[LaneName, Lane], costs: CostModel, max_sequences: int, max_tokens: int
) -> Budget:
    """The budget of a step for which this work has begun."""
    resident = [seq for seq in begun if seq.is_resident]
    return Budget(
        rows=max_sequences,
        tokens=max_tokens,
        prefill_tokens=_prefill_tokens(resident, lanes, costs, max_tokens),
        floors=_floors(resident, lanes, min(max_sequences, max_tokens)),
    )


def _prefill_tokens(resident: list[Sequence], lanes: Mapping[LaneName, Lane], costs: CostModel, max_tokens: int) -> int:
    """Prefill that leaves decodes of the first lane the pace that they were promised, once step times are learnt."""
    decodes = [seq for seq in resident if seq.state is State.DECODE]
    pace_ms = min((seq.job.tpot_ms for seq in decodes if lanes[seq.job.lane].rank == 0), default=None)
    if pace_ms is None:
        return max_tokens
    others = StepFeatures(len(decodes), 0, sum(seq.length for seq in decodes), 0)
    within = costs.prefill_tokens_within(pace_ms, others)
    return max_tokens if within is None else max(1, max_tokens // LEAST_PREFILL_PART, within)


def _floors(resident: list[Sequence], lanes: Mapping[LaneName, Lane], most: int) -> dict[LaneName, int]:
    """Each lane's share of the rows, as far as it has work that runs; never the whole step."""
    runs = [seq.job.lane for seq in resident]
    return {name: min(int(lane.share_floor * most), most - 1, runs.count(name)) for name, lane in lanes.items()}
