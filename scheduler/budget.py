"""What one step may hold: rows, tokens, a pace that decodes of the first lane can bear, and each lane's own share."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.costs import CostModel
from scheduler.lanes import Lane, LaneName
from scheduler.roster import PROMOTION_AGE
from scheduler.sequence import Sequence, State
from scheduler.steps import StepFeatures

LEAST_PREFILL_PART = 8
"""However tight the pace of decodes, a step may prefill this fraction of its tokens: 1 / 8."""


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
    context: int = 0
    """KV tokens that the decodes attend to."""
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
            found.context += seq.num_computed + 1
            found.resident[job.lane] += 1
            if job.lane is first and job.tpot_ms < found.pace_ms:
                found.pace_ms = job.tpot_ms
        else:
            found.others.append(seq)
            found.resident[job.lane] += seq.is_resident
    return found


class Budget(NamedTuple):
    """Limits of one step."""

    rows: int
    """Sequences: the batch's slots. A sequence without one keeps its KV blocks and waits."""
    tokens: int
    prefill_tokens: int
    """Of `tokens`, those that rows of more than one may use."""
    floors: Mapping[LaneName, int]
    """Rows that are a lane's own: its share floor, as far as it has work that runs; never the whole step."""


def step_budget(
    begun: Survey, lanes: Mapping[LaneName, Lane], costs: CostModel, max_sequences: int, max_tokens: int
) -> Budget:
    """The budget of a step for which this work has begun."""
    most = min(max_sequences, max_tokens)
    return Budget(
        rows=max_sequences,
        tokens=max_tokens,
        prefill_tokens=_prefill_tokens(begun, lanes, costs, max_tokens),
        floors={
            name: min(int(lane.share_floor * most), most - 1, begun.resident[name]) for name, lane in lanes.items()
        },
    )


def _prefill_tokens(begun: Survey, lanes: Mapping[LaneName, Lane], costs: CostModel, max_tokens: int) -> int:
    """Prefill that leaves decodes of the first lane the pace that they were promised, once step times are learnt."""
    if begun.pace_ms == math.inf:
        return max_tokens
    decodes = sum(map(len, begun.decodes.values()))
    within = costs.prefill_tokens_within(begun.pace_ms, StepFeatures(decodes, 0, begun.context, 0))
    return max_tokens if within is None else max(1, max_tokens // LEAST_PREFILL_PART, within)
