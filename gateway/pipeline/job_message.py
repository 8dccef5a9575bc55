"""The message that a worker receives for one prompt of a request: every field of a `Job`, and its source."""

import hashlib
from array import array

from fairlane.gateway.http.request_id import random_id
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.telemetry.context import CARRIED
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.pipeline.prepare import Plan, Tokens
from fairlane.quotas.store import Once, Reservation
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.planner.kv.prefix_reuse import salted_group
from fairlane.scheduler.protocol.messages import Job

_FINGERPRINT_DIGITS = 16
_SEED_BITS = 63


def job_message(
    caller: Caller,
    plan: Plan,
    number: int,
    dispatcher: Dispatcher,
    reservation: Reservation | None = None,
    elapsed_ms: float = 0.0,
) -> Job:
    """Return the job of the plan's prompt `number`, with the output reserved for it.

    `elapsed_ms` since the request's arrival is subtracted from durations, which count from now on in a job."""
    request, model, tenant, level = plan.request, plan.model, caller.identity.tenant, plan.service_level
    prompt, answer = plan.prompts[number], plan.answers[number]
    most = granted = plan.asked[number].max_tokens
    if reservation is not None:
        most = min(most, reservation.most_tokens)
        granted = min(most, reservation.granted_tokens)
    carried = CARRIED.get()
    seed = _drawn_seed(caller.once, number) if request.seed is None else request.seed
    return Job(
        job_id=plan.ids[number],
        gateway_id=dispatcher.gateway_id,
        gateway_address=dispatcher.address,
        tenant=tenant.id,
        tenant_since=tenant.created_at,
        weight=tenant.weight,
        share_group=_share_group(tenant, request.cache_salt),
        lane=level.lane.name,
        prompt=prompt,
        inputs=tuple(plan.inputs[number]) if plan.inputs else (),
        media=request.media.spans(prompt) if request.media.read else (),
        n=request.n,
        max_tokens=most,
        granted_until=granted,
        sampling=request.sampling(seed, model.text.card.eos_token_ids),
        grammar=plan.grammar.text,
        grammar_bytes=plan.grammar.compiled_bytes,
        close_json=request.close_json,
        ttft_ms=_left(level.ttft_ms, elapsed_ms),
        tpot_ms=level.lane.tpot_on(model.single_stream_ms),
        deadline_ms=None if level.deadline_ms is None else _left(level.deadline_ms, elapsed_ms),
        hard_ttft_ms=None if level.hard_ttft_ms is None else _left(level.hard_ttft_ms, elapsed_ms),
        guaranteed=plan.guaranteed,
        pace_ms=answer.pace_ms,
        claim_ms=answer.claim_ms,
        work_ms=answer.work_ms,
        token_ms=answer.token_ms,
        exact=tenant.is_exact,
        follows=number > 0 or caller.batch_due_ms is not None,
        prompt_print="" if caller.once is None else _fingerprint(prompt),
        traceparent=carried.traceparent,
        request_id=carried.request_id,
    )


def _left(ms: float, elapsed_ms: float) -> float:
    return max(1.0, ms - elapsed_ms)


def _share_group(tenant: Tenant, salt: str) -> str:
    """Return the group that shares cached prompts: the tenant's, or the part of it that uses the same salt."""
    if not salt:
        return tenant.share_group
    return salted_group(tenant.id, tenant.created_at, tenant.share_group, salt)


def _fingerprint(prompt: Tokens) -> str:
    """Fingerprint a prompt. A repeated request may have another prompt, if its template contains the date."""
    return hashlib.sha256(array("I", prompt).tobytes()).hexdigest()[:_FINGERPRINT_DIGITS]


def _drawn_seed(once: Once | None, number: int) -> int:
    """Return the seed of a prompt whose request states none: drawn by the gateway, so that any worker continues the
    stream alike, and the same for each run under one idempotency key."""
    if once is None:
        return int(random_id(), 16) % (1 << _SEED_BITS)
    digest = hashlib.sha256(f"{once.name}:{number}".encode()).digest()
    return int.from_bytes(digest) % (1 << _SEED_BITS)
