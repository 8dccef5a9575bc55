"""The number of lower lanes' prompt tokens in one step, so that the first lane keeps its pace.

A step may take the first lane's target time between tokens, or `HOLD` times that while only lower lanes run. A minimum
of tokens is always computed, so that lower lanes progress."""

from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.step_budget import (
    HOLD,
    MIN_HOLD,
    MIN_PREFILL_DIVISOR,
    MIN_PREFILL_TOKENS,
    TRICKLE_DIVISOR,
    Price,
    pace_time_ms,
)
from fairlane.scheduler.protocol.lanes import Lane


class Load(NamedTuple):
    """A step's content without the prompts of lower lanes."""

    # Rows of one token, of all lanes.
    decodes: int
    # KV tokens that they read.
    context: int
    # The rows among them of the first lane.
    first_decodes: int
    # Prompt tokens of the first lane that are running or could be admitted.
    first_tokens: int


class Allowance:
    """The remainder of one step for lower lanes' prompts, consumed prompt by prompt."""

    def __init__(self, time_ms: float, tokens: int, least: int, price: Price) -> None:
        self._time_ms = time_ms
        self._tokens = tokens
        self._least = least
        self._price = price

    def take(self, tokens: int, context: int) -> int:
        """Return how many of `tokens`, after `context`, the next prompt may compute; possibly 0."""
        if tokens <= 0:
            return 0
        each_ms = self._price.token + self._price.pair * (context + tokens)
        time_ms = self._time_ms - self._price.row
        in_time = tokens if tokens * each_ms <= time_ms else int(time_ms / each_ms) if time_ms > 0.0 else 0
        granted = min(tokens, max(min(in_time, self._tokens), self._least))
        if granted:
            self._time_ms -= self._price.of(granted, context + granted)
            self._tokens -= granted
            self._least = max(0, self._least - granted)
        return granted


def allowance(load: Load, first: Lane, costs: CostModel, max_tokens: int) -> Allowance:
    """Return the budget that a step of at most `max_tokens` leaves to lower lanes' prompts. `first` is the first
    lane."""
    price = Price(*costs.step_weights()[1:])
    least = max(1, max_tokens // TRICKLE_DIVISOR)
    is_first_here = load.first_decodes > 0 or load.first_tokens > 0
    tokens = max(least, max_tokens - load.decodes - load.first_tokens)
    if not costs.knows_steps:
        few = max(MIN_PREFILL_TOKENS, max_tokens // MIN_PREFILL_DIVISOR)
        return Allowance(float("inf"), min(tokens, few) if is_first_here else tokens, least, price)
    pace_ms, base_ms = first.tpot_on(costs.single_stream_ms), costs.step_weights()[0]
    decodes_ms = load.decodes * price.row + load.context * price.context
    if is_first_here:
        # A prompt's tokens attend to each other: on average to half of them.
        first_ms = load.first_tokens * (price.token + price.pair * load.first_tokens / 2.0)
        time_ms = pace_time_ms(pace_ms, pace_ms, base_ms, costs) - decodes_ms - first_ms
    else:
        longest_ms = HOLD * pace_ms
        time_ms = max(pace_time_ms(longest_ms, longest_ms, base_ms, costs) - decodes_ms, MIN_HOLD * pace_ms)
    return Allowance(time_ms, tokens, least, price)
