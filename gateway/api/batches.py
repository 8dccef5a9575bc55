"""`/v1/batches`: many requests in one file, served within a time window on the throughput lane."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairlane.gateway.api.files import own_file, page, translated
from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import OPEN, Batch, KnownBatch, keyed_id, new_id
from fairlane.gateway.batches.batch_records import BatchesFull, BatchRecords
from fairlane.gateway.batches.files import FileRecords, StoredFile
from fairlane.gateway.batches.lines import LineIndex
from fairlane.gateway.batches.runner import BatchRunner
from fairlane.gateway.batches.storage import Storage, read_all
from fairlane.gateway.dialects.openai.batches import LONGEST_WINDOW_H, BatchBody, BatchesQuery, read_query
from fairlane.gateway.dialects.openai.reading import checked
from fairlane.gateway.errors import ApiError, LimitBlock, invalid, limit_denied, not_found
from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller, may_ask
from fairlane.gateway.insight.telemetry.context import CARRIED
from fairlane.gateway.middleware.idempotency import REPLAYED, key_of
from fairlane.gateway.middleware.idempotent_run import conflict
from fairlane.gateway.pipeline.context import Bounds, RequestContext
from fairlane.gateway.request.service_level import may_use_lane
from fairlane.quotas.limits import BATCH_LIMIT
from fairlane.scheduler.protocol.lanes import LaneName

PATH = "/v1/batches"
MAX_BODY_BYTES = 64 * 1024
# Lifetime of an idempotency key.
DAY_S = 86_400
# Retry time of a batch that exceeds a limit: there is no estimate of when other batches end.
AGAIN_S = 60.0


@dataclass(eq=False)
class BatchEndpoints:
    """The endpoints for batches."""

    records: BatchRecords
    file_records: FileRecords
    storage: Storage
    runner: BatchRunner
    fleet_cache: FleetCache
    bounds: Bounds

    async def create(self, context: RequestContext) -> None:
        asked = await self._read(context)
        known, is_replayed = await self.start(context, asked, lambda: self._input(asked, context.caller))
        await send_json(context.send, known.shown(), [REPLAYED] if is_replayed else [])

    async def start(
        self,
        context: RequestContext,
        asked: BatchBody,
        input_of: Callable[[], Awaitable[StoredFile]],
        *,
        is_inline: bool = False,
    ) -> tuple[KnownBatch, bool]:
        """Create a batch, or return the one that the idempotency key has created, and True. `input_of`: its file;
        `is_inline`: which is made from the body."""
        caller = context.caller
        key = key_of(context.headers)
        self._check(asked, caller)
        known = None if key is None else await self._earlier(caller, key)
        if known is not None:
            _check_same(known, asked)
            return known, True
        found = await input_of()
        now_s = int(time.time())
        batch = Batch(
            id=new_id() if key is None else keyed_id(name_of(caller), key, now_s // DAY_S),
            tenant=caller.tenant_id,
            incarnation=caller.identity.tenant.incarnation,
            key_id=caller.key_id,
            created_at=now_s,
            expires_at=now_s + int(asked.completion_window[:-1]) * 3_600,
            total=found.lines,
            is_inline=is_inline,
            traceparent=CARRIED.get().traceparent if context.span.is_recording else "",
            **_terms(asked),
        )
        await self._take_on(caller, batch)
        self.runner.wake()
        made = KnownBatch(batch, None) if key is None else await own_batch(self.records, caller, batch.id)
        _check_same(made, asked)  # a concurrent request with the same idempotency key may have created it
        return made, False

    async def list(self, context: RequestContext) -> None:
        caller = context.caller
        query = read_query(BatchesQuery, context.scope["query_string"])
        found = await self.records.listed(caller.root, caller.account, after=query.after, limit=query.limit + 1)
        if found is None:
            raise invalid("after", "`after` is not the id of a batch.")
        await send_json(context.send, page([each.shown() for each in found], query.limit), [])

    async def show(self, context: RequestContext) -> None:
        found = await own_batch(self.records, context.caller, context.path_params["batch"])
        await send_json(context.send, found.shown(), [])

    async def cancel(self, context: RequestContext) -> None:
        found = await own_batch(self.records, context.caller, context.path_params["batch"])
        await send_json(context.send, (await self.cancelled(context.caller, found)).shown(), [])

    async def cancelled(self, caller: Caller, found: KnownBatch) -> KnownBatch:
        """Request a batch's cancellation, and return the batch. Raises ApiError for one that has ended otherwise."""
        status = found.batch.status
        if status in OPEN and status != "finalizing":
            await self.records.cancel(caller.root, found.batch.id)
            self.runner.cancelled(found.batch.id)
            return await own_batch(self.records, caller, found.batch.id)
        if status != "cancelled" and found.batch.ends_as != "cancelled":
            raise invalid(None, f"The batch is {status}: it cannot be cancelled any more.")
        return found

    async def _earlier(self, caller: Caller, key: bytes) -> KnownBatch | None:
        now_s = int(time.time())
        for day in (now_s // DAY_S, now_s // DAY_S - 1):
            known = await self.records.get(caller.root, caller.account, keyed_id(name_of(caller), key, day))
            if known is not None and known.batch.created_at > now_s - DAY_S:
                return known
        return None

    async def _read(self, context: RequestContext) -> BatchBody:
        try:
            body = await context.read_body(max_bytes=MAX_BODY_BYTES, timeout_s=self.bounds.body_timeout_s)
        finally:
            context.exchange.release()
        return await self.bounds.room.run(context.tenant, len(body), partial(checked, BatchBody, {}, body))

    def _check(self, asked: BatchBody, caller: Caller) -> None:
        if int(asked.completion_window[:-1]) > LONGEST_WINDOW_H:
            raise invalid("completion_window", f"`completion_window` must be at most {LONGEST_WINDOW_H}h.")
        if not may_ask(caller, asked.endpoint):
            raise ApiError("This key may not be used for this path.", "endpoint_not_allowed", "endpoint")
        if not may_use_lane(caller.identity, LaneName.THROUGHPUT):
            raise ApiError(f"This key may not use the lane {LaneName.THROUGHPUT}.", "lane_not_allowed")

    async def _input(self, asked: BatchBody, caller: Caller) -> StoredFile:
        try:
            found = await own_file(self.file_records, caller, asked.input_file_id)
        except ApiError:
            raise invalid("input_file_id", "`input_file_id` is not the id of a file.") from None
        if found.purpose != files.PURPOSE:
            raise invalid("input_file_id", f"The file's purpose is not `{files.PURPOSE}`.")
        return found

    async def _take_on(self, caller: Caller, batch: Batch) -> None:
        tenant, key = caller.identity.tenant, caller.identity.key
        limits = {
            "tenant": None if BATCH_LIMIT in tenant.shadow else tenant.limits.enqueued_batch_tokens,
            "key": key.limits.enqueued_batch_tokens,
        }
        tokens = await self._tokens(batch)
        for scope, limit in limits.items():
            if limit is not None and tokens > limit:
                block = LimitBlock(BATCH_LIMIT, scope, limit, 0, 0, tokens, None)
                raise limit_denied("exceeds", block, None, "input_file_id")
        full = await self.records.create(
            caller.root, batch, tokens, tenant_limit=limits["tenant"], key_limit=limits["key"]
        )
        if full is not None:
            raise self._denied(full, limits, tokens)

    async def _tokens(self, batch: Batch) -> int:
        with translated():
            index = LineIndex(await read_all(self.storage, files.index(batch.input_file_id)))
        unstated = self.fleet_cache.longest_context or 0
        return await asyncio.to_thread(lambda: sum(entry.tokens(unstated) for entry in index))

    def _denied(self, full: BatchesFull, limits: dict[str, int | None], tokens: int) -> ApiError:
        if full.limit == "open":
            block = LimitBlock("open_batches", "tenant", self.records.most_open, full.used, 0, 1, None)
            return limit_denied("rate", block, AGAIN_S)
        limit = limits[full.limit]
        block = LimitBlock(BATCH_LIMIT, full.limit, limit or 0, full.used, 0, tokens, None)
        return limit_denied("rate", block, AGAIN_S)


def name_of(caller: Caller) -> bytes:
    """Return the name of a caller in what its idempotency keys identify."""
    return f"{caller.account} {caller.key_id} ".encode() + caller.holder


def _terms(asked: BatchBody) -> dict[str, Any]:
    after = asked.output_expires_after
    return {
        "endpoint": asked.endpoint,
        "input_file_id": asked.input_file_id,
        "completion_window": asked.completion_window,
        "output_expires_s": files.DEFAULT_EXPIRY_S if after is None else after.seconds,
        "metadata": asked.metadata,
    }


def _check_same(known: KnownBatch, asked: BatchBody) -> None:
    if any(getattr(known.batch, name) != value for name, value in _terms(asked).items()):
        raise conflict()


async def own_batch(records: BatchRecords, caller: Caller, batch_id: str) -> KnownBatch:
    """Return a batch of the caller's tenant. Raises ApiError `not_found`, for another tenant's too."""
    found = await records.get(caller.root, caller.account, batch_id)
    if found is None:
        raise not_found("batch")
    return found
