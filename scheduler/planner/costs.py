"""Cost model of steps, swaps and recomputation in milliseconds, learnt from every step.

A step's time is linear in five features of its rows, a copy's in two. Both are fitted by least squares with
non-negative weights, so that a prediction never falls when work is added."""

import math
from collections.abc import Iterable, Sequence
from operator import mul
from statistics import median
from typing import NamedTuple

from fairlane.scheduler.planner.fading import faded
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.messages import WorkerStatus

TYPICAL_CONTEXT = 512
SINGLE_STREAM_OUTLIER = 2.0


def slowest_ms(workers: Iterable[WorkerStatus]) -> float:
    """Return the single-stream time that all of these workers that take jobs can keep; 0.0 if none reports one."""
    return max((one.single_stream_ms for one in workers if not one.draining), default=0.0)


FORGETTING = 0.995
SWEEPS = 4
# Observations after which the model is used to size steps.
LEARNT_AFTER = 32
# Once the model has learnt or was measured, an observation counts for at most this multiple of its prediction (for
# example a page fault or a compilation).
OUTLIER = 4.0
# Relative error below which a measured model does not learn: the observation comes from a simulation with these costs.
SAME = 1e-9
# The same for copies. On a CPU one copy in ten takes two or three times as long, and the usual time is wanted, not the
# mean. If all copies become twice as slow, the model needs about a hundred observations.
COPY_OUTLIER, COPY_FORGETTING = 1.5, 0.98
# Prior of the copy rate: 2 GB/s, a busy machine's memcpy in small blocks.
COPY_BYTES_PER_MS = 2e6
# Weight of an assumption relative to one measurement at startup.
LITTLE = 0.02
# Sweeps until the weights of a handful of measurements converge.
SETTLING = 200


class Measurement(NamedTuple):
    """The measured time of a step's rows and of its copies."""

    plan: StepFeatures
    run_ms: float
    copied_blocks: int
    copy_ms: float


class NonNegativeFit:
    """Fit of y = w · x with w >= 0 to a stream of observations.

    `typical` is a usual magnitude of each feature, `prior` its contribution to y at that magnitude, and `trust` the
    number of observations that the prior is worth. Each observation counts for `forgetting` of the next (0 to 1) and,
    once the fit has learnt or was measured, for at most `outlier` times its prediction."""

    def __init__(
        self,
        *,
        typical: Sequence[float],
        prior: Sequence[float],
        trust: float = 0.5,
        forgetting: float = FORGETTING,
        outlier: float = OUTLIER,
    ) -> None:
        self._forgetting = forgetting
        self._outlier = outlier
        self._scale = tuple(1.0 / value for value in typical)
        self._prior = tuple(prior)
        self._trust = trust
        self._weights = list(prior)
        size = len(prior)
        self._products = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size
        self.observations = 0
        self.was_measured = False

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(map(mul, self._weights, self._scale))

    @property
    def has_learnt(self) -> bool:
        return self.observations >= LEARNT_AFTER

    def predict(self, x: Sequence[float]) -> float:
        return float(sum(map(mul, map(mul, self._weights, self._scale), x)))

    def observe(self, x: Sequence[float], y: float) -> None:
        if not (math.isfinite(y) and y >= 0.0):
            return
        if self.has_learnt or self.was_measured:
            expected = self.predict(x)
            y = min(y, self._outlier * expected)
            if self.was_measured and abs(y - expected) <= SAME * expected:
                self.observations += 1
                return
        scaled, kept = [*map(mul, x, self._scale)], self._forgetting
        for j, value in enumerate(scaled):
            row = zip(self._products[j], scaled, strict=True)
            self._products[j] = [kept * old + value * other for old, other in row]
            self._targets[j] = kept * self._targets[j] + value * y
        self.observations += 1
        for _ in range(SWEEPS):
            self._sweep()

    def know(self, weights: Sequence[float]) -> None:
        self._weights = [weight / scale for weight, scale in zip(weights, self._scale, strict=True)]
        self._prior, self.was_measured = tuple(self._weights), True

    def start_from(self, seen: Sequence[tuple[Sequence[float], float]]) -> None:
        """Fit the prior to a few measurements with y > 0.

        The old prior, scaled to the measurements, fills in what they do not determine. Errors are relative to y, so
        that small values count too."""
        factor = median(y / self.predict(x) for x, y in seen)
        typical = [1.0 / scale for scale in self._scale]
        trust = LITTLE / median(y for _, y in seen) ** 2
        fit = NonNegativeFit(typical=typical, prior=[factor * w for w in self._prior], trust=trust, forgetting=1.0)
        for x, y in seen:
            fit.observe([value / y for value in x], 1.0)
        for _ in range(SETTLING):
            fit._sweep()
        self._prior, self._weights, self.was_measured = tuple(fit._weights), fit._weights, True

    def _sweep(self) -> None:
        weights, trust = self._weights, self._trust
        for j, (row, target, prior) in enumerate(zip(self._products, self._targets, self._prior, strict=True)):
            own = row[j]
            others = sum(map(mul, row, weights)) - own * weights[j]
            weights[j] = max(0.0, (target + trust * prior - others) / (own + trust))


def _copy_fit(block_ms: float) -> NonNegativeFit:
    prior = (0.1, 16.0 * block_ms)
    return NonNegativeFit(typical=(1.0, 16.0), prior=prior, forgetting=COPY_FORGETTING, outlier=COPY_OUTLIER)


def step_ms_by(weights: Sequence[float], plan: StepFeatures) -> float:
    """Return the expected time of a step's rows by reported weights, those of `CostModel.step_weights`."""
    return float(sum(map(mul, weights, (1.0, *plan))))


class CostModel:
    """Times of steps and copies, in milliseconds, and the victim costs and step sizes that follow from them.

    The priors are those of a small model on a few CPU cores; a few dozen steps replace them. `forgetting` applies to
    step times; 1 weighs all observations equally. The step time of a single stream, the unit of automatic TPOT targets,
    is measured and not fitted: a model learnt under load predicts a step with one row badly."""

    def __init__(self, *, forgetting: float = FORGETTING) -> None:
        self._step = NonNegativeFit(
            typical=(1.0, 16.0, 128.0, 8_192.0, 65_536.0), prior=(10.0, 4.0, 40.0, 5.0, 5.0), forgetting=forgetting
        )
        self._copy = _copy_fit(0.2)
        # Step time of a single decode at the typical context, without the time between steps; 0.0: not observed.
        self._single_ms = 0.0
        self._error = 0.0
        # From a step's end to the next one's start while work continues: planning, sampling, sending.
        self.between_ms = 0.0
        # Start of the last step, and its duration if it was typical and work continues.
        self._began_ms = 0.0
        self._took_ms: float | None = None

    def expect_blocks_of(self, size_bytes: int) -> None:
        if size_bytes > 0 and self._copy.observations == 0 and not self._copy.was_measured:
            self._copy = _copy_fit(size_bytes / COPY_BYTES_PER_MS)

    def start_from(self, measurements: Iterable[Measurement]) -> None:
        seen = [*measurements]
        steps = [((1.0, *one.plan), one.run_ms) for one in seen if one.plan.rows and one.run_ms > 0.0]
        copies = [((1.0, one.copied_blocks), one.copy_ms) for one in seen if one.copied_blocks and one.copy_ms > 0.0]
        for fit, found in ((self._step, steps), (self._copy, copies)):
            if found:
                fit.start_from(found)
        alone = [self._typical_ms(one.plan, one.run_ms) for one in seen if one.run_ms > 0.0 and _is_alone(one.plan)]
        self._single_ms = median(alone) if alone else self._single_ms

    def know(self, step: Sequence[float], copy: Sequence[float], single_stream_ms: float) -> None:
        self._step.know(step)
        self._copy.know(copy)
        self._single_ms = single_stream_ms

    @property
    def has_learnt(self) -> bool:
        return self._step.has_learnt

    @property
    def knows_steps(self) -> bool:
        return self._step.was_measured or self._step.has_learnt

    @property
    def knows_copies(self) -> bool:
        return self._copy.was_measured or self._copy.has_learnt

    def observe(self, plan: StepFeatures, run_ms: float, copied_blocks: int, copy_ms: float) -> None:
        if plan.rows and run_ms > 0.0:
            missed = min(1.0, abs(run_ms / max(1e-9, self.step_ms(plan)) - 1.0))
            self._error = faded(self._error, missed)
            self._step.observe((1.0, *plan), run_ms)
            if _is_alone(plan):
                typical_ms = self._typical_ms(plan, run_ms)
                known_ms = self._single_ms or typical_ms
                self._single_ms = faded(known_ms, min(typical_ms, SINGLE_STREAM_OUTLIER * known_ms))
        if copied_blocks and copy_ms > 0.0:
            self._copy.observe((1.0, copied_blocks), copy_ms)

    def begin_step(self, now_ms: float) -> None:
        if self._took_ms is not None:
            self.observe_between(now_ms - self._began_ms - self._took_ms)
        self._began_ms, self._took_ms = now_ms, None

    def end_step(self, took_ms: float | None) -> None:
        self._took_ms = took_ms

    def observe_between(self, between_ms: float) -> None:
        if between_ms >= 0.0:
            between_ms = min(between_ms, OUTLIER * max(self.between_ms, self.step_ms(StepFeatures(1, 0, 0, 0))))
            self.between_ms = faded(self.between_ms, between_ms)

    @property
    def single_stream_ms(self) -> float:
        return self._single_ms + self.between_ms if self._single_ms else 0.0

    @property
    def margin(self) -> float:
        """Safety factor for a step's expected time: one plus twice the recent mean error."""
        return 1.0 + 2.0 * self._error

    def step_ms(self, plan: StepFeatures) -> float:
        return self._step.predict((1.0, *plan)) if plan.rows else 0.0

    def copy_ms(self, blocks: int) -> float:
        return self._copy.predict((1.0, blocks)) if blocks else 0.0

    def swap_ms(self, blocks: int, away: int = 0, unsaved: int | None = None) -> float:
        """Return the expected time to swap these blocks out and back in, in addition to `away` blocks that are already
        out. Only `unsaved` blocks (default: all) are copied out."""
        out = blocks if unsaved is None else unsaved
        return self.copy_ms(out) + self.copy_ms(away + blocks) - self.copy_ms(away)

    def recompute_ms(self, tokens: int, kept: int = 0) -> float:
        _, _, per_token, _, per_pair = self._step.weights
        return tokens * (per_token + per_pair * (kept + tokens))

    def prefill_ms(self) -> tuple[float, float]:
        """Return the time that prefill adds to a step per token, and per square of the tokens."""
        _, _, per_token, _, per_pair = self._step.weights
        return per_token, per_pair / 2.0

    def step_weights(self) -> tuple[float, ...]:
        """Return the fixed time of a step, and its time per unit of each of `StepFeatures`."""
        return self._step.weights

    def copy_weights(self) -> tuple[float, ...]:
        return self._copy.weights

    def _typical_ms(self, plan: StepFeatures, run_ms: float) -> float:
        context_ms = self._step.weights[3]
        return max(0.5 * run_ms, run_ms + context_ms * (TYPICAL_CONTEXT - plan.context))


def _is_alone(plan: StepFeatures) -> bool:
    return plan.rows == 1 and plan.prefill_tokens == 0 and plan.context > 0
