"""`/v1/files`: input and output of batches, streamed to and from the storage."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from starlette.requests import ClientDisconnect

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords, StoredFile
from fairlane.gateway.batches.lines import MAX_LINE_BYTES, LineIndex, LineScanner
from fairlane.gateway.batches.storage import Drafts, NotStored, Storage
from fairlane.gateway.dialects.openai.batches import LONGEST_EXPIRY_S, SHORTEST_EXPIRY_S, FilesQuery, read_query
from fairlane.gateway.errors import ApiError, LimitBlock, invalid, not_found, speaks_anthropic
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.http.multipart import FILE, Form, read_form
from fairlane.gateway.http.sse import ClientConnection, send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.context import Endpoint, RequestContext
from fairlane.store.errors import STORE_ERRORS

PATH = "/v1/files"
LONGEST_NAME = 255
WRITE_BYTES = 256 * 1024
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEndpoints:
    """The endpoints for files."""

    records: FileRecords
    batches: BatchRecords
    storage: Storage
    drafts: Drafts
    max_bytes: int
    timeout_s: float
    uploads_at_once: int
    room: BodyRoom
    _uploading: Counter[str] = field(default_factory=Counter)

    async def upload(self, context: RequestContext) -> None:
        caller = context.caller
        file_id = files.new_id()
        with self._turn(caller.tenant_id):
            await self.records.open(caller.root, caller.account, file_id)
            try:
                with translated():
                    kept = await self._kept(context, file_id)
                await self.records.keep(caller.root, caller.account, kept)
            except (ApiError, ClientDisconnect, *STORE_ERRORS):
                with suppress(*STORE_ERRORS):  # otherwise the sweep removes it
                    await files.delete(self.storage, self.records, caller.root, file_id)
                raise
        await send_json(context.send, kept.shown(), [])

    async def list(self, context: RequestContext) -> None:
        caller = context.caller
        query = read_query(FilesQuery, context.scope["query_string"])
        found = await self.records.listed(
            caller.root,
            caller.account,
            after=query.after,
            limit=files.MOST_LISTED + 1,
            newest_first=query.order == "desc",
        )
        if found is None:
            raise invalid("after", "`after` is not the id of a file.")
        chosen = [each for each in found if query.purpose in ("", each.purpose)]
        await send_json(context.send, page([each.shown() for each in chosen], query.limit), [])

    async def show(self, context: RequestContext) -> None:
        found = await own_file(self.records, context.caller, context.path_params["file"])
        await send_json(context.send, found.shown(), [])

    async def delete(self, context: RequestContext) -> None:
        caller = context.caller
        found = await own_file(self.records, caller, context.path_params["file"])
        if found.id in await self.batches.inputs_in_use(caller.root, caller.account):
            raise invalid(FILE, "A batch that has not ended reads this file: cancel it first.")
        with translated():
            await files.delete(self.storage, self.records, caller.root, found.id)
        await send_json(context.send, {"id": found.id, "object": "file", "deleted": True}, [])

    async def content(self, context: RequestContext) -> None:
        found = await own_file(self.records, context.caller, context.path_params["file"])
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % found.bytes),
            (b"x-content-type-options", b"nosniff"),
        ]
        left, started = found.bytes, False
        with translated(), ClientConnection(context.exchange.disconnect) as client:
            async for part in self.storage.read(files.contents(found.id)):
                if not started:
                    await context.send({"type": "http.response.start", "status": 200, "headers": headers})
                    started = True
                await context.send({"type": "http.response.body", "body": part, "more_body": True})
                left -= len(part)
                if not left:  # clients stop reading at the content-length, before the storage reports its end
                    client.complete()
            if not started:
                await context.send({"type": "http.response.start", "status": 200, "headers": headers})
            await context.send({"type": "http.response.body", "body": b""})

    async def _kept(self, context: RequestContext, file_id: str) -> StoredFile:
        draft = await asyncio.to_thread(_Upload, self.drafts.new(), self.room, context.tenant)
        try:
            form = await read_form(
                context.receive,
                context.headers,
                draft.write,
                max_file_bytes=self.max_bytes,
                timeout_s=self.timeout_s,
                hold=context.exchange.hold,
                tenant=context.tenant,
                arrived=context.exchange.channel.take_body(),
            )
            expires_after_s = _expires_after_s(form)
            found = await draft.finish()
            indexed = self.drafts.new()
            await asyncio.to_thread(indexed.write_bytes, found.packed)
            await self.storage.put(files.index(file_id), indexed)
            await self.storage.put(files.contents(file_id), draft.path)
        finally:
            context.body_bytes = draft.bytes  # a rejected upload counts against its key
            await asyncio.to_thread(draft.discard)
        now_s = int(time.time())
        return StoredFile(
            id=file_id,
            bytes=form.file_bytes,
            created_at=now_s,
            expires_at=now_s + expires_after_s,
            filename="".join(filter(str.isprintable, form.file_name or ""))[:LONGEST_NAME],
            purpose="batch",
            lines=len(found),
            readable=draft.scanner.readable,
        )

    @contextmanager
    def _turn(self, tenant: str) -> Iterator[None]:
        most = self.uploads_at_once
        if self._uploading[tenant] >= most:
            block = LimitBlock("uploads", "tenant", most, self._uploading[tenant], 0, 1, None)
            message = f"This tenant is already uploading {most} files at the same time."
            raise ApiError(message, "concurrency_limit_exceeded", limit=block, retry_after_s=1.0)
        self._uploading[tenant] += 1
        try:
            yield
        finally:
            self._uploading[tenant] -= 1
            if not self._uploading[tenant]:
                del self._uploading[tenant]


def of_openai(endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint for OpenAI's clients. The files of Anthropic's API, at the same paths, are not served."""

    async def served(context: RequestContext) -> None:
        if speaks_anthropic(context.headers):
            raise ApiError("Files of Anthropic's API are not served here: send texts themselves.", "not_found")
        await endpoint(context)

    return served


async def own_file(records: FileRecords, caller: Caller, file_id: str) -> StoredFile:
    """Return a file of the caller's tenant. Raises ApiError `not_found`, for another tenant's too."""
    found = await records.get(caller.root, caller.account, file_id)
    if found is None:
        raise not_found("file")
    return found


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the disk or bucket to ApiError `unavailable`."""
    try:
        yield
    except NotStored:
        message = "The file's content is not in this gateway's storage."
        raise ApiError(message, "unavailable", retry_after_s=5.0) from None
    except OSError as error:
        raise ApiError("The file storage cannot be used now.", "unavailable", retry_after_s=5.0) from error


def page(shown: Sequence[Mapping[str, Any]], limit: int, *, no_id: str | None = None) -> dict[str, object]:
    """Return a page in OpenAI's list format. `shown` has one item more than `limit` if there are more. `no_id`: the ids
    of an empty page."""
    data = shown[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else no_id,
        "last_id": data[-1]["id"] if data else no_id,
        "has_more": len(shown) > limit,
    }


class _Upload:
    """An upload in progress: written to disk in threads, and scanned for lines as it arrives."""

    def __init__(self, path: Path, room: BodyRoom, tenant: str) -> None:
        self.path = path
        self._room, self._tenant = room, tenant
        self.scanner = LineScanner()
        self.bytes = 0
        self._file: IO[bytes] = path.open("wb")
        self._unwritten = bytearray()

    async def write(self, data: bytes) -> None:
        self._unwritten += data
        self.bytes += len(data)
        if len(self._unwritten) >= WRITE_BYTES:
            await self._write()

    async def finish(self) -> LineIndex:
        await self._write()
        await asyncio.to_thread(self._file.close)
        return await self._room.in_thread(self._tenant, MAX_LINE_BYTES, self.scanner.finish)

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    async def _write(self) -> None:
        ready, self._unwritten = bytes(self._unwritten), bytearray()
        await asyncio.to_thread(self._file.write, ready)
        await self._room.in_thread(self._tenant, len(ready), partial(self.scanner.feed, ready))


def _expires_after_s(form: Form) -> int:
    fields: Mapping[str, str] = form.fields
    for name in fields:
        if name not in _FIELDS:
            raise invalid(name[:64], "The form has an unknown field.")
    if fields.get("purpose") != files.PURPOSE:
        raise invalid("purpose", f"`purpose` must be `{files.PURPOSE}`: other purposes are not supported.")
    if form.file_name is None:
        raise invalid(FILE, f"`{FILE}` is required.")
    if _ANCHOR not in fields and _SECONDS not in fields:
        return files.DEFAULT_EXPIRY_S
    if fields.get(_ANCHOR) != "created_at":
        raise invalid(_ANCHOR, f"`{_ANCHOR}` must be created_at.")
    seconds = fields.get(_SECONDS, "")
    is_whole = seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    if not is_whole or not SHORTEST_EXPIRY_S <= int(seconds) <= LONGEST_EXPIRY_S:
        rule = f"must be a whole number from {SHORTEST_EXPIRY_S} to {LONGEST_EXPIRY_S}."
        raise invalid(_SECONDS, f"`{_SECONDS}` {rule}")
    return int(seconds)
