"""How much of lower lanes' prompts one step may compute, so that the first lane keeps its pace.

What a step takes is learnt from every step that runs. While the first lane decodes or waits for a first token, a step
is to take no longer than that lane's target between tokens; while lower lanes run alone, `HOLD` times that, for whoever
comes finds a step running. Some tokens are computed in any case: lower lanes go on.
"""

from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.step_budget import (
    HOLD,
    LEAST_HOLD,
    LEAST_PREFILL,
    LEAST_PREFILL_PART,
    TRICKLE_PART,
    Price,
    pace_time_ms,
)
from fairlane.scheduler.protocol.lanes import Lane


class Load(NamedTuple):
    """What a step holds beside the prompts of lower lanes."""

    decodes: int
    """Rows of one token, of all lanes."""
    context: int
    """KV tokens that they read."""
    first_decodes: int
    """Those of the first lane."""
    first_tokens: int
    """Tokens of the first lane's prompts that run or could be admitted."""


class Allowance:
    """The rest of one step for lower lanes' prompts. Taken from, prompt after prompt."""

    def __init__(self, time_ms: float, tokens: int, least: int, price: Price) -> None:
        self._time_ms = time_ms
        self._tokens = tokens
        self._least = least
        self._price = price

    def take(self, tokens: int, context: int) -> int:
        """How many of so many tokens, behind so much context, the next prompt may have computed; 0: none."""
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
    """What a step of at most `max_tokens` leaves to lower lanes' prompts beside this load. `first`: the first lane."""
    price = Price(*costs.step_weights()[1:])
    least = max(1, max_tokens // TRICKLE_PART)
    is_first_here = load.first_decodes > 0 or load.first_tokens > 0
    tokens = max(least, max_tokens - load.decodes - load.first_tokens)
    if not costs.knows_steps:
        few = max(LEAST_PREFILL, max_tokens // LEAST_PREFILL_PART)
        return Allowance(float("inf"), min(tokens, few) if is_first_here else tokens, least, price)
    pace_ms, base_ms = first.tpot_on(costs.single_stream_ms), costs.step_weights()[0]
    decodes_ms = load.decodes * price.row + load.context * price.context
    if is_first_here:
        # A prompt's tokens read each other: on average half of them.
        first_ms = load.first_tokens * (price.token + price.pair * load.first_tokens / 2.0)
        time_ms = pace_time_ms(pace_ms, pace_ms, base_ms, costs) - decodes_ms - first_ms
    else:
        longest_ms = HOLD * pace_ms
        time_ms = max(pace_time_ms(longest_ms, longest_ms, base_ms, costs) - decodes_ms, LEAST_HOLD * pace_ms)
    return Allowance(time_ms, tokens, least, price)
