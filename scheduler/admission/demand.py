"""The cost of a request, and a demand test over all open requests, in milliseconds of worker time.

Sources: the processor demand criterion (Baruah, Rosier and Howell, 1990) under earliest deadline first, and the peak
estimate of the Past-Future scheduler (LightLLM, ASPLOS 2025). docs/internals/scheduling.md has the test's two parts."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.kv.host_claims import STAYING_PART
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.messages import WorkerStatus

# Finest resolution of deadlines, rounded down.
BUCKET_MS = 250.0
# Resolution as a fraction of the remaining time, so that a test visits hundreds of deadlines, however many there are.
BUCKETS = 64
# Upper bound on the share of a step used by decodes; the rest is left to prefills.
MAX_DECODE_SHARE = 7.0 / 8.0
TYPICAL_PROMPT_TOKENS = 512
REPRICE_ABOVE = 0.2
WEIGHTS = 1 + len(StepFeatures._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCosts:
    """Costs of requests on these workers, in milliseconds; the mean if workers differ."""

    workers: int
    # KV tokens and batch slots of one worker.
    kv_tokens: float
    slots: float
    host_tokens: float = 0.0
    # Fixed time of a step.
    base_ms: float
    row_ms: float
    # Per prompt token.
    token_ms: float
    # Per KV token that a row reads.
    context_ms: float
    # Per pair of prompt tokens, one of which attends to the other.
    pair_ms: float
    recent_step_ms: float
    # Longest step at which decodes of the first lane keep their pace.
    pace_ms: float

    def prefill_ms(self, prompt_tokens: int) -> float:
        return prompt_tokens * (self.token_ms + self.pair_ms * prompt_tokens / 2.0)

    def share(self, kv_tokens: float) -> float:
        of_kv, of_slots = kv_tokens / self.kv_tokens, 1.0 / self.slots
        return of_kv if of_kv > of_slots else of_slots

    def exact_share(self, most_tokens: float) -> float:
        """Return the fraction of a worker counted for exact work that may grow to `most_tokens`: of the host pool or,
        if that can never hold it, of the device KV that such work may keep."""
        if most_tokens <= self.host_tokens:
            return most_tokens / self.host_tokens
        return min(1.0, STAYING_PART * most_tokens / self.kv_tokens)

    def output_ms(self, kv_tokens: float) -> float:
        return self.row_ms + self.context_ms * kv_tokens + self.base_ms * self.share(kv_tokens)

    def full_step_ms(self, kv_tokens: float) -> float:
        return self.output_ms(kv_tokens) / self.share(kv_tokens)

    def differs(self, other: "RequestCosts") -> bool:
        return any(
            abs(mine - others) > REPRICE_ABOVE * others
            for mine, others in zip(self._typical, other._typical, strict=True)
        )

    @property
    def _typical(self) -> tuple[float, ...]:
        tokens = TYPICAL_PROMPT_TOKENS
        return self.prefill_ms(tokens), self.output_ms(tokens), self.share(tokens), self.full_step_ms(tokens)


def request_costs(workers: Sequence[WorkerStatus], pace_ms: float) -> RequestCosts | None:
    """Return the mean costs of the serving workers that report any, or None."""
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
        pace_ms=pace_ms,
    )


class ServiceClass(NamedTuple):
    """Service order of demands with any deadline: lower is served first."""

    # Rank of the lane; 0 is the most urgent.
    rank: int
    best_effort: bool


class LaneLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The demand of one request, or of several similar ones."""

    level: ServiceClass
    # Worker time of the remaining prefill.
    prefill_ms: float = 0.0
    # Worker time of the remaining expected output.
    decode_ms: float = 0.0
    # Worker time of all its output, including the part that is done.
    output_ms: float = 0.0
    token_ms: float = 0.0
    # Fraction of one worker that it takes at full length.
    share: float = 0.0
    pace_ms: float = 0.0
    # Due time of its next token on the gateway's clock; infinity: none.
    due_ms: float = math.inf

    @property
    def work_ms(self) -> float:
        return self.prefill_ms + self.decode_ms


class Sum(msgspec.Struct, array_like=True):
    """The sum of several loads."""

    loads: int = 0
    prefill_ms: float = 0.0
    work_ms: float = 0.0
    output_ms: float = 0.0
    token_ms: float = 0.0
    share: float = 0.0
    # Deadline bucket -> number of loads with a deadline there, and their work.
    dated: dict[int, tuple[int, float]] = {}

    def add(self, load: LaneLoad, times: int = 1) -> None:
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
        self.loads += other.loads
        self.prefill_ms += other.prefill_ms
        self.work_ms += other.work_ms
        self.output_ms += other.output_ms
        self.token_ms += other.token_ms
        self.share += other.share


class DemandLedger:
    """Sums of the open loads, by service class."""

    def __init__(self) -> None:
        self._loads: dict[str, LaneLoad] = {}
        self._sums: dict[ServiceClass, Sum] = {}
        # Loads that other gateways admitted, by their last reports.
        self.others: Mapping[ServiceClass, Sum] = {}

    def put(self, job_id: str, load: LaneLoad, now_ms: float) -> None:
        if job_id in self._loads:
            self.remove(job_id)
        if load.due_ms < math.inf:
            load = msgspec.structs.replace(load, due_ms=_rounded(load.due_ms, now_ms))
        self._loads[job_id] = load
        if load.level not in self._sums:
            self._sums[load.level] = Sum()
        self._sums[load.level].add(load)

    def remove(self, job_id: str) -> None:
        load = self._loads.pop(job_id, None)
        if load is not None:
            self._sums[load.level].add(load, -1)

    def at(self, level: ServiceClass) -> Sum:
        """Return this gateway's loads of one class; do not modify."""
        return self._sums.get(level, Sum())

    def up_to(self, level: ServiceClass) -> Sum:
        """Return all loads of this class and of those served before it, with the deadlines of this class."""
        total = Sum(dated=self._dated(level))
        for other, found in chain(self._sums.items(), self.others.items()):
            if other <= level:
                total.merge(found)
        return total

    def promised(self, since: ServiceClass) -> Iterator[ServiceClass]:
        return (
            level
            for level in self._sums.keys() | self.others.keys()
            if not level.best_effort and level >= since and self._dated(level)
        )

    def levels(self) -> Iterable[tuple[ServiceClass, Sum]]:
        """Return this gateway's sums; do not modify."""
        return self._sums.items()

    def _dated(self, level: ServiceClass) -> dict[int, tuple[int, float]]:
        """Return the loads with deadlines of a class at all gateways; do not modify."""
        own, other = self.at(level).dated, self.others.get(level)
        if other is None or not other.dated:
            return own
        dated = dict(other.dated)
        for bucket, (loads, work_ms) in own.items():
            more, more_ms = dated.get(bucket, (0, 0.0))
            dated[bucket] = loads + more, work_ms + more_ms
        return dated


def time_to_first_ms(ledger: DemandLedger, load: LaneLoad, costs: RequestCosts) -> float:
    """Return the time until a load's first token, after all work of higher priority that is due no later."""
    before = ledger.up_to(load.level)
    later_ms = 0.0
    for bucket, (_, work_ms) in before.dated.items():
        if bucket * BUCKET_MS > load.due_ms:
            later_ms += work_ms
    return _wait(before, load, costs)(before.work_ms - later_ms)


def claim_ms(ledger: DemandLedger, load: LaneLoad, costs: RequestCosts) -> float:
    """Return the time by which a load delays all work that is due with it or later: that of its prompt if there is room
    for the load, otherwise that of all its work."""
    before = ledger.up_to(load.level)
    if before.share + load.share <= costs.workers:
        return load.prefill_ms / (1.0 - _decoding(before, costs)) / costs.workers
    return max(load.prefill_ms, load.work_ms) / costs.workers


def has_room_at_once(ledger: DemandLedger, load: LaneLoad, costs: RequestCosts) -> bool:
    """Return whether a worker with the mean load of higher priority has room for all of a load's choices together."""
    return ledger.up_to(load.level).share / costs.workers + load.share <= 1.0


def lateness_ms(
    ledger: DemandLedger,
    load: LaneLoad,
    costs: RequestCosts,
    now_ms: float,
    *,
    margin: float,
    taken: Callable[[int], float],
) -> float:
    """Return the worst lateness of guaranteed work with this load, if everything took `margin` times as long;
    at most 0 if all guarantees are kept. `taken` returns the fraction of the free time that the lanes above a rank keep
    using.

    Work that is already late is not tested. Neither is work of a lower lane that would be late anyway: refusing
    this load would not help."""
    worst_ms, nothing = -math.inf, LaneLoad(level=load.level)
    for level in ledger.promised(load.level):
        before, left, is_lower = ledger.up_to(level), 1.0 - taken(level.rank), level > load.level
        wait_without_ms, wait_ms = _wait(before, nothing, costs), _wait(before, load, costs)
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


def _wait(before: Sum, load: LaneLoad, costs: RequestCosts) -> Callable[[float], float]:
    """Return a function from the work ahead (ms) to the time until it and the load's prompt are done: a test evaluates
    hundreds of amounts."""
    workers, share = costs.workers, before.share + load.share
    prefill_ms = (before.prefill_ms + load.prefill_ms) / (1.0 - _decoding(before, costs))
    if share <= workers:
        return lambda _: prefill_ms / workers
    in_batch_ms = workers * (before.output_ms + load.output_ms) / share / 2.0
    return lambda work_ms: max(prefill_ms, work_ms + load.work_ms - in_batch_ms) / workers


def _decoding(before: Sum, costs: RequestCosts) -> float:
    if not before.loads:
        return 0.0
    share = before.share / costs.workers
    step_ms = before.token_ms / costs.workers / max(1.0, share) + costs.base_ms * max(0.0, 1.0 - share)
    return min(MAX_DECODE_SHARE, step_ms / costs.pace_ms)


def _rounded(due_ms: float, now_ms: float) -> float:
    width_ms = BUCKET_MS
    while width_ms * BUCKETS < due_ms - now_ms:
        width_ms *= 2.0
    return due_ms // width_ms * width_ms
