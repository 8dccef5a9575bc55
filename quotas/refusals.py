"""Refusals: the limits that a request does not fit, and when to retry. Pure, the oracle of sizing.lua."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlane.quotas.limits import Demand, Kind, Level, LimitRule, LimitStatus
from fairlane.quotas.sizing import is_paced


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """A limit that a request does not fit, and when it would."""

    status: LimitStatus
    requested: int
    # None if waiting does not help by itself: a running request must end, or it can never fit.
    retry_after_s: float | None
    kind: Kind

    @property
    def weight(self) -> tuple[int, float]:
        """Rank of a refusal: those that can never fit first, then by retry time."""
        return (1 if self.kind == "exceeds" else 0), self.retry_after_s or 0.0


def refusals(levels: Iterable[Level], demand: Demand, now_ms: int) -> list[LimitRefusal]:
    """Return every limit that the demand does not fit, those in shadow included."""
    found = []
    for level in levels:
        for rule, figure in level.rules():
            is_shadow = rule.name in level.shadow
            amount, most = demand.uncut(rule) if is_shadow else (demand.amount(rule), demand.most(rule))
            excess = level.used(rule) + level.reserved(rule) + amount - figure
            if level.paused and is_paced(rule) and not is_shadow:
                excess = max(1, excess)
            if most > figure:
                found.append(LimitRefusal(level.status(rule, figure, now_ms), most, None, "exceeds"))
            elif excess > 0 and amount > 0:
                retry_s = _retry_s(level, rule, excess, now_ms)
                found.append(LimitRefusal(level.status(rule, figure, now_ms), amount, retry_s, rule.kind))
    return found


def most_severe(found: Sequence[LimitRefusal]) -> LimitRefusal | None:
    """Return the refusal to report: the first with the highest weight that is not in shadow."""
    binding = [refusal for refusal in found if not refusal.status.shadow]
    return max(binding, key=lambda refusal: refusal.weight, default=None)


def _retry_s(level: Level, rule: LimitRule, excess: int, now_ms: int) -> float | None:
    window = level.windows[rule.window]
    fits_ms = window.frees_ms(excess, rule.counts)
    return None if fits_ms is None else (fits_ms - now_ms) / 1e3
