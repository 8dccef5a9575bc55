"""Does one more request still fit? What it costs, and a demand test over all that is open, in worker milliseconds.

Two questions. Is there room: would all that goes before, at its longest, fit the workers at once? Then nobody waits
but for prefills. If not, is there time: a worker that is full is a queue which a millisecond of work leaves each
millisecond; what goes before a deadline must have left by then, but for what a full batch always holds, which is half
of its sequences' output. Source: the processor demand criterion (Baruah, Rosier and Howell, 1990) under earliest
deadline first, and the Past-Future scheduler's peak (LightLLM, ASPLOS 2025).

Costs come from the weights that workers report. A prompt costs its prefill. An output token costs its row, the KV that
it reads, and a share of what every step costs: the larger of the sequence's shares of KV and of batch slots, for so
much it keeps from others. Requests that fill a worker so pay for its steps exactly; in one that is not full they are
told apart by room, not by time.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.kv.host_claims import STAYING_PART
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.messages import WorkerStatus

BUCKET_MS = 250.0
"""Deadlines are told apart to this at best, rounded down."""
BUCKETS = 64
"""And to this part of the time that is left, so that a test looks at hundreds of them, however many there are."""
MOST_DECODING = 7.0 / 8.0
"""Of a step's time: a part of each step is left to prefills, however little the pace of decodes leaves."""


class FleetCapacity(NamedTuple):
    """The workers of one queue, as the demand test sees them."""

    workers: int
    base_ms: float
    """A step's fixed time."""
    pace_ms: float
    """What a step may take at most, so that decodes of the first lane keep their pace."""


class ServiceClass(NamedTuple):
    """Order among demands, whatever their deadlines: the lesser is served first."""

    rank: int
    """Of the lane; 0 is the most urgent."""
    best_effort: bool


class LaneLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The demand of one request, or of several alike."""

    level: ServiceClass
    prefill_ms: float
    """Worker time of what is yet to be prefilled."""
    decode_ms: float
    """The same of the output that is yet expected."""
    output_ms: float
    """The same of all its output, what is there already too."""
    token_ms: float
    """Of one output token."""
    share: float
    """Part of one worker that it takes up at its longest."""
    pace_ms: float = 0.0
    """What each of its tokens is reckoned to take until the next."""
    due_ms: float = math.inf
    """When its next token is due at the latest, on the gateway's clock; infinity: no matter when."""

    @property
    def work_ms(self) -> float:
        return self.prefill_ms + self.decode_ms


@dataclass(slots=True)
class Sum:
    """The sum of several loads."""

    loads: int = 0
    prefill_ms: float = 0.0
    work_ms: float = 0.0
    output_ms: float = 0.0
    token_ms: float = 0.0
    share: float = 0.0
    dated: dict[int, tuple[int, float]] = field(default_factory=dict)
    """How many have a deadline, and their work, by its bucket."""

    def add(self, load: LaneLoad, times: int = 1) -> None:
        """Count a load in so many times; out where that is negative."""
        self.loads += times
        self.prefill_ms += times * load.prefill_ms
        self.work_ms += times * load.work_ms
        self.output_ms += times * load.output_ms
        self.token_ms += times * load.token_ms
        self.share += times * load.share
        if load.due_ms < math.inf:
            bucket = int(load.due_ms // BUCKET_MS)
            loads, work_ms = self.dated.get(bucket, (0, 0.0))
            self.dated[bucket] = loads + times, work_ms + times * load.work_ms
            if loads + times == 0:
                del self.dated[bucket]

    def merge(self, other: "Sum") -> None:
        """Count another's in, without their deadlines."""
        self.loads += other.loads
        self.prefill_ms += other.prefill_ms
        self.work_ms += other.work_ms
        self.output_ms += other.output_ms
        self.token_ms += other.token_ms
        self.share += other.share


class DemandLedger:
    """Sums of the loads that are open, by level."""

    def __init__(self) -> None:
        self._loads: dict[str, LaneLoad] = {}
        self._sums: dict[ServiceClass, Sum] = {}
        self.others: Mapping[ServiceClass, Sum] = {}
        """What other gateways admitted, by their last reports."""

    def put(self, job_id: str, load: LaneLoad, now_ms: float) -> None:
        """Open a load, or replace it by what is left of it."""
        self.remove(job_id)
        if load.due_ms < math.inf:
            load = msgspec.structs.replace(load, due_ms=_rounded(load.due_ms, now_ms))
        self._loads[job_id] = load
        self._sums.setdefault(load.level, Sum()).add(load)

    def remove(self, job_id: str) -> None:
        """Close a load; one that is not open is fine."""
        load = self._loads.pop(job_id, None)
        if load is not None:
            self._sums[load.level].add(load, -1)

    def at(self, level: ServiceClass) -> Sum:
        """What is open at a level here; not to be changed."""
        return self._sums.get(level, Sum())

    def up_to(self, level: ServiceClass) -> Sum:
        """All that goes before a greater level, with the deadlines of this one."""
        total = Sum(dated=self._dated(level))
        for other, found in chain(self._sums.items(), self.others.items()):
            if other <= level:
                total.merge(found)
        return total

    def promised(self, since: ServiceClass) -> Iterator[ServiceClass]:
        """Levels from this on that hold guaranteed work with deadlines, here or elsewhere."""
        return (
            level
            for level in self._sums.keys() | self.others.keys()
            if not level.best_effort and level >= since and self._dated(level)
        )

    def levels(self) -> Iterable[tuple[ServiceClass, Sum]]:
        """What is open here; not to be changed."""
        return self._sums.items()

    def _dated(self, level: ServiceClass) -> dict[int, tuple[int, float]]:
        """What has a deadline at a level, here and elsewhere; not to be changed."""
        own, other = self.at(level).dated, self.others.get(level)
        if other is None or not other.dated:
            return own
        dated = dict(other.dated)
        for bucket, (loads, work_ms) in own.items():
            more, more_ms = dated.get(bucket, (0, 0.0))
            dated[bucket] = loads + more, work_ms + more_ms
        return dated


def time_to_first_ms(ledger: DemandLedger, load: LaneLoad, fleet: FleetCapacity) -> float:
    """From now to a load's first token, behind all that goes before it and is due no later."""
    before = ledger.up_to(load.level)
    later_ms = sum(work_ms for bucket, (_, work_ms) in before.dated.items() if bucket * BUCKET_MS > load.due_ms)
    return _wait(before, load, fleet)(before.work_ms - later_ms)


def claim_ms(ledger: DemandLedger, load: LaneLoad, fleet: FleetCapacity) -> float:
    """By how much a load makes all wait that is due with it or later: its prompt where there is room for it, its work
    where others have to leave first."""
    before = ledger.up_to(load.level)
    if before.share + load.share <= fleet.workers:
        return load.prefill_ms / (1.0 - _decoding(before, fleet)) / fleet.workers
    return max(load.prefill_ms, load.work_ms) / fleet.workers


def has_room_at_once(ledger: DemandLedger, load: LaneLoad, fleet: FleetCapacity) -> bool:
    """A worker that is as full as all are of what goes before would have room for all of a load's choices together."""
    return ledger.up_to(load.level).share / fleet.workers + load.share <= 1.0


def lateness_ms(
    ledger: DemandLedger,
    load: LaneLoad,
    fleet: FleetCapacity,
    now_ms: float,
    *,
    margin: float,
    taken: Callable[[int], float],
) -> float:
    """By how much guaranteed work would be late at worst if this load came too and all took `margin` times as long.

    `taken`: of a lane rank, the part of the time that becomes free which lanes above go on to take.

    Not above 0 where all is kept. What is late already counts as work, and is not tested. Nor is what in a lower lane
    would be late without this load too, once a flood has come above it: to refuse the load would bring it no time that
    the flood's best effort would not take.
    """
    worst_ms, nothing = -math.inf, _nothing(load.level)
    for level in ledger.promised(load.level):
        before, left, is_lower = ledger.up_to(level), 1.0 - taken(level.rank), level > load.level
        wait_without_ms, wait_ms = _wait(before, nothing, fleet), _wait(before, load, fleet)
        work_ms = before.work_ms - sum(work_ms for _, work_ms in before.dated.values())
        for bucket, (_, bucket_ms) in sorted(before.dated.items()):
            work_ms += bucket_ms
            had_ms = bucket * BUCKET_MS - now_ms
            if had_ms < 0.0 or not (is_lower or bucket * BUCKET_MS >= load.due_ms):
                continue
            if is_lower and margin * wait_without_ms(work_ms) / left > had_ms:
                continue
            worst_ms = max(worst_ms, margin * wait_ms(work_ms) / left - had_ms)
    return worst_ms


def _nothing(level: ServiceClass) -> LaneLoad:
    return LaneLoad(level=level, prefill_ms=0.0, decode_ms=0.0, output_ms=0.0, token_ms=0.0, share=0.0)


def _wait(before: Sum, load: LaneLoad, fleet: FleetCapacity) -> Callable[[float], float]:
    """Of a part of the work that goes before, in milliseconds: how long until it is done, and the load's prompt too.

    What does not depend on the part is computed once: a test asks for hundreds of parts.
    """
    workers, share = fleet.workers, before.share + load.share
    prefill_ms = (before.prefill_ms + load.prefill_ms) / (1.0 - _decoding(before, fleet))
    if share <= workers:
        return lambda _: prefill_ms / workers
    in_batch_ms = workers * (before.output_ms + load.output_ms) / share / 2.0
    return lambda work_ms: max(prefill_ms, work_ms + load.work_ms - in_batch_ms) / workers


def _decoding(before: Sum, fleet: FleetCapacity) -> float:
    """Part of each step that goes to decodes, once all that fits of what goes before decodes."""
    if not before.loads:
        return 0.0
    share = before.share / fleet.workers
    step_ms = before.token_ms / fleet.workers / max(1.0, share) + fleet.base_ms * max(0.0, 1.0 - share)
    return min(MOST_DECODING, step_ms / fleet.pace_ms)


def _rounded(due_ms: float, now_ms: float) -> float:
    width_ms = BUCKET_MS
    while width_ms * BUCKETS < due_ms - now_ms:
        width_ms *= 2.0
    return due_ms // width_ms * width_ms


TYPICAL_PROMPT_TOKENS = 512
REPRICED_BEYOND = 0.2
WEIGHTS = 1 + len(StepFeatures._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCosts:
    """What requests cost on these workers, in milliseconds; the mean where workers differ."""

    workers: int
    kv_tokens: float
    """Of one worker."""
    slots: float
    """Sequences in one step of one worker."""
    host_tokens: float = 0.0
    """KV tokens of one worker's host pool."""
    base_ms: float
    """A step's fixed time."""
    row_ms: float
    token_ms: float
    """Per prompt token."""
    context_ms: float
    """Per KV token that a row reads."""
    pair_ms: float
    """Per pair of prompt tokens, one of which attends to the other."""
    recent_step_ms: float
    """A step's recent mean time."""

    def prefill_ms(self, prompt_tokens: int) -> float:
        """Time of a prompt's prefill."""
        return prompt_tokens * (self.token_ms + self.pair_ms * prompt_tokens / 2.0)

    def share(self, kv_tokens: float) -> float:
        """Part of a worker that a sequence with so much KV takes up."""
        return max(kv_tokens / self.kv_tokens, 1.0 / self.slots)

    def exact_share(self, most_tokens: float) -> float:
        """Part of a worker that is counted for exact work which may come to so much KV: of its host pool, or where that
        never holds it, of what such work may keep on the device."""
        if most_tokens <= self.host_tokens:
            return most_tokens / self.host_tokens
        return min(1.0, STAYING_PART * most_tokens / self.kv_tokens)

    def output_ms(self, kv_tokens: float) -> float:
        """Time per output token of a sequence with so much KV."""
        return self.row_ms + self.context_ms * kv_tokens + self.base_ms * self.share(kv_tokens)

    def full_step_ms(self, kv_tokens: float) -> float:
        """What a step takes in a worker full of such sequences, all of which decode."""
        return self.output_ms(kv_tokens) / self.share(kv_tokens)

    def differs(self, other: "RequestCosts") -> bool:
        """A typical cost is off by more than REPRICED_BEYOND of the other's."""
        return any(
            abs(mine - others) > REPRICED_BEYOND * others
            for mine, others in zip(self._typical, other._typical, strict=True)
        )

    @property
    def _typical(self) -> tuple[float, ...]:
        tokens = TYPICAL_PROMPT_TOKENS
        return self.prefill_ms(tokens), self.output_ms(tokens), self.share(tokens), self.full_step_ms(tokens)


def request_costs(workers: Sequence[WorkerStatus]) -> RequestCosts | None:
    """Mean costs of the serving workers that report any; None where none does."""
    serving = [one for one in workers if not one.draining and one.kv_tokens and one.max_sequences]
    known = [one for one in serving if len(one.step_weights) == WEIGHTS]
    if not known:
        return None
    columns = zip(*(one.step_weights for one in known), strict=True)
    base_ms, row_ms, token_ms, context_ms, pair_ms = (sum(column) / len(known) for column in columns)
    return RequestCosts(
        workers=len(serving),
        kv_tokens=sum(one.kv_tokens for one in serving) / len(serving),
        slots=sum(one.max_sequences for one in serving) / len(serving),
        host_tokens=sum(one.host_tokens for one in serving) / len(serving),
        base_ms=base_ms,
        row_ms=row_ms,
        token_ms=token_ms,
        context_ms=context_ms,
        pair_ms=pair_ms,
        recent_step_ms=sum(one.step_ms for one in known) / len(known),
    )
