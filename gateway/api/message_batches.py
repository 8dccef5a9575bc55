"""`/v1/messages/batches`: Anthropic's batches, whose requests come in the body. They run as batches of a file do."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from fairlane.gateway.api.batches import BatchEndpoints, name_of, own_batch
from fairlane.gateway.api.files import translated
from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import OPEN, KnownBatch
from fairlane.gateway.batches.files import StoredFile
from fairlane.gateway.batches.lines import MAX_LINE_BYTES, LineScanner
from fairlane.gateway.batches.message_results import results_of
from fairlane.gateway.batches.storage import Drafts, NotStored
from fairlane.gateway.dialects.anthropic.batches import (
    DeletedMessageBatch,
    MessageBatchCounts,
    MessageBatchesQuery,
    MessageBatchObject,
    as_lines,
    read_requests,
    timestamp,
)
from fairlane.gateway.dialects.openai.batches import BatchBody, LinesEndpoint, read_query
from fairlane.gateway.errors import ANTHROPIC_PATH, ApiError, invalid, not_found
from fairlane.gateway.http.sse import ClientConnection, send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.middleware.idempotency import REPLAYED, key_of
from fairlane.gateway.pipeline.context import Endpoint, RequestContext
from fairlane.store.errors import STORE_ERRORS

PATH = f"{ANTHROPIC_PATH}/batches"
_ENDPOINT: LinesEndpoint = "/v1/messages"
_PREFIX, _STORED_PREFIX = "msgbatch_", "batch_"
_WINDOW = "24h"
# Batches that one look into the store returns, of which those of other endpoints are left out.
_LOOK = 100
_HEADERS = [(b"content-type", b"application/octet-stream"), (b"x-content-type-options", b"nosniff")]


@dataclass(eq=False)
class MessageBatches:
    """The endpoints for Message Batches."""

    batches: BatchEndpoints
    drafts: Drafts

    def routes(self) -> Sequence[tuple[str, str, Endpoint]]:
        one = f"{PATH}/{{message_batch}}"
        return [
            ("POST", PATH, self.create),
            ("GET", PATH, self.list),
            ("GET", one, self.show),
            ("DELETE", one, self.delete),
            ("POST", f"{one}/cancel", self.cancel),
            ("GET", f"{one}/results", self.results),
        ]

    async def create(self, context: RequestContext) -> None:
        try:
            known, is_replayed = await self._create(context)
        finally:
            context.exchange.release()
        await send_json(context.send, shown(known), [REPLAYED] if is_replayed else [])

    async def list(self, context: RequestContext) -> None:
        query = read_query(MessageBatchesQuery, context.scope["query_string"])
        is_backwards = bool(query.before_id)
        cursor = _stored_id(query.before_id or query.after_id)
        found = list[KnownBatch]()
        while len(found) <= query.limit:
            listed = await self.batches.records.listed(
                context.caller.root, context.caller.account, after=cursor, limit=_LOOK, newest_first=not is_backwards
            )
            if listed is None:
                name = "before_id" if is_backwards else "after_id"
                raise invalid(name, f"`{name}` is not the id of a batch.")
            found += [each for each in listed if each.batch.endpoint == ANTHROPIC_PATH]
            if len(listed) < _LOOK:
                break
            cursor = listed[-1].batch.id
        page = [shown(each) for each in found[: query.limit]]
        data = page[::-1] if is_backwards else page
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        await send_json(context.send, {"data": data, "has_more": len(found) > query.limit, **ends}, [])

    async def show(self, context: RequestContext) -> None:
        await send_json(context.send, shown(await self._own(context)), [])

    async def cancel(self, context: RequestContext) -> None:
        found = await self.batches.cancelled(context.caller, await self._own(context))
        await send_json(context.send, shown(found), [])

    async def delete(self, context: RequestContext) -> None:
        """Delete an ended batch with its files; those of the tenant's own uploads stay."""
        caller, batch = context.caller, (await self._own(context)).batch
        if batch.status in OPEN:
            raise invalid(None, "The batch has not ended: cancel it first.")
        made = [batch.output_file_id, batch.error_file_id]
        with translated():
            # A later batch of the same idempotency key and requests has the same input.
            in_use = await self.batches.records.inputs_in_use(caller.root, caller.account)
            if batch.is_inline and batch.input_file_id not in in_use:
                made.append(batch.input_file_id)
            for file_id in filter(None, made):
                await files.delete(self.batches.storage, self.batches.file_records, caller.root, file_id)
        await self.batches.records.drop(caller.root, batch.id)
        deleted = DeletedMessageBatch(id=_shown_id(batch.id), type="message_batch_deleted")
        await send_json(context.send, deleted, [])

    async def results(self, context: RequestContext) -> None:
        batch = (await self._own(context)).batch
        if batch.status in OPEN:
            raise invalid(None, "The batch has not ended: it has no results yet.")
        started = False
        with translated(), ClientConnection(context.exchange.disconnect) as client:
            try:
                async for part in results_of(self.batches.storage, batch):
                    if not started:
                        await context.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                        started = True
                    await context.send({"type": "http.response.body", "body": part, "more_body": True})
            except NotStored:
                if started:
                    raise
                raise not_found("file with results any more") from None
            if not started:
                await context.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            client.complete()
            await context.send({"type": "http.response.body", "body": b""})

    async def _own(self, context: RequestContext) -> KnownBatch:
        batch_id = _stored_id(context.path_params["message_batch"])
        found = await own_batch(self.batches.records, context.caller, batch_id)
        if found.batch.endpoint != ANTHROPIC_PATH:
            raise not_found("batch")
        return found

    async def _create(self, context: RequestContext) -> tuple[KnownBatch, bool]:
        bounds, caller, key = self.batches.bounds, context.caller, key_of(context.headers)
        body = await context.read_body(max_bytes=bounds.room.cap_bytes, timeout_s=bounds.body_timeout_s)

        def read() -> tuple[bytes, str]:
            content = as_lines(read_requests(body), ANTHROPIC_PATH, MAX_LINE_BYTES)
            return content, _file_id(caller, key, content)

        content, file_id = await bounds.room.run(context.tenant, len(body), read)
        asked = BatchBody(input_file_id=file_id, endpoint=_ENDPOINT, completion_window=_WINDOW)
        try:
            keep = partial(self._keep, caller, file_id, content)
            return await self.batches.start(context, asked, keep, is_inline=True)
        except ApiError:
            await self._discard(caller, file_id)
            raise

    async def _keep(self, caller: Caller, file_id: str, content: bytes) -> StoredFile:
        """Store the requests as a file."""
        records, storage = self.batches.file_records, self.batches.storage
        scanner = LineScanner()

        def indexed() -> bytes:
            scanner.feed(content)
            return scanner.finish().packed

        packed = await self.batches.bounds.room.run(caller.tenant_id, len(content), indexed)
        now_s = int(time.time())
        kept = StoredFile(
            id=file_id,
            bytes=len(content),
            created_at=now_s,
            expires_at=now_s + files.DEFAULT_EXPIRY_S,
            filename="message_batch.jsonl",
            purpose=files.PURPOSE,
            lines=content.count(b"\n"),
            readable=scanner.readable,
        )
        await records.open(caller.root, caller.account, file_id)
        with translated():
            for name, data in ((files.index(file_id), packed), (files.contents(file_id), content)):
                draft = self.drafts.new()
                await asyncio.to_thread(draft.write_bytes, data)
                await storage.put(name, draft)
        await records.keep(caller.root, caller.account, kept)
        return kept

    async def _discard(self, caller: Caller, file_id: str) -> None:
        """Delete the file of a batch that was refused, unless a request with the same key has created one of it."""
        batches = self.batches
        with suppress(*STORE_ERRORS, OSError):  # otherwise it expires
            if file_id not in await batches.records.inputs_in_use(caller.root, caller.account):
                await files.delete(batches.storage, batches.file_records, caller.root, file_id)


def shown(known: KnownBatch) -> MessageBatchObject:
    """Return a batch in Anthropic's format."""
    batch, status = known.batch, known.status
    ended = status not in OPEN
    counts = MessageBatchCounts(processing=batch.total, succeeded=0, errored=0, canceled=0, expired=0)
    if ended:
        counts = MessageBatchCounts(
            processing=0,
            succeeded=batch.completed,
            errored=batch.total - batch.completed - batch.unrun,
            canceled=batch.unrun if status == "cancelled" else 0,
            expired=batch.unrun if status == "expired" else 0,
        )
    cancelling_at = batch.cancelling_at if known.cancelling_ms is None else known.cancelling_ms // 1_000
    batch_id = _shown_id(batch.id)
    return MessageBatchObject(
        id=batch_id,
        type="message_batch",
        processing_status="ended" if ended else "canceling" if status == "cancelling" else "in_progress",
        request_counts=counts,
        created_at=timestamp(batch.created_at),
        expires_at=timestamp(batch.expires_at),
        ended_at=timestamp(batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at),
        cancel_initiated_at=timestamp(cancelling_at),
        archived_at=None,
        results_url=f"{PATH}/{batch_id}/results" if ended else None,
    )


def _shown_id(batch_id: str) -> str:
    return _PREFIX + batch_id.removeprefix(_STORED_PREFIX)


def _stored_id(batch_id: str) -> str:
    return _STORED_PREFIX + batch_id.removeprefix(_PREFIX) if batch_id.startswith(_PREFIX) else batch_id


def _file_id(caller: Caller, key: bytes | None, content: bytes) -> str:
    """Return a new file's id; with an idempotency key, the same for the same requests."""
    if key is None:
        return files.new_id()
    parts = (name_of(caller), key, content)
    return f"file-{hashlib.sha256(b''.join([hashlib.sha256(part).digest() for part in parts])).hexdigest()[:24]}"
