"""What one step may hold: rows, tokens, time that decodes of the first lane can bear, and each lane's own share."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.costs import CostModel
from scheduler.lanes import Lane, LaneName
from scheduler.roster import PROMOTION_AGE
from scheduler.sequence import Sequence, State

LEAST_PREFILL_PART = 8
"""However tight the pace of decodes, a step may prefill this fraction of its tokens for the first lane: 1 / 8."""
TRICKLE_PART = 64
"""The same for the lanes below, which are to go on but not to hold up anybody: 1 / 64."""


Kind = tuple[LaneName, str, bool, bool]
"""What decodes that stand in one group have in common: lane, tenant, guaranteed, promoted."""


@dataclass(slots=True)
class Survey:
    """What has begun, in one pass: hundreds of decodes, and a few others."""

    decodes: dict[Kind, list[Sequence]] = field(default_factory=dict)
    others: list[Sequence] = field(default_factory=list)
    """Prefills in progress, and what is to be resumed."""
    resident: Counter[LaneName] = field(default_factory=Counter)
    """Sequences whose KV is on the device, by lane."""
    pace_ms: float = math.inf
    """The tightest TPOT of decodes of the first lane."""


def survey(begun: Iterable[Sequence], lanes: Mapping[LaneName, Lane], now_ms: float) -> Survey:
    """Look at everything that has begun."""
    found = Survey()
    promoted_before = {name: now_ms - PROMOTION_AGE * lane.max_wait_ms for name, lane in lanes.items()}
    first = next(name for name, lane in lanes.items() if lane.rank == 0)
    for seq in begun:
        job = seq.job
        if seq.state is State.DECODE:
            kind = (job.lane, job.tenant, job.guaranteed, seq.arrived_ms < promoted_before[job.lane])
            alike = found.decodes.get(kind)
            if alike is None:
                found.decodes[kind] = [seq]
            else:
                alike.append(seq)
            found.resident[job.lane] += 1
            if job.lane is first and job.tpot_ms < found.pace_ms:
                found.pace_ms = job.tpot_ms
        else:
            found.others.append(seq)
            found.resident[job.lane] += seq.is_resident
    return found


class Price(NamedTuple):
    """What a row adds to a step, in milliseconds per unit of each of `StepFeatures`."""

    row: float
    token: float
    context: float
    pair: float

    def of(self, tokens: int, context: int) -> float:
        """A row that computes so many tokens and ends at this context length."""
        if tokens == 1:
            return self.row + self.context * context
        return self.row + tokens * (self.token + self.pair * context)


class Budget(NamedTuple):
    """Limits of one step."""

    rows: int
    """Sequences: the batch's slots. A sequence without one keeps its KV blocks and waits."""
    tokens: int
    least_prefill: int
    """Prefill tokens of the first lane that a step may have however tight its time."""
    trickle: int
    """The same for the lanes below."""
    floors: Mapping[LaneName, int]
    """Rows that are a lane's own: its share floor, as far as it has work that runs; never the whole step."""
    time_ms: float
    """What the rows may take together: the pace of first-lane decodes, less what a step takes anyway."""
    price: Price


def step_budget(
    begun: Survey, lanes: Mapping[LaneName, Lane], costs: CostModel, max_sequences: int, max_tokens: int
) -> Budget:
    """The budget of a step for which this work has begun. Time is no limit before step times are learnt."""
    most = min(max_sequences, max_tokens)
    base_ms, *price = costs.step_weights()
    return Budget(
        rows=max_sequences,
        tokens=max_tokens,
        least_prefill=max(1, max_tokens // LEAST_PREFILL_PART),
        trickle=max(1, max_tokens // TRICKLE_PART),
        floors={
            name: min(int(lane.share_floor * most), most - 1, begun.resident[name]) for name, lane in lanes.items()
        },
        time_ms=begun.pace_ms - base_ms if costs.has_learnt else math.inf,
        price=Price(*price),
    )
