"""Batches in Redis: created and cancelled by any gateway, run by one gateway at a time under a lease."""

import asyncio
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from redis.asyncio import Redis

from fairlane.gateway.batches import keys
from fairlane.gateway.batches.batch import OPEN, Batch, KnownBatch, Progress
from fairlane.gateway.batches.files import StoredFile
from fairlane.gateway.batches.keys import SCRIPTS
from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import ApiKey
from fairlane.quotas.limits import BATCH_LIMIT, Limits, LimitStatus, Scope
from fairlane.quotas.tenants import Tenant
from fairlane.store.bounds import chunks
from fairlane.store.scripts import call, texts

_ID = re.compile(r"batch_[0-9a-f]{24}")
KEPT_S = 30 * 86_400
MOST_ROOTS = 10_000


@dataclass(frozen=True, slots=True)
class BatchesFull:
    """The limit that prevented a new batch."""

    limit: Literal["tenant", "key", "open"]
    used: int


@dataclass(frozen=True, slots=True)
class StandingBatch(KnownBatch):
    """An open batch, as operators see it."""

    owner: str
    # Upper bound of the tokens of its unfinished lines.
    enqueued_tokens: int


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch that the caller has just acquired."""

    root: str
    owner: str
    epoch: int
    batch: Batch
    # None: no line has run yet.
    progress: Progress | None
    is_cancelling: bool


class BatchRecords:
    """The store of batches. Every call may raise StoreUnavailable, and may be repeated."""

    def __init__(self, client: Redis, *, most_open: int) -> None:
        self._client = client
        self.most_open = most_open

    async def create(
        self, root: str, batch: Batch, tokens: int, *, tenant_limit: int | None, key_limit: int | None
    ) -> BatchesFull | None:
        """Store a new batch of about `tokens`, or return the limit that prevents it."""
        limits = [-1 if limit is None else limit for limit in (tenant_limit, key_limit)]
        now_ms = round(time.time() * 1e3)
        doc = msgspec.json.encode(batch)
        await self._enlist(root, now_ms)  # listed before and after, because a batch of an unlisted root would never run
        ids, input_file = (batch.id, batch.account, batch.key_id), (batch.input_file_id, batch.once_until_ms)
        how, *used = await self._run(
            "batch_create", root, *ids, doc, now_ms, max(1, tokens), *limits, self.most_open, *input_file
        )
        if how != b"ok":
            return BatchesFull(how.decode(), used[0])
        await self._enlist(root, now_ms)
        return None

    async def get(self, root: str, account: str, batch_id: str) -> KnownBatch | None:
        if _ID.fullmatch(batch_id) is None:
            return None
        place = f"{keys.of_root(root)}batch:{batch_id}"
        owner, doc, cancelling = await call(self._client, "HMGET", place, "tenant", "doc", "cancelling")
        if owner is None or owner.decode() != account:
            return None
        return KnownBatch(*_read(doc, cancelling))

    async def listed(
        self, root: str, account: str, *, after: str, limit: int, newest_first: bool = True
    ) -> list[KnownBatch] | None:
        found = await self._run("documents", root, account, "batch", after, limit, int(newest_first))
        return (
            None if found is None else [KnownBatch(*_read(*each)) for each in zip(found[::2], found[1::2], strict=True)]
        )

    async def cancel(self, root: str, batch_id: str) -> int | None:
        asked: int | None = await self._run("batch_cancel", root, batch_id)
        return asked

    async def enqueued(self, root: str, level: str) -> dict[str, int]:
        found = await call(self._client, "HGETALL", f"{keys.of_root(root)}enqueued:{level}")
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {batch.decode(): int(tokens) for batch, tokens in pairs}

    async def standing(self, tenant: Tenant, key: ApiKey | None) -> list[LimitStatus]:
        found = list[LimitStatus]()
        shadow = BATCH_LIMIT in tenant.shadow
        levels: list[tuple[Scope, str, Limits, bool]] = [
            ("tenant", keyspace.tenant_level(tenant.account), tenant.limits, shadow)
        ]
        if key is not None:
            levels.append(("key", keyspace.key_level(key.id), key.limits, False))
        for scope, level, limits, is_shadow in levels:
            limit = limits.enqueued_batch_tokens
            if limit is not None:
                held = sum((await self.enqueued(tenant.root, level)).values())
                status = LimitStatus(
                    name=BATCH_LIMIT,
                    scope=scope,
                    limit=limit,
                    used=0,
                    reserved=held,
                    resets_at=None,
                    reset_after_s=0.0,
                    shadow=is_shadow,
                )
                found.append(status)
        return found

    async def open_batches(self) -> list[StandingBatch]:
        found = list[StandingBatch]()
        for roots in chunks(await self.roots()):
            for of_root in await asyncio.gather(*map(self._open_of, roots)):
                found += of_root
        return found

    async def _open_of(self, root: str) -> list[StandingBatch]:
        found, cursor = dict[str, StandingBatch](), b"0"
        while True:
            cursor, *fields = await self._run("batches_open", root, cursor)
            for doc, cancelling, owner, tokens in zip(*[iter(fields)] * 4, strict=True):
                each = StandingBatch(*_read(doc, cancelling), owner=owner.decode(), enqueued_tokens=int(tokens))
                found[each.batch.id] = each
            if cursor == b"0":
                return list(found.values())

    async def inputs_in_use(self, root: str, account: str) -> set[str]:
        found = [await self.get(root, account, batch) for batch in await self.enqueued(root, f"tenant:{account}")]
        return {each.batch.input_file_id for each in found if each is not None and each.batch.status in OPEN}

    async def roots(self) -> list[str]:
        return texts(await call(self._client, "ZRANGE", keys.OPEN_ROOTS, 0, MOST_ROOTS - 1))

    async def take(self, root: str, owner: str, lease_ms: int, *, but: Iterable[str] = ()) -> TakenBatch | None:
        """Acquire a batch without an owner, except those in `but`. A root without open batches is unlisted."""
        found = await self._run("batch_take", root, owner, lease_ms, secrets.token_hex(8), *but)
        if len(found) == 1:
            if not found[0]:
                await call(self._client, "ZREM", keys.OPEN_ROOTS, root)
                if await call(self._client, "ZCARD", f"{keys.of_root(root)}open"):  # a batch was added in between
                    await self._enlist(root, round(time.time() * 1e3))
            return None
        _, epoch, doc, progress, cancelling = found
        return TakenBatch(
            root=root,
            owner=owner,
            epoch=epoch,
            batch=msgspec.json.decode(doc, type=Batch),
            progress=None if progress is None else msgspec.msgpack.decode(progress, type=Progress),
            is_cancelling=cancelling is not None,
        )

    async def renew(self, taken: TakenBatch, lease_ms: int, *, rest_ms: int = 0) -> tuple[bool, bool]:
        """Extend the lease, or release the batch for others to take after `rest_ms` if `lease_ms` is 0.

        Return whether the owner still holds the batch, and whether cancellation was requested."""
        held, *cancelling = await self._run_as_owner("batch_renew", taken, lease_ms, rest_ms)
        return bool(held), bool(cancelling and cancelling[0])

    async def save(self, taken: TakenBatch, batch: Batch, progress: Progress, tokens: int) -> bool:
        """Save the progress. Return False if the owner no longer holds the batch. `tokens`: those of unfinished
        lines."""
        doc, packed = msgspec.json.encode(batch), msgspec.msgpack.encode(progress)
        return bool(await self._run_as_owner("batch_save", taken, doc, packed, tokens))

    async def finish(self, taken: TakenBatch, batch: Batch, made: list[StoredFile]) -> bool:
        """Store the end of a batch and its output files. Return False if the owner no longer holds the batch."""
        now_ms = round(time.time() * 1e3)
        await call(self._client, "ZADD", keys.FILE_ROOTS, now_ms, taken.root)
        doc, ends_ms = msgspec.json.encode(batch), now_ms + KEPT_S * 1_000
        of_files = [
            part for each in made for part in (each.id, msgspec.json.encode(each), each.bytes, each.expires_at * 1_000)
        ]
        return bool(await self._run_as_owner("batch_finish", taken, doc, ends_ms, now_ms, *of_files))

    async def drop(self, root: str, batch_id: str, account: str = "") -> None:
        """Delete a batch; `account` is only needed for one that may be incomplete."""
        await self._run("batch_drop", root, batch_id, account)

    async def _enlist(self, root: str, now_ms: int) -> None:
        await call(self._client, "ZADD", keys.OPEN_ROOTS, now_ms, root)

    async def _run_as_owner(self, name: str, taken: TakenBatch, *args: bytes | str | float) -> Any:  # noqa: ANN401
        return await self._run(name, taken.root, taken.batch.id, taken.owner, taken.epoch, *args)

    async def _run(self, name: str, root: str, *args: bytes | str | float) -> Any:  # noqa: ANN401 - the script's reply
        return await SCRIPTS.run(self._client, name, keys.of_root(root), *args)


def _read(doc: bytes, cancelling: bytes | None) -> tuple[Batch, int | None]:
    return msgspec.json.decode(doc, type=Batch), None if cancelling is None else int(cancelling)
