"""Limits of one step: rows, tokens, the time that first-lane decodes allow, and each lane's own share."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.sequence import Kind, Sequence
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.protocol.lanes import Lane, LaneName

# Regardless of the pace of decodes, a step may prefill 1 / 32 of its tokens, and at least 64, for the first lane.
MIN_PREFILL_DIVISOR, MIN_PREFILL_TOKENS = 32, 64
# Maximum step time for lower lanes, as a multiple of the first-lane decodes' pace, while all of these are far enough
# ahead.
STRETCH = 1.1
# Duration of a step that only computes first-lane prompts, as a fraction of the lane's TTFT target.
PROMPT_PART = 0.1
# Multiples of the first lane's TPOT target, while only lower lanes run: for the whole step, and as a minimum for its
# prefills.
HOLD, MIN_HOLD = 2.0, 0.5
# Time per token of a stream that is behind its pace, as a fraction of the pace.
CATCHING_UP = 0.9
# Minimum time per token, as a fraction of the pace.
MIN_PACE = 0.5
# Part of a stream's lead that is kept in reserve, as a fraction of the pace.
KEPT_BACK = 0.25
# Lower lanes together may prefill 1 / 64 of the largest step, but at most their share floors of what the first lane may
# prefill at its pace. If the first lane prefills more, they get their floors of that.
TRICKLE_DIVISOR = 64


class Survey(NamedTuple):
    """The started work: hundreds of decodes, and a few others."""

    decodes: dict[Kind, tuple[Sequence, ...]]
    # Prefills in progress, and sequences to resume.
    others: list[Sequence]
    decoding: Counter[LaneName]
    # Rows that a lane could use: for sequences whose KV is on the device, and one for a waiting one.
    claims: Counter[LaneName]
    # The tightest TPOT of first-lane decodes.
    pace_ms: float
    # Minimum time until the next token of a first-lane decode, at the pace that its reader sees.
    slack_ms: float
    # The same, counted from the due time of its first token: the time that prompts of its own lane may use.
    patience_ms: float
    # Work of the first lane waits for its first token, or for its next one after a preemption.
    first_waits: bool


def survey(index: SequenceIndex, now_ms: float) -> Survey:
    """Return a survey of all started work."""
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
    """Return the tightest pace, the least slack and the least patience (see `Survey`) of first-lane decodes.

    Each token is due at the stream's pace from its own first token. A part of the lead is kept in reserve, a stream
    that is behind catches up, and no stream is given less than half a pace. A single loop without calls: each step
    covers hundreds of decodes."""
    pace_ms = least_slack_ms = least_patience_ms = math.inf
    for seq in decodes:
        tpot_ms, first_ms, due_ms = seq.job.tpot_ms, seq.first_token_ms, seq.first_due_ms
        patience_ms = due_ms + len(seq.output) * tpot_ms - now_ms
        slack_ms = patience_ms
        if first_ms is not None and first_ms < due_ms:  # None: an earlier holder produced it
            slack_ms -= due_ms - first_ms
        least_ms, late_ms = MIN_PACE * tpot_ms, CATCHING_UP * tpot_ms
        slack_ms = late_ms if slack_ms < 0.0 else slack_ms - KEPT_BACK * tpot_ms
        patience_ms = late_ms if patience_ms < 0.0 else patience_ms - tpot_ms
        slack_ms = least_ms if slack_ms < least_ms else slack_ms
        patience_ms = least_ms if patience_ms < least_ms else patience_ms
        pace_ms = tpot_ms if tpot_ms < pace_ms else pace_ms
        least_slack_ms = slack_ms if slack_ms < least_slack_ms else least_slack_ms
        least_patience_ms = patience_ms if patience_ms < least_patience_ms else least_patience_ms
    return pace_ms, least_slack_ms, least_patience_ms


class Price(NamedTuple):
    """The time that a row adds to a step, in milliseconds per unit of each of `StepFeatures`."""

    row: float
    token: float
    context: float
    pair: float

    def of(self, tokens: int, context: int) -> float:
        if tokens == 1:
            return self.row + self.context * context
        return self.row + tokens * (self.token + self.pair * context)


class StepBudget(NamedTuple):
    """Limits of one step."""

    # Batch slots. A sequence without one keeps its KV blocks and waits.
    rows: int
    tokens: int
    # Prefill tokens if time is not limited.
    prefill: int
    # Prefill tokens of the first lane that are allowed however little time there is.
    least_prefill: int
    # Tokens reserved for the prefills of all lower lanes together, however little time there is.
    trickle: int
    # Rows reserved for a lane by its share floor, as far as it has work that runs; never the whole step.
    floors: Mapping[LaneName, int]
    # Maximum time of the rows; if `times_decodes` is False, of the prefills.
    time_ms: float
    # Additional time for prefills of the first lane.
    spare_ms: float
    price: Price
    # Whether decodes of lower lanes count, and wait if time runs out, because the first lane has work.
    times_decodes: bool = True
    # Prefill tokens of lower lanes per token that the first lane prefills in the step, if that exceeds their trickle.
    share_below: float = 0.0


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
    """Return the budget of step `number` for the started work.

    Next to first-lane decodes, a step stays small until step times are known."""
    most = min(max_sequences, max_tokens)
    price = Price(*costs.step_weights()[1:])
    least_prefill = max(MIN_PREFILL_TOKENS, max_tokens // MIN_PREFILL_DIVISOR)
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
    beyond_decodes = begun.claims - begun.decoding
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
        share_below=sum(lane.share_floor for name, lane in lanes.items() if lane.rank and beyond_decodes[name]),
    )


def _times(begun: Survey, first: Lane, costs: CostModel, price: Price) -> tuple[float, float]:
    """Return `time_ms` and `spare_ms` of a budget; no limit before step times are known.

    New first-lane work waits for the running step to end, so every step is short. Next to first-lane decodes it keeps
    to their pace. If only first-lane prompts are computed, it takes PROMPT_PART of the TTFT target. If only lower lanes
    run, prefills fill it up to HOLD times the first lane's TPOT target, and get at least MIN_HOLD times it."""
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
    return max(_within(HOLD * pace_ms, base_ms, costs) - _decodes_ms(begun, price), MIN_HOLD * pace_ms), 0.0


def _decodes_ms(begun: Survey, price: Price, *, below: LaneName | None = None) -> float:
    decodes = [seq for kind, alike in begun.decodes.items() if kind[0] is not below for seq in alike]
    return len(decodes) * price.row + price.context * sum([seq.num_computed for seq in decodes])


def ample_budget(lanes: Mapping[LaneName, Lane], max_sequences: int, max_tokens: int) -> StepBudget:
    """Return the budget of a step with only one lane's decodes: no other lane's pace or floor limits them."""
    none = dict.fromkeys(lanes, 0)
    free = Price(0.0, 0.0, 0.0, 0.0)
    return StepBudget(max_sequences, max_tokens, 0, 0, 0, floors=none, time_ms=math.inf, spare_ms=0.0, price=free)


def _floor(rows: float, number: int) -> int:
    return int(rows) if rows >= 1.0 else int((number + 1) * rows) - int(number * rows)


def _trickle(begun: Survey, lanes: Mapping[LaneName, Lane], max_tokens: int, prefill: float) -> int:
    """Return prefill tokens of the lower lanes, in addition to `prefill` of the first one."""
    share = sum(lane.share_floor for name, lane in lanes.items() if lane.rank and begun.claims[name])
    return max(1, int(min(max_tokens // TRICKLE_DIVISOR, share * prefill)))


def pace_time_ms(pace_ms: float, slack_ms: float, base_ms: float, costs: CostModel) -> float:
    """Return the time for a step's rows alongside first-lane decodes with this pace and slack; at least MIN_PACE."""
    return _within(min(STRETCH * pace_ms, max(slack_ms, MIN_PACE * pace_ms)), base_ms, costs)


def _within(limit_ms: float, base_ms: float, costs: CostModel) -> float:
    return (limit_ms - costs.between_ms) / costs.margin - base_ms
