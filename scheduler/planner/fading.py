"""Exponential averaging of repeated observations: the most recent ones have the largest weight."""

import math

FADING = 0.95


def faded(known: float, seen: float) -> float:
    """Return the average after one more observation."""
    return FADING * known + (1.0 - FADING) * seen


class FadingRatio:
    """The quotient of two exponentially decaying sums; 0.0 before the first observation."""

    def __init__(self, fading: float = FADING) -> None:
        self._fading = fading
        self._above = self._below = 0.0

    def add(self, above: float, below: float = 1.0) -> None:
        self._above = self._fading * self._above + above
        self._below = self._fading * self._below + below

    @property
    def value(self) -> float:
        return self._above / self._below if self._below else 0.0


class FadingSum:
    """A sum between 0 and `most` that decays with time constant `over`, in the caller's unit."""

    def __init__(self, over: float, *, since: float = 0.0, most: float = math.inf) -> None:
        self._over, self._most = over, most
        self._sum, self._at = 0.0, since

    def add(self, value: float, now: float) -> None:
        total = self._sum * math.exp((self._at - now) / self._over) + value
        self._sum = 0.0 if total < 0.0 else total if total < self._most else self._most
        self._at = now

    def at(self, now: float) -> float:
        return self._sum * math.exp((self._at - now) / self._over)
