"""Advice for an installation under a trace: the number of workers, targets, and what other settings reject or delay.

All advice comes from simulations of the real scheduler. A `Case` is one simulation and `play` runs it; the caller may
run several in parallel."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
# Factors applied to the 99th percentile for tighter targets; the first one that is kept is advised.
MARGINS = (1.15, 1.6)
# Fraction of a target below which a new target is worthwhile.
WORTH = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation: the number of workers, and the changes to the question's settings."""

    workers: int
    # Factor of the latency lane's target, like the next.
    ttft: float = 1.0
    tpot: float = 1.0
    batch_ttft: float = 1.0
    # Callers of the latency lane state its target as a limit, so that admission rejects what cannot keep it.
    states_ttft: bool = False
    moved: bool = False
    no_floor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A trace at the wanted load, and the kind of workers to serve it."""

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
    """One target of a lane, and what it could be with the advised workers."""

    lane: LaneName
    setting: str
    target_ms: float
    p99_ms: float
    could_be_ms: float | None
    # Share of the lane's requests that kept the tighter target, or else the present one.
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
        prefix_cache=any(row.hash_ids for row in question.rows),
        lanes={tier.lane: _lane(DEFAULT_LANES[tier.lane], tier, case) for tier in tiers},
    )
    return judge(case.workers, scenario.records(1.0), drain_allowed_ms(question.rows, sizes))


def _tier(tier: Tier, case: Case) -> Tier:
    if tier.lane is not LaneName.LATENCY:
        return replace(tier, ttft_ms=tier.ttft_ms * case.batch_ttft)
    ttft_ms = tier.ttft_ms * case.ttft
    hard_ms = ttft_ms if case.states_ttft else tier.hard_ttft_ms
    return replace(tier, ttft_ms=ttft_ms, tpot_ms=tier.tpot_ms * case.tpot, hard_ttft_ms=hard_ms)


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
    """Return all advice. `play_all` runs several cases, `at_once` of them at the cost of one."""
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
    """Return the smallest number of workers that keeps the targets."""
    tpot_ms = question.tier(LaneName.LATENCY).tpot_ms
    return smallest(
        lambda counts: play_all([Case(workers=count) for count in counts]),
        guess=first_guess(question.rows, question.calibration, tpot_ms),
        at_once=at_once,
    )


# The throughput lane's time between tokens is not interactive, so it is left out.
_TARGETS = ((LaneName.LATENCY, "ttft"), (LaneName.LATENCY, "tpot"), (LaneName.THROUGHPUT, "ttft"))


def _tighter(question: Question, found: Verdict) -> list[Case]:
    cases = []
    for margin in MARGINS:
        parts = {
            (lane, name): _part(margin * reached.p99, target_ms)
            for lane, name, target_ms, reached, _ in _figures(question, found)
        }
        case = Case(
            workers=found.workers,
            ttft=parts.get((LaneName.LATENCY, "ttft"), 1.0),
            tpot=parts.get((LaneName.LATENCY, "tpot"), 1.0),
            batch_ttft=parts.get((LaneName.THROUGHPUT, "ttft"), 1.0),
        )
        if min(case.ttft, case.tpot, case.batch_ttft) < 1.0:
            cases.append(case)
    return cases


def _part(wanted_ms: float, target_ms: float) -> float:
    return wanted_ms / target_ms if wanted_ms < WORTH * target_ms else 1.0


def _figures(question: Question, verdict: Verdict) -> Iterator[tuple[LaneName, str, float, Spread, float]]:
    for lane, name in _TARGETS:
        found = verdict.lanes.get(lane)
        reached = None if found is None else (found.ttft_ms if name == "ttft" else found.tpot_ms)
        if found is not None and reached is not None:
            tier = question.tier(lane)
            is_first = name == "ttft"
            target_ms, kept = (tier.ttft_ms, found.ttft_kept) if is_first else (tier.tpot_ms, found.tpot_kept)
            yield lane, name, target_ms, reached, kept


def _targets(question: Question, found: Verdict, tried: Sequence[tuple[Case, Verdict]]) -> list[Target]:
    targets = []
    for lane, name, target_ms, reached, now in _figures(question, found):
        could: tuple[float, float] | None = None
        for case, verdict in reversed(tried):
            factor = case.batch_ttft if lane is LaneName.THROUGHPUT else getattr(case, name)
            kept = next(share for one, other, *_, share in _figures(question, verdict) if (one, other) == (lane, name))
            if factor < 1.0 and kept >= ATTAINMENT:
                could = target_ms * factor, kept
        targets.append(
            Target(
                lane=lane,
                setting=f"lanes.{lane.value}.{'ttft_s' if name == 'ttft' else 'tpot_ms'}",
                target_ms=target_ms,
                p99_ms=reached.p99,
                could_be_ms=could and could[0],
                kept=could[1] if could else now,
            )
        )
    return targets


def _changes(workers: int) -> list[tuple[str, str, Case]]:
    """Return possible changes that need fewer workers; empty for a single worker."""
    fewer = int(FEWER * workers)
    if fewer == 0:
        return []
    return [
        ("nothing", "-", Case(workers=fewer)),
        ("callers state the first token's limit", "x-fairlane-ttft-ms", Case(workers=fewer, states_ttft=True)),
        ("half of the latency lane asks in the other", "default_lane: throughput", Case(workers=fewer, moved=True)),
        ("first token due in twice the time", "lanes.latency.ttft_s x 2", Case(workers=fewer, ttft=2.0)),
        ("later tokens due in twice the time", "lanes.latency.tpot_ms x 2", Case(workers=fewer, tpot=2.0)),
        ("no share for the throughput lane", "lanes.throughput.share_floor: 0", Case(workers=fewer, no_floor=True)),
    ]
