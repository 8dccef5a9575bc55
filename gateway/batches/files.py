"""Tenants' files: their metadata in Redis. Their contents are in the storage, by file id.

    open ──keep──> kept ──drop──> gone      a file that is not kept within PENDING_S, or that expires, is swept

`expiring` lists a file from before its contents exist until after they are deleted, so a crash leaves no contents
behind.
"""

import re
import secrets
import time
from typing import Any, Literal

import msgspec
from redis.asyncio import Redis

from fairlane.common.views import view_of
from fairlane.gateway.batches import keys
from fairlane.gateway.batches.keys import SCRIPTS
from fairlane.gateway.batches.storage import Storage
from fairlane.gateway.dialects.openai.batches import FileObject
from fairlane.gateway.errors import ApiError, LimitBlock
from fairlane.store.scripts import call, texts

PURPOSE: Literal["batch"] = "batch"
DAY_S = 86_400
DEFAULT_EXPIRY_S = 30 * DAY_S
PENDING_S = 6 * 3_600
MOST_LISTED = 10_000
_ID = re.compile(r"file-[0-9a-f]{24}")


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """One complete file."""

    id: str
    bytes: int
    # All times are epoch seconds.
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    lines: int = 0
    readable: int = 0

    def shown(self) -> FileObject:
        return view_of(FileObject, self, object="file", status="processed", status_details=None)


def new_id() -> str:
    """Return a random file id."""
    return f"file-{secrets.token_hex(12)}"


def is_id(text: str) -> bool:
    """Return whether the text has the form of a file id."""
    return _ID.fullmatch(text) is not None


def contents(file_id: str) -> str:
    """Return the storage name of a file's contents."""
    return f"files/{file_id}"


def index(file_id: str) -> str:
    """Return the storage name of a file's line index."""
    return f"files/{file_id}.index"


class FileRecords:
    """The store of file metadata. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis, *, most_files: int, most_bytes: int) -> None:  # limits per tenant
        self._client = client
        self._most_files = most_files
        self._most_bytes = most_bytes

    async def open(self, root: str, account: str, file_id: str) -> None:
        """Reserve a slot for an upload. Raise ApiError if the tenant has too many files or bytes."""
        now_ms = round(time.time() * 1e3)
        await call(self._client, "ZADD", keys.FILE_ROOTS, now_ms, root)
        most = self._most_files, self._most_bytes
        ends_ms = now_ms + PENDING_S * 1_000
        how, *rest = await self._run("file_open", root, account, file_id, now_ms, ends_ms, *most)
        if how != b"ok":
            raise self._full(how, rest[0], 1)

    async def keep(self, root: str, account: str, kept: StoredFile) -> None:
        doc = msgspec.json.encode(kept)
        ends_ms, most = kept.expires_at * 1_000, self._most_bytes
        how, *rest = await self._run("file_keep", root, account, kept.id, doc, kept.bytes, ends_ms, most)
        if how == b"gone":
            raise ApiError("The upload took too long.", "request_timeout")
        if how != b"ok":
            raise self._full(how, rest[0], kept.bytes)

    async def get(self, root: str, account: str, file_id: str) -> StoredFile | None:
        if not is_id(file_id):
            return None
        place = f"{keys.of_root(root)}file:{file_id}"
        owner, doc = await call(self._client, "HMGET", place, "tenant", "doc")
        if owner is None or doc is None or owner.decode() != account:
            return None
        return _unexpired(msgspec.json.decode(doc, type=StoredFile))

    async def listed(
        self, root: str, account: str, *, after: str, limit: int, newest_first: bool
    ) -> list[StoredFile] | None:
        order = int(newest_first)
        found = await self._run("documents", root, account, "file", after, limit, order)
        if found is None:
            return None
        kept = [_unexpired(msgspec.json.decode(doc, type=StoredFile)) for doc in found[::2] if doc is not None]
        return [each for each in kept if each is not None]

    async def drop(self, root: str, file_id: str) -> None:
        await self._run("file_drop", root, file_id)

    async def roots(self) -> list[str]:
        return texts(await call(self._client, "ZRANGE", keys.FILE_ROOTS, 0, -1))

    async def unlist_if_empty(self, root: str) -> None:
        expiring = f"{keys.of_root(root)}expiring"
        if await call(self._client, "ZCARD", expiring):
            return
        await call(self._client, "ZREM", keys.FILE_ROOTS, root)
        if await call(self._client, "ZCARD", expiring):  # a file was added in between
            await call(self._client, "ZADD", keys.FILE_ROOTS, round(time.time() * 1e3), root)

    async def expired(self, root: str, limit: int, *, but_first: int = 0) -> list[str]:
        """Return up to `limit` expired files and batches of a root, oldest first, without the first `but_first`."""
        now_ms = round(time.time() * 1e3)
        expiring = f"{keys.of_root(root)}expiring"
        found = await call(self._client, "ZRANGEBYSCORE", expiring, "-inf", now_ms, "LIMIT", but_first, limit)
        return texts(found)

    async def _run(self, name: str, root: str, *args: bytes | str | float) -> Any:  # noqa: ANN401 - the script's reply
        return await SCRIPTS.run(self._client, name, keys.of_root(root), *args)

    def _full(self, how: bytes, used: int, requested: int) -> ApiError:
        if how == b"files":
            name, most = "files", self._most_files
            message = f"This tenant has {used} files of at most {most}: delete some first."
        else:
            name, most = "file_bytes", self._most_bytes
            message = f"This tenant's files have {used} bytes of at most {most}: delete some first."
        block = LimitBlock(name, "tenant", most, used, 0, requested, None)
        return ApiError(message, "request_exceeds_limit", "file", block)


async def delete(storage: Storage, records: FileRecords, root: str, file_id: str) -> None:
    """Delete a file: contents first, so that the sweep finishes an interrupted deletion."""
    await storage.delete(contents(file_id))
    await storage.delete(index(file_id))
    await records.drop(root, file_id)


def _unexpired(kept: StoredFile) -> StoredFile | None:
    return kept if kept.expires_at > time.time() else None
