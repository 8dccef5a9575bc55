"""The numbered lines of the scheduler's proof: one file for each group, each with a `measure`."""

from collections.abc import Callable, Mapping

from benchmarks.common.line import Effort, Line
from benchmarks.scheduling.lines import (
    capacity,
    cost,
    fairness,
    fidelity,
    gauntlet,
    guarantees,
    isolation,
    newcomers,
    overload,
    prefix_affinity,
    returning,
    safety,
    tax,
)

__all__ = ["MEASURES"]

MEASURES: Mapping[tuple[int, ...], Callable[[Effort], list[Line]]] = {
    (1, 2): fairness.measure,
    (3,): isolation.measure,
    (4,): capacity.measure,
    (5,): overload.measure,
    (6,): tax.measure,
    (7,): gauntlet.measure,
    (8,): cost.measure,
    (9,): fidelity.measure,
    (10,): safety.measure,
    (11,): guarantees.measure,
    (12,): lambda effort: [*newcomers.measure(effort), *returning.measure(effort)],
    (13,): prefix_affinity.measure,
}
"""By the lines that they yield."""
