"""Admission: whether a request fits the model and the KV pool and can meet its deadline, by the workers' last reports.

No function does I/O. Also translates rejections by the queue to API errors."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlane.gateway.dialects.openai.rate_limits import queued_limits
from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.errors import ApiError, LimitBlock, context_length
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.pipeline.fitting import exceeds, room_after
from fairlane.gateway.request.live_request import LiveJob
from fairlane.gateway.request.service_level import ServiceLevel
from fairlane.quotas.limits import LimitStatus, Scope
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.admission.decide import Admitted, Refusal, assess
from fairlane.scheduler.admission.open_requests import OpenRequests, Request
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.queue.shards import queue_of, shard_names
from fairlane.scheduler.queue.types import LaneFull, TenantQueueFull, Unattainable

LEAST_SUMMARY_TOKENS = 64


def too_long(
    prompt_tokens: int | str, request: GenerationRequest, model: ServedModel, *, prompt_param: str
) -> ApiError:
    """Return the error for a prompt and output that exceed the context. `prompt_tokens` may be a description."""
    is_prompt = request.is_cut or request.max_tokens is None
    param = prompt_param if is_prompt else request.max_tokens_param
    max_tokens = request.max_tokens if model.text.generates and not is_prompt else None
    return context_length(model.context_length, prompt_tokens, max_tokens, param)


def measure(
    prompt_tokens: int,
    request: GenerationRequest,
    model: ServedModel,
    service_level: ServiceLevel,
    tenant: Tenant,
    prompt_param: str,
    elapsed_ms: float,
) -> Request:
    """Return what one prompt needs from the workers. Output without a stated limit, or whose limit was cut, ends where
    the context or the KV pool does.

    `elapsed_ms` since the arrival is subtracted from the deadlines. Raises ApiError `context_length_exceeded`."""
    max_tokens = request.max_tokens
    output_tokens = (1 if request.is_cut else max_tokens or 1) if model.text.generates else 0
    if exceeds(prompt_tokens, output_tokens, model.context_length):
        raise too_long(prompt_tokens, request, model, prompt_param=prompt_param)
    deadline_ms, ttft_ms = service_level.deadline_ms, service_level.hard_ttft_ms
    return Request(
        lane=service_level.lane.name,
        tenant=tenant.id,
        prompt_tokens=prompt_tokens,
        max_tokens=_most_output(prompt_tokens, request, model),
        max_tokens_stated=max_tokens is not None,
        choices=request.n,
        deadline_ms=None if deadline_ms is None else deadline_ms - elapsed_ms,
        ttft_ms=None if ttft_ms is None else ttft_ms - elapsed_ms,
        exact=tenant.is_exact,
    )


def _most_output(prompt_tokens: int, request: GenerationRequest, model: ServedModel) -> int:
    if request.max_tokens is not None and not request.is_cut:
        return max(1, request.max_tokens)  # of none, a placeholder is generated
    left = room_after(prompt_tokens, model.longest)
    if request.max_tokens is not None:
        return min(left, request.max_tokens)
    if request.longest_summary is None:
        return left
    return min(left, request.longest_summary, max(LEAST_SUMMARY_TOKENS, prompt_tokens // 2))


def admit(
    job_ids: Sequence[str],
    asked: Sequence[Request],
    model: ServedModel,
    open_requests: OpenRequests,
    *,
    now_ms: float,
    n_param: str = "n",
) -> list[Admitted]:
    """Admit the jobs of one request, each behind those before it.

    From here on they count as open requests under their ids, even before they are in the queue. The caller withdraws
    jobs that it does not enqueue.

    `now_ms` is on admission's clock; `n_param` is the field with the number of choices. Raises ApiError at the first
    rejection (`no_worker`, `request_exceeds_limit`, `deadline_unattainable`); then none is admitted."""
    for each in asked:
        _check_width(each, model, n_param)
        for ms in (each.deadline_ms, each.ttft_ms):
            if ms is not None and ms <= 0:
                raise ApiError("The deadline passed before the request was read.", "deadline_unattainable")
    answers: list[Admitted] = []
    for job_id, request in zip(job_ids, asked, strict=True):
        answer = assess(request, workers=model.workers, open_requests=open_requests, now_ms=now_ms)
        if isinstance(answer, Refusal):
            for entered in job_ids[: len(answers)]:
                open_requests.withdraw(entered, now_ms)
            if answer.code == "deadline_unattainable" and answer.retry_after_ms is not None:
                open_requests.refuse(request, now_ms)
            raise refused(answer, request)
        open_requests.enter(job_id, request, guaranteed=answer.guaranteed, now_ms=now_ms, load=answer.load)
        answers.append(answer)
    return answers


def _check_width(asked: Request, model: ServedModel, param: str) -> None:
    n, widest, pool = asked.choices, model.widest, model.pool
    if widest is None or pool is None:
        return
    if n > widest:
        message = f"`{param}` is {n}; the largest worker runs {widest} choices at once."
        raise _exceeds(message, param, "max_sequences", widest, n)
    if asked.prompt_tokens < pool < asked.prompt_tokens + n:
        message = f"{n} choices need more tokens of KV cache; the pool of the largest worker holds {pool} tokens."
        raise _exceeds(message, param, "kv_pool", pool, asked.prompt_tokens + n)


def _exceeds(message: str, param: str | None, name: str, limit: int, requested: int) -> ApiError:
    block = LimitBlock(name, "worker", limit, 0, 0, requested, None)
    return ApiError(message, "request_exceeds_limit", param, block)


def refused(refusal: Refusal, asked: Request) -> ApiError:
    """Translate a rejection by admission."""
    retry_after_s = None if refusal.retry_after_ms is None else refusal.retry_after_ms / 1e3
    match refusal.code:
        case "no_worker":
            return ApiError("No worker serves this model now.", "no_worker", retry_after_s=retry_after_s)
        case "exceeds_kv":
            pool = f"the KV pool of the largest worker holds {refusal.limit} tokens"
            message = f"The request needs {asked.kv_tokens} tokens of KV cache; {pool}."
            param = "max_tokens" if asked.max_tokens_stated else None
            return _exceeds(message, param, "kv_pool", refusal.limit, asked.kv_tokens)
        case "deadline_unattainable":
            message = f"The deadline cannot be met: the request would take {refusal.limit} ms."
            return ApiError(message, "deadline_unattainable", retry_after_s=retry_after_s)


def queued_limit(statuses: Iterable[LimitStatus]) -> LimitStatus | None:
    """Return the limit on the tenant's queued requests: its own, or the key's if that is lower.

    The queue counts all requests of the tenant. So a key's limit rejects its requests while that many requests of the
    whole tenant are waiting."""
    lowest: LimitStatus | None = None
    for status in queued_limits(statuses):
        if not status.shadow and (lowest is None or status.limit < lowest.limit):
            lowest = status
    return lowest


def queue_refused(full: LaneFull | TenantQueueFull | Unattainable, scope: Scope = "tenant") -> ApiError:
    """Translate a rejection by the queue. `scope` is that of the limit, tenant or key."""
    if isinstance(full, LaneFull):
        message = f"The lane {full.lane} is full: {full.depth} requests wait."
        return ApiError(message, "overloaded", retry_after_s=full.retry_after_ms / 1e3)
    if isinstance(full, Unattainable):
        message = "The deadline cannot be met: the capacity is promised to other requests."
        return ApiError(message, "deadline_unattainable", retry_after_s=full.late_ms / 1e3)
    block = LimitBlock("queued_requests", scope, full.limit, full.depth, 0, 1, None)
    if not full.limit:  # waiting would not help
        return ApiError(f"The limit queued_requests of this {scope} is 0.", "queue_full", limit=block)
    message = f"The limit queued_requests of this {scope} is reached: {full.depth} requests of the tenant wait."
    return ApiError(message, "queue_full", limit=block, retry_after_s=full.retry_after_ms / 1e3)


@dataclass(eq=False)
class AllOpenRequests:
    """The open requests of each model's queue, which its shards share. It is notified when a job is admitted, enqueued,
    receives tokens, and ends."""

    lanes: Mapping[LaneName, Lane]
    clock: Callable[[], float] = time.monotonic
    _open_requests: dict[str, OpenRequests] = field(default_factory=dict, init=False)
    # Jobs that are admitted and not enqueued yet.
    _held: set[str] = field(default_factory=set, init=False)
    # Jobs that are enqueued and have not ended.
    _flying: set[str] = field(default_factory=set, init=False)
    _idle: asyncio.Event | None = field(default=None, init=False)

    @property
    def now_ms(self) -> float:
        return self.clock() * 1e3

    def at(self, queue: str) -> OpenRequests:
        if queue not in self._open_requests:  # a model's queue, or one of its shards
            self._open_requests |= dict.fromkeys(shard_names(queue_of(queue)), OpenRequests(self.lanes))
        return self._open_requests[queue]

    @property
    def are_idle(self) -> bool:
        """True if no job is admitted or enqueued."""
        return not (self._held or self._flying)

    async def wait_until_idle(self) -> None:
        self._idle = self._idle or asyncio.Event()
        self._rest(self._idle)
        await self._idle.wait()

    def hold(self, job_ids: Sequence[str]) -> None:
        """Count jobs as admitted until they are enqueued or withdrawn with `release`."""
        self._held.update(job_ids)

    def release(self, queue: str, job_ids: Iterable[str]) -> None:
        for job_id in self._held.intersection(job_ids):
            self._held.discard(job_id)
            self.at(queue).withdraw(job_id, self.now_ms)
        if self._idle is not None:
            self._rest(self._idle)

    def entered(self, job: LiveJob) -> None:
        """Count a job as enqueued until `left` is called. Called before `put`."""
        self._held.discard(job.id)
        self._flying.add(job.id)

    def demoted(self, job: LiveJob) -> None:
        self.at(job.queue).demote(job.id, self.now_ms)

    def placed(self, job: LiveJob, place: int) -> None:
        """Record a job's place among its tenant's jobs in the lane, as reported by the queue."""
        self.at(job.queue).placed(job.id, place, self.now_ms)

    def still_waits_ms(self, job: LiveJob, place: int) -> float | None:
        """Record a place, and return the expected remaining wait, if it is known."""
        self.placed(job, place)
        ask = job.request.ask
        return self.at(job.queue).still_waits_ms(LaneName(ask.lane), ask.tenant, place)

    def produced(self, job: LiveJob, *, ends: bool = False) -> None:
        """Record new tokens of a job. `ends`: they are the last of a choice."""
        published = 0
        for choice in job.choices:
            published += choice.published
        count = len(job.choices)
        own = self._open_requests[job.queue]  # it exists: the job entered it
        own.produced(job.id, published // count, self.clock() * 1e3, are_last=ends and count == 1)

    def left(self, job: LiveJob) -> None:
        if job.message is None:
            self.at(job.queue).withdraw(job.id, self.now_ms)
        else:
            self.at(job.queue).leave(job.id, finished=job.is_complete)
        self._flying.discard(job.id)
        if self._idle is not None:
            self._rest(self._idle)

    def _rest(self, idle: asyncio.Event) -> None:
        if self.are_idle:
            idle.set()
