"""What one step may hold: rows, tokens, time that decodes of the first lane can bear, and each lane's own share."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.sequence import Kind, Sequence
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.protocol.lanes import Lane, LaneName

LEAST_PREFILL_PART, LEAST_PREFILL = 32, 64
"""However tight the pace of decodes, a step may prefill this fraction of its tokens for the first lane, 1 / 32, or so
many tokens."""
STRETCH = 1.1
"""How much longer than the pace of first-lane decodes a step may take for lower lanes, while all are ahead enough."""
PROMPT_PART = 0.1
"""Of the first lane's target for the first token, what a step takes that computes its prompts, none of its decodes."""
HOLD, LEAST_HOLD = 2.0, 0.5
"""Of its target between tokens, what lower lanes' steps take while they run alone; and their prefills at the least."""
CATCHING_UP = 0.9
"""Of its pace, what a token may take of a stream that is behind it."""
LEAST_PACE = 0.5
"""Of its pace, what a token may take however little time there is."""
KEPT_BACK = 0.25
"""Of its pace, what a stream keeps of the time by which it is ahead."""
TRICKLE_PART = 64
"""And this fraction for the lanes below together, which are to go on but not to hold up anybody: 1 / 64, but no more
than their share floors of what the first lane may prefill at its pace; where it prefills more, those of that."""


class Survey(NamedTuple):
    """What has begun: hundreds of decodes, and a few others."""

    decodes: dict[Kind, tuple[Sequence, ...]]
    others: list[Sequence]
    """Prefills in progress, and what is to be resumed."""
    decoding: Counter[LaneName]
    claims: Counter[LaneName]
    """Rows that a lane could use: for the sequences whose KV is on the device, and for one that waits."""
    pace_ms: float
    """The tightest TPOT of decodes of the first lane."""
    slack_ms: float
    """The least time that a decode of the first lane can wait for its next token, as its reader sees its pace."""
    patience_ms: float
    """The same, as its envelope has it: what prompts of its own lane may use."""
    first_waits: bool
    """Work of the first lane is on its way to its first token, or to its next after a preemption."""


def survey(index: SequenceIndex, now_ms: float) -> Survey:
    """Look at everything that has begun."""
    first = next(name for name, one in index.lanes.items() if one.lane.rank == 0)
    decodes, counts, others = index.decodes.by_kind(now_ms), index.decodes.counts, [*index.others.values()]
    claims = Counter({name: counts[name] + one.waits for name, one in index.lanes.items()})
    for seq in others:
        claims[seq.job.lane] += seq.is_resident
    urgent = [seq for kind, alike in decodes.items() if kind[0] is first for seq in alike]
    pace_ms, slack_ms, patience_ms = pressure(urgent, now_ms)
    return Survey(
        decodes=decodes,
        others=others,
        decoding=counts,
        claims=claims,
        pace_ms=pace_ms,
        slack_ms=slack_ms,
        patience_ms=patience_ms,
        first_waits=index.lanes[first].waits or any(seq.job.lane is first for seq in others),
    )


def pressure(decodes: Iterable[Sequence], now_ms: float) -> tuple[float, float, float]:
    """Of decodes of the first lane the tightest pace; the least time that one can wait for its next token; and the
    least that one can wait for the sake of its own lane's prompts. One loop without calls: each step asks of hundreds.

    Each token is to come at its pace, counted from the stream's own first token: its reader sees the pace that the lane
    promises. A little is kept for what comes unforeseen; a stream behind its pace catches up; nobody is asked for less
    than half a pace. Prompts of its own lane may use all the time until a token is due, less that of one more.
    """
    pace_ms = least_slack_ms = least_patience_ms = math.inf
    for seq in decodes:
        tpot_ms, first_ms, due_ms = seq.job.tpot_ms, seq.first_token_ms, seq.first_due_ms
        patience_ms = due_ms + len(seq.output) * tpot_ms - now_ms
        slack_ms = patience_ms
        if first_ms is not None and first_ms < due_ms:  # None: it came from elsewhere
            slack_ms -= due_ms - first_ms
        least_ms, late_ms = LEAST_PACE * tpot_ms, CATCHING_UP * tpot_ms
        slack_ms = late_ms if slack_ms < 0.0 else slack_ms - KEPT_BACK * tpot_ms
        patience_ms = late_ms if patience_ms < 0.0 else patience_ms - tpot_ms
        slack_ms = least_ms if slack_ms < least_ms else slack_ms
        patience_ms = least_ms if patience_ms < least_ms else patience_ms
        pace_ms = tpot_ms if tpot_ms < pace_ms else pace_ms
        least_slack_ms = slack_ms if slack_ms < least_slack_ms else least_slack_ms
        least_patience_ms = patience_ms if patience_ms < least_patience_ms else least_patience_ms
    return pace_ms, least_slack_ms, least_patience_ms


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


class StepBudget(NamedTuple):
    """Limits of one step."""

    rows: int
    """Sequences: the batch's slots. A sequence without one keeps its KV blocks and waits."""
    tokens: int
    prefill: int
    """Prefill tokens where time is no limit."""
    least_prefill: int
    """Prefill tokens of the first lane that a step may have however tight its time."""
    trickle: int
    """Tokens of the lanes below together: not the first lane's to prefill, and theirs however tight its time."""
    floors: Mapping[LaneName, int]
    """Rows that are a lane's own: its share floor, as far as it has work that runs; never the whole step."""
    time_ms: float
    """What the rows may take together; where `times_decodes` is False, what the prefills may take."""
    spare_ms: float
    """What prefills of the first lane may take beyond that."""
    price: Price
    times_decodes: bool = True
    """Decodes of the lanes below count, and wait where time is short: the first lane is here."""
    share_below: float = 0.0
    """Of what the first lane prefills in the step, the part that the lanes below have beside it, where that is more
    than their trickle."""


def step_budget(
    begun: Survey,
    lanes: Mapping[LaneName, Lane],
    costs: CostModel,
    max_sequences: int,
    max_tokens: int,
    *,
    number: int = 0,
    holds_decodes: bool = True,
) -> StepBudget:
    """The budget of the step of this number, for which this work has begun. Beside first-lane decodes, a step stays
    small until step times are known. Without `holds_decodes`, those of lower lanes go on however tight its time."""
    most = min(max_sequences, max_tokens)
    price = Price(*costs.step_weights()[1:])
    least_prefill = max(LEAST_PREFILL, max_tokens // LEAST_PREFILL_PART)
    is_blind = begun.pace_ms < math.inf and not costs.knows_steps
    floors = {
        name: min(_floor(lane.share_floor * most, number), most - 1, begun.claims[name]) for name, lane in lanes.items()
    }
    first = next(lane for lane in lanes.values() if lane.rank == 0)
    time_ms, spare_ms = _times(begun, first, costs, price)
    has_first = begun.pace_ms < math.inf or begun.first_waits
    if has_first and not holds_decodes and time_ms < math.inf:
        time_ms -= _decodes_ms(begun, price)
        spare_ms += _decodes_ms(begun, price, below=first.name)
    has_lower = any(begun.claims[name] for name, lane in lanes.items() if lane.rank)
    in_time = time_ms / price.token if price.token > 0.0 else math.inf
    trickle = min(
        _trickle(begun, lanes, max_tokens, max(least_prefill, in_time)), max_tokens - 1 - sum(floors.values())
    )
    return StepBudget(
        rows=max_sequences,
        tokens=max_tokens,
        prefill=least_prefill if is_blind else max_tokens,
        least_prefill=least_prefill,
        trickle=max(0, trickle) if has_lower else 0,
        floors=floors,
        time_ms=time_ms,
        spare_ms=spare_ms,
        price=price,
        times_decodes=has_first and holds_decodes,
        share_below=sum(lane.share_floor for name, lane in lanes.items() if lane.rank and _has_prompts(begun, name)),
    )


def _times(begun: Survey, first: Lane, costs: CostModel, price: Price) -> tuple[float, float]:
    """`time_ms` and `spare_ms` of a budget; no limit before step times are known.

    Whoever comes to the first lane finds a step running, and waits for its end. So every step is short: beside
    first-lane decodes it keeps to their pace; while only prompts of the first lane are computed it takes PROMPT_PART of
    the lane's target for the first token; while lower lanes run alone their prefills fill it up to HOLD times the
    lane's target between tokens, and are given LEAST_HOLD of it where decodes take longer than that: those would be
    made slower by fewer rows in a step, and nobody faster by more than a part of it.
    """
    if not costs.knows_steps:
        return math.inf, 0.0
    base_ms, pace_ms = costs.step_weights()[0], first.tpot_on(costs.single_stream_ms)
    longest_ms = _within(max(pace_ms, PROMPT_PART * first.ttft_ms), base_ms, costs)
    if begun.pace_ms < math.inf:
        time_ms = pace_time_ms(begun.pace_ms, begun.slack_ms, base_ms, costs)
        return time_ms, max(0.0, min(_within(begun.patience_ms, base_ms, costs), longest_ms) - time_ms)
    if begun.first_waits:
        time_ms = _within(pace_ms, base_ms, costs)
        return time_ms, max(0.0, longest_ms - time_ms)
    return max(_within(HOLD * pace_ms, base_ms, costs) - _decodes_ms(begun, price), LEAST_HOLD * pace_ms), 0.0


def _decodes_ms(begun: Survey, price: Price, *, below: LaneName | None = None) -> float:
    """What the decodes take together: all, or those of other lanes than the first."""
    decodes = [seq for kind, alike in begun.decodes.items() if kind[0] is not below for seq in alike]
    return len(decodes) * price.row + price.context * sum([seq.num_computed for seq in decodes])


def ample_budget(lanes: Mapping[LaneName, Lane], max_sequences: int, max_tokens: int) -> StepBudget:
    """The budget of a step of one lane's decodes alone: nobody else's pace or floor limits them."""
    none = dict.fromkeys(lanes, 0)
    free = Price(0.0, 0.0, 0.0, 0.0)
    return StepBudget(max_sequences, max_tokens, 0, 0, 0, floors=none, time_ms=math.inf, spare_ms=0.0, price=free)


def _floor(rows: float, number: int) -> int:
    """So many rows as whole ones; less than one is a row in some of the steps."""
    return int(rows) if rows >= 1.0 else int((number + 1) * rows) - int(number * rows)


def _trickle(begun: Survey, lanes: Mapping[LaneName, Lane], max_tokens: int, prefill: float) -> int:
    """Prefill tokens of the lanes below, where the first one could have `prefill`. They come on top: beside a pace, a
    part of the largest step would be several times their share of one that keeps to it."""
    share = sum(lane.share_floor for name, lane in lanes.items() if lane.rank and begun.claims[name])
    return max(1, int(min(max_tokens // TRICKLE_PART, share * prefill)))


def _has_prompts(begun: Survey, name: LaneName) -> bool:
    """A lane has more to do than decodes."""
    return begun.claims[name] > begun.decoding[name]


def pace_time_ms(pace_ms: float, slack_ms: float, base_ms: float, costs: CostModel) -> float:
    """What the rows of a step may take beside first-lane decodes of this pace, of which the most pressing has so much
    time; nobody is asked for less than LEAST_PACE."""
    return _within(min(STRETCH * pace_ms, max(slack_ms, LEAST_PACE * pace_ms)), base_ms, costs)


def _within(limit_ms: float, base_ms: float, costs: CostModel) -> float:
    """What rows may take for a step to end within this time."""
    return (limit_ms - costs.between_ms) / costs.margin - base_ms
