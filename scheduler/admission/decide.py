"""Decides on one request at the gateway, from workers' last reports and all gateways' open requests.

Guaranteed: every stated deadline holds with a margin at the longest stated output, and so does every earlier guarantee.
Best effort: the request is expected to be in time, or states no deadline. Refused: it would be late, or would break a
guarantee."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from fairlane.scheduler.admission.demand import (
    LaneLoad,
    RequestCosts,
    claim_ms,
    has_room_at_once,
    lateness_ms,
    time_to_first_ms,
)
from fairlane.scheduler.admission.open_requests import OpenRequests, Request
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.promises import MARGIN

NO_WORKER_RETRY_MS = 5_000.0

RefusalCode = Literal["deadline_unattainable", "no_worker", "exceeds_kv"]


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The request may be queued."""

    guaranteed: bool
    # None while no worker knows its costs.
    expected_ttft_ms: float | None
    load: LaneLoad | None = None
    # Time of all workers to reserve for its guarantee; 0.0: none.
    claim_ms: float = 0.0
    work_ms: float = 0.0
    # Time per prompt token; 0.0 while no worker knows its costs.
    token_ms: float = 0.0

    @property
    def pace_ms(self) -> float:
        return 0.0 if self.load is None else self.load.pace_ms


# The result of a simulation without admission.
UNPROMISED = Admitted(guaranteed=False, expected_ttft_ms=None)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request may not be queued, and why."""

    code: RefusalCode
    # None: a retry cannot succeed.
    retry_after_ms: float | None
    # The exceeded value: KV tokens of the largest worker, the milliseconds needed, or the number of workers.
    limit: int


def assess(
    request: Request, *, workers: Sequence[WorkerStatus], open_requests: OpenRequests, now_ms: float
) -> Admitted | Refusal:
    """Admit or refuse a request. `now_ms` is on the clock of the gateway's open requests."""
    largest = open_requests.largest(workers)
    if largest is None:
        return Refusal("no_worker", NO_WORKER_RETRY_MS, 0)
    if largest < request.kv_tokens:
        return Refusal("exceeds_kv", None, largest)
    open_requests.look(workers, now_ms)
    if open_requests.costs is None:
        return Admitted(guaranteed=False, expected_ttft_ms=None)
    return _Assessment(request, open_requests, open_requests.costs, now_ms).answer()


class _Assessment(msgspec.Struct, frozen=True):
    request: Request
    known: OpenRequests
    costs: RequestCosts
    now_ms: float

    def answer(self) -> Admitted | Refusal:
        request = self.request
        stated = request.states_deadline and (request.deadline_ms is None or request.max_tokens_stated)
        if stated and self.known.leaves_time(request.lane, self.now_ms):
            load = self._load(guaranteed=True)
            above = self.known.lanes_above(self.request.lane, self.now_ms)
            wait_ms = self._wait_ms(load, above)
            in_time = MARGIN * wait_ms <= load.due_ms - self.now_ms and self._lateness_ms(load) <= 0.0
            # All choices must start together: a full worker's rows are freed one by one and go to earlier requests.
            if in_time and (request.choices == 1 or has_room_at_once(self.known.ledger, load, self.costs)):
                claimed_ms = MARGIN * claim_ms(self.known.ledger, load, self.costs)
                return self._admitted(wait_ms, load, guaranteed=True, claimed_ms=claimed_ms)
        load = self._load(guaranteed=False)
        wait_ms = self._wait_ms(load, self.known.promised(self.request.lane, self.now_ms))
        if not self.request.states_deadline:
            return self._admitted(wait_ms, load, guaranteed=False)
        late_ms = max(wait_ms - (load.due_ms - self.now_ms), self._lateness_ms(load))
        if late_ms <= 0.0:
            return self._admitted(wait_ms, load, guaranteed=False)
        return self._refusal(load, late_ms)

    def _admitted(self, wait_ms: float, load: LaneLoad, *, guaranteed: bool, claimed_ms: float = 0.0) -> Admitted:
        return Admitted(
            guaranteed,
            expected_ttft_ms=wait_ms + self.costs.recent_step_ms,
            load=load,
            claim_ms=claimed_ms,
            work_ms=load.work_ms / self.costs.workers,
            token_ms=self.costs.token_ms,
        )

    def _load(self, *, guaranteed: bool) -> LaneLoad:
        return self.known.load(self.request, self.costs, self.now_ms, guaranteed=guaranteed)

    def _wait_ms(self, load: LaneLoad, taken: float) -> float:
        return time_to_first_ms(self.known.ledger, load, self.costs) / (1.0 - taken)

    def _lateness_ms(self, load: LaneLoad) -> float:
        return lateness_ms(
            self.known.ledger,
            load,
            self.costs,
            self.now_ms,
            margin=MARGIN,
            taken=lambda rank: self.known.taken(rank, self.now_ms),
        )

    def _refusal(self, load: LaneLoad, late_ms: float) -> Refusal:
        alone_ms = self.costs.prefill_ms(self.request.prompt_tokens)
        had_ms = load.due_ms - self.now_ms
        stated_ms = min(ms for ms in (self.request.deadline_ms, self.request.ttft_ms) if ms is not None)
        return Refusal("deadline_unattainable", late_ms if alone_ms <= had_ms else None, round(stated_ms + late_ms))
