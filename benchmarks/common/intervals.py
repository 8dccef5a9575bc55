"""How sure a mean over seeds is: 95 % intervals by Student's t, and the highest load that still keeps a promise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5th percentile of Student's distribution with 1, 2 ... 30 degrees of freedom; the last serves beyond."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the 95 % interval around it; unbounded for a single value."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        half = (self.high - self.low) / 2.0
        return _figure(self.mean) if math.isinf(half) else f"{_figure(self.mean)} ± {_figure(half)}"


def _figure(value: float) -> str:
    """Whole from a hundred on, else three digits."""
    return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values. For paired ones pass their differences or ratios. Raises ValueError if none."""
    if not values:
        raise ValueError("an interval needs at least one value")
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    degrees = len(values) - 1
    half = T_975[min(degrees, len(T_975)) - 1] * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def highest(holds: Callable[[float], bool], low: float, high: float, *, part: float = 0.02) -> float:
    """The highest load that `holds`, to this part of itself, if what holds at a load holds at all below it.

    `low` and `high` are first guesses (0 < low < high); each is moved by factors of 2 until the answer lies between.
    """
    if not 0.0 < low < high:
        raise ValueError(f"the guesses must be 0 < low < high, not {low} and {high}")
    while not holds(low):
        low, high = low / 2.0, low
        if low < 1e-3:
            return 0.0
    while holds(high):
        low, high = high, high * 2.0
        if high > 1e3:
            return low
    while high > low * (1.0 + part):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
