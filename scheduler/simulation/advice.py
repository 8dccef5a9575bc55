"""Advice for an installation under a trace: the number of workers, targets, and the requests that other settings reject
or delay.

All advice comes from simulations of the real scheduler. A `Case` is one simulation and `play` runs it; the caller may
run several in parallel."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.results import Spread
from fairlane.scheduler.simulation.scenario import Scenario
from fairlane.scheduler.simulation.sizing import (
    ATTAINMENT,
    Sizing,
    Verdict,
    drain_allowed_ms,
    first_guess,
    judge,
    smallest,
)
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, Tier
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import Arrival

# Fraction of the workers with which other settings are tried.
FEWER = 0.8
# Factors applied to the 99th percentile for tighter targets; the first one that is met is advised.
MARGINS = (1.15, 1.6)
# Fraction of a target below which a new target is worthwhile.
WORTH = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation: the number of workers, and the changes to the question's settings."""

    workers: int
    # Factors of the lanes' targets; 1.0 for those not named.
    factors: Mapping[tuple[LaneName, str], float] = field(default_factory=dict)
    # Callers of the latency lane state its target as a limit, so that admission rejects requests that cannot meet it.
    states_ttft: bool = False
    moved: bool = False
    no_floor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A trace at the requested load, and the kind of workers to serve it."""

    rows: Sequence[TraceRow]
    calibration: Calibration
    tiers: tuple[Tier, ...]
    tenants: int = 8
    zipf: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def tier(self, lane: LaneName) -> Tier:
        return next(tier for tier in self.tiers if tier.lane is lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target of a lane, and the tighter target that the advised workers could meet."""

    lane: LaneName
    setting: str
    target_ms: float
    p99_ms: float
    could_be_ms: float | None
    # Share of the lane's requests that met the tighter target, or else the current one.
    kept: float


@dataclass(frozen=True, slots=True)
class Knob:
    """A change of settings with fewer workers, and its simulated result."""

    change: str
    setting: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Advice:
    """The sizing, possible targets and alternative settings."""

    sizing: Sizing
    targets: Sequence[Target]
    # With fewer workers than advised; the first is without any change. Empty if one worker is advised.
    knobs: Sequence[Knob]


PlayAll = Callable[[Sequence[Case]], Sequence[Verdict]]


class _Moved(SyntheticTenants):
    def arrivals(self, rows: Iterable[TraceRow]) -> Iterator[Arrival]:
        there = next(tier for tier in self.tiers if tier.lane is LaneName.THROUGHPUT)
        is_next = False
        for arrival in super().arrivals(rows):
            if arrival.lane is LaneName.LATENCY:
                is_next = not is_next
                if is_next:
                    arrival = replace(
                        arrival, lane=there.lane, tier=there.name, ttft_ms=there.ttft_ms, tpot_ms=there.tpot_ms
                    )
            yield arrival


def play(question: Question, case: Case) -> Verdict:
    """Simulate a case. Raises StuckError."""
    sizes, tiers = question.calibration, tuple(_tier(tier, case) for tier in question.tiers)
    overlay = (_Moved if case.moved else SyntheticTenants)(
        tenants=question.tenants,
        zipf=question.zipf,
        tiers=tiers,
        seed=question.seed,
        kv_tokens=sizes.kv_tokens,
        weights=question.weights,
    )
    scenario = Scenario(
        rows=question.rows,
        overlay=overlay,
        calibration=sizes,
        workers=case.workers,
        seed=question.seed,
        lanes={tier.lane: _lane(DEFAULT_LANES[tier.lane], tier, case) for tier in tiers},
    )
    return judge(case.workers, scenario.records(1.0), drain_allowed_ms(question.rows, sizes))


def _tier(tier: Tier, case: Case) -> Tier:
    ttft_ms = tier.ttft_ms * case.factors.get((tier.lane, "ttft"), 1.0)
    tpot_ms = tier.tpot_ms * case.factors.get((tier.lane, "tpot"), 1.0)
    states_ttft = case.states_ttft and tier.lane is LaneName.LATENCY
    return replace(tier, ttft_ms=ttft_ms, tpot_ms=tpot_ms, hard_ttft_ms=ttft_ms if states_ttft else tier.hard_ttft_ms)


def _lane(lane: Lane, tier: Tier, case: Case) -> Lane:
    no_floor = case.no_floor and lane.name is LaneName.THROUGHPUT
    return replace(
        lane,
        ttft_ms=tier.ttft_ms,
        tpot_ms=tier.tpot_ms,
        auto_tpot=False,
        share_floor=0.0 if no_floor else lane.share_floor,
    )


def advise(question: Question, play_all: PlayAll, *, at_once: int, with_knobs: bool = True) -> Advice:
    """Return all advice. `play_all` runs several cases, `at_once` of them in the time of one."""
    sizing = size(question, play_all, at_once=at_once)
    if sizing.workers is None or not with_knobs:
        return Advice(sizing, (), ())
    found = sizing.verdicts[sizing.workers]
    tighter, changed = _tighter(question, found), _changes(sizing.workers)
    verdicts = play_all([*tighter, *(case for _, _, case in changed)])
    tried = list(zip(tighter, verdicts, strict=False))
    knobs = [
        Knob(change, setting, verdict)
        for (change, setting, _), verdict in zip(changed, verdicts[len(tighter) :], strict=True)
    ]
    return Advice(sizing, _targets(question, found, tried), knobs)


def size(question: Question, play_all: PlayAll, *, at_once: int) -> Sizing:
    """Return the smallest number of workers that meets the targets."""
    tpot_ms = question.tier(LaneName.LATENCY).tpot_ms
    return smallest(
        lambda counts: play_all([Case(workers=count) for count in counts]),
        guess=first_guess(question.rows, question.calibration, tpot_ms),
        at_once=at_once,
    )


# The throughput lane's time between tokens is not interactive, so it is left out.
_TARGETS = ((LaneName.LATENCY, "ttft"), (LaneName.LATENCY, "tpot"), (LaneName.THROUGHPUT, "ttft"))


class _Figure(NamedTuple):
    target_ms: float
    reached: Spread
    kept: float


def _figures(question: Question, verdict: Verdict) -> dict[tuple[LaneName, str], _Figure]:
    figures = {}
    for lane, name in _TARGETS:
        found = verdict.lanes.get(lane)
        reached = None if found is None else (found.ttft_ms if name == "ttft" else found.tpot_ms)
        if found is not None and reached is not None:
            tier, is_first = question.tier(lane), name == "ttft"
            target_ms, kept = (tier.ttft_ms, found.ttft_kept) if is_first else (tier.tpot_ms, found.tpot_kept)
            figures[lane, name] = _Figure(target_ms, reached, kept)
    return figures


def _tighter(question: Question, found: Verdict) -> list[Case]:
    figures = _figures(question, found)
    cases = []
    for margin in MARGINS:
        factors = {place: margin * one.reached.p99 / one.target_ms for place, one in figures.items()}
        worthwhile = {place: factor for place, factor in factors.items() if factor < WORTH}
        if worthwhile:
            cases.append(Case(workers=found.workers, factors=worthwhile))
    return cases


def _targets(question: Question, found: Verdict, tried: Sequence[tuple[Case, Verdict]]) -> list[Target]:
    targets = []
    for (lane, name), now in _figures(question, found).items():
        could_be_ms, kept = None, now.kept
        for case, verdict in reversed(tried):
            tried_kept = _figures(question, verdict)[lane, name].kept
            if (lane, name) in case.factors and tried_kept >= ATTAINMENT:
                could_be_ms, kept = now.target_ms * case.factors[lane, name], tried_kept
        targets.append(
            Target(
                lane=lane,
                setting=f"lanes.{lane.value}.{'ttft_s' if name == 'ttft' else 'tpot_ms'}",
                target_ms=now.target_ms,
                p99_ms=now.reached.p99,
                could_be_ms=could_be_ms,
                kept=kept,
            )
        )
    return targets


def _changes(workers: int) -> list[tuple[str, str, Case]]:
    fewer = int(FEWER * workers)
    if fewer == 0:
        return []
    slower_first, slower_later = ({(LaneName.LATENCY, name): 2.0} for name in ("ttft", "tpot"))
    return [
        ("nothing", "-", Case(workers=fewer)),
        ("callers state the first token's limit", "x-fairlane-ttft-ms", Case(workers=fewer, states_ttft=True)),
        ("half of the latency lane asks in the other", "default_lane: throughput", Case(workers=fewer, moved=True)),
        ("first token due in twice the time", "lanes.latency.ttft_s x 2", Case(workers=fewer, factors=slower_first)),
        ("later tokens due in twice the time", "lanes.latency.tpot_ms x 2", Case(workers=fewer, factors=slower_later)),
        ("no share for the throughput lane", "lanes.throughput.share_floor: 0", Case(workers=fewer, no_floor=True)),
    ]
