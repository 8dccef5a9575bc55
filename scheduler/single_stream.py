"""What a further token of a single stream takes on one worker: a step of one decode, and what lies between two steps.

Measured, not fitted: a model of step times that was learnt under load says little of a step with one row. The first
figure is that of the measurement at start; each step in use that holds one decode and nothing else moves it a little.
It is the unit of a lane's automatic TPOT target.
"""

from collections.abc import Iterable
from statistics import median

from scheduler.messages import WorkerStatus
from scheduler.steps import StepFeatures

TYPICAL_CONTEXT = 512
"""KV tokens that the stream is taken to have."""
FADING = 0.95
"""What an older step counts for beside the next."""
OUTLIER = 2.0
"""A step counts for at most this many times what was known."""


def is_single_decode(plan: StepFeatures) -> bool:
    """One sequence gained one token, and nothing else ran."""
    return plan.rows == 1 and plan.prefill_tokens == 0 and plan.context > 0


class SingleStream:
    """One worker's figure. Steps are brought to the typical context by what a KV token adds, `context_ms`."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        """Of the step alone; 0.0 before any was seen."""

    def start_from(self, steps: Iterable[tuple[StepFeatures, float]], context_ms: float) -> None:
        """Take what was measured at start, of which other steps are left out."""
        found = [_typical(plan, run_ms, context_ms) for plan, run_ms in steps if is_single_decode(plan)]
        if found:
            self.step_ms = median(found)

    def observe(self, plan: StepFeatures, run_ms: float, context_ms: float) -> None:
        """Learn from a step in use; any other than of a single decode says nothing."""
        if is_single_decode(plan):
            typical_ms = _typical(plan, run_ms, context_ms)
            known_ms = self.step_ms or typical_ms
            self.step_ms = FADING * known_ms + (1.0 - FADING) * min(typical_ms, OUTLIER * known_ms)


def slowest_ms(workers: Iterable[WorkerStatus]) -> float:
    """The single stream's time that all of these workers that take jobs can keep; 0.0 where none has told."""
    return max((one.single_stream_ms for one in workers if not one.draining), default=0.0)


def _typical(plan: StepFeatures, run_ms: float, context_ms: float) -> float:
    return max(0.5 * run_ms, run_ms + context_ms * (TYPICAL_CONTEXT - plan.context))
