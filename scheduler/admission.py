"""Can this request be served in time? Decided at the gateway's door, from what workers last reported.

A first demand test. Prefill is the resource: everything queued in the request's lane and above is prefilled first, at
the workers' measured rate; then its own prompt, on the fastest worker; then its output, at the pace of a step. Where
nothing was measured yet, nothing is refused and nothing promised. Only a stated deadline can be refused, and only
what would hold with a margin is guaranteed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from scheduler.lanes import Lane, LaneName
from scheduler.messages import WorkerStatus

TYPICAL_PROMPT_TOKENS = 512
"""Assumed of each queued job where the caller does not know the queued tokens."""
MARGIN = 1.25
"""A guarantee holds if everything takes this much longer than measured."""
NO_WORKER_RETRY_MS = 5_000.0

RefusalCode = Literal["deadline_unattainable", "no_worker", "exceeds_kv"]


class Depth(Protocol):
    """What admission needs to know of a lane's queue."""

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for. Times are milliseconds from now."""

    lane: LaneName
    prompt_tokens: int
    max_tokens: int
    """Output tokens per choice."""
    max_tokens_stated: bool = True
    """The caller named `max_tokens`; otherwise it is only what fits, and says nothing about the end."""
    deadline_ms: float | None = None
    ttft_ms: float | None = None
    """Stated, hard deadline of the first token; lane targets do not belong here."""

    @property
    def kv_tokens(self) -> int:
        """KV tokens that a worker must be able to hold for it."""
        return self.prompt_tokens + (self.max_tokens if self.max_tokens_stated else 1)

    @property
    def states_deadline(self) -> bool:
        """The caller asked for a time that must be kept."""
        return self.deadline_ms is not None or self.ttft_ms is not None


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may be queued."""

    guaranteed: bool
    expected_ttft_ms: float | None
    """None where no worker has measured its rate yet."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """It may not, and why."""

    code: RefusalCode
    retry_after_ms: float | None
    """When it would fit; None: never as it is."""
    limit: int
    """What was exceeded: KV tokens of the largest worker, milliseconds that it would take, or workers there are."""


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Expected times from now."""

    ttft_ms: float
    end_ms: float
    alone_ttft_ms: float
    """The same with nothing queued."""
    alone_end_ms: float


def assess(
    request: Request,
    *,
    workers: Iterable[WorkerStatus],
    depths: Mapping[LaneName, Depth],
    lanes: Mapping[LaneName, Lane],
    queued_tokens: Mapping[LaneName, int] | None = None,
) -> Admitted | Refusal:
    """Admit or refuse. `queued_tokens` are the prompt tokens that wait in each lane, where the caller knows them."""
    serving = [worker for worker in workers if not worker.draining]
    if not serving:
        return Refusal("no_worker", NO_WORKER_RETRY_MS, 0)
    able = [worker for worker in serving if worker.kv_tokens >= request.kv_tokens]
    if not able:
        return Refusal("exceeds_kv", None, max(worker.kv_tokens for worker in serving))
    ahead = _tokens_ahead(request, depths, lanes, queued_tokens)
    estimate = _estimate(request, able, ahead)
    if estimate is None:
        return Admitted(guaranteed=False, expected_ttft_ms=None)
    return _refusal(request, estimate) or Admitted(_holds(request, estimate, able, lanes), estimate.ttft_ms)


def _tokens_ahead(
    request: Request,
    depths: Mapping[LaneName, Depth],
    lanes: Mapping[LaneName, Lane],
    queued_tokens: Mapping[LaneName, int] | None,
) -> int:
    """Prompt tokens queued in its lane and above."""
    ahead = [name for name, lane in lanes.items() if lane.rank <= lanes[request.lane].rank]
    if queued_tokens is not None:
        return sum(queued_tokens.get(name, 0) for name in ahead)
    return sum(depths[name].queued * TYPICAL_PROMPT_TOKENS for name in ahead if name in depths)


def _estimate(request: Request, workers: Sequence[WorkerStatus], ahead: int) -> _Estimate | None:
    """Expected times; None while no worker has measured its prefill rate."""
    rates = [worker.prefill_tokens_per_s for worker in workers if worker.prefill_tokens_per_s > 0.0]
    if not rates:
        return None
    pace_ms = min(worker.step_ms for worker in workers if worker.prefill_tokens_per_s > 0.0)
    wait_ms = 1e3 * ahead / sum(rates)
    alone_ms = pace_ms + 1e3 * request.prompt_tokens / max(rates)
    output_ms = (request.max_tokens - 1) * pace_ms if request.max_tokens_stated else 0.0
    return _Estimate(
        ttft_ms=wait_ms + alone_ms,
        end_ms=wait_ms + alone_ms + output_ms,
        alone_ttft_ms=alone_ms,
        alone_end_ms=alone_ms + output_ms,
    )


def _refusal(request: Request, estimate: _Estimate) -> Refusal | None:
    """The deadline that it would miss, if any; worth a retry if an empty queue would save it."""
    tests = (
        (request.ttft_ms, estimate.ttft_ms, estimate.alone_ttft_ms),
        (request.deadline_ms, estimate.end_ms, estimate.alone_end_ms),
    )
    missed = [(took, alone, limit) for limit, took, alone in tests if limit is not None and took > limit]
    if not missed:
        return None
    hopeless = any(alone > limit for _, alone, limit in missed)
    retry_ms = None if hopeless else max(took - limit for took, _, limit in missed)
    return Refusal("deadline_unattainable", retry_ms, round(max(took for took, _, _ in missed)))


def _holds(
    request: Request, estimate: _Estimate, workers: Sequence[WorkerStatus], lanes: Mapping[LaneName, Lane]
) -> bool:
    """Would every stated deadline be kept with a margin, with a batch slot free of its lane and above?"""
    if not request.states_deadline or not _has_slot(request, workers, lanes):
        return False
    ttft_holds = request.ttft_ms is None or MARGIN * estimate.ttft_ms <= request.ttft_ms
    if request.deadline_ms is None:
        return ttft_holds
    return ttft_holds and request.max_tokens_stated and MARGIN * estimate.end_ms <= request.deadline_ms


def _has_slot(request: Request, workers: Sequence[WorkerStatus], lanes: Mapping[LaneName, Lane]) -> bool:
    ahead = {name for name, lane in lanes.items() if lane.rank <= lanes[request.lane].rank}
    return any(
        sum(worker.running.get(name, 0) + worker.waiting.get(name, 0) for name in ahead) < worker.max_sequences
        for worker in workers
    )
