"""Records of requests with an idempotency key: who runs each, and how it ended, for 24 hours after it began.

An owner that neither renews nor ends its run within a lease loses it to the next caller of `begin`. Bodies are sealed
with keys derived from the API key (HKDF, RFC 5869), of which the store has only a hash."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from fairlane.common.redacted import Redacted
from fairlane.common.seal import Seal
from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis, Reply
from fairlane.quotas.store import Once
from fairlane.store.bounds import PER_CALL, chunks

# Per API key.
MOST_RECORDS = 100_000
# Characters of the fingerprint in the name of what a request's runs share (idempotency.lua).
_PRINT = 16
# zlib's level: frames of a stream are so similar that more effort gains little.
_FAST = 1


class Name(msgspec.Struct, frozen=True):
    """The location of a record."""

    root: str
    key_id: str
    digest: str


class EndedRun(Redacted, frozen=True, kw_only=True):
    """The response with which a request ended."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


class OwnedRun(msgspec.Struct, frozen=True):
    """The caller owns the request and must run it."""

    once: Once
    # Reservation ids of earlier runs that may have produced output, newest first.
    runs: tuple[str, ...]


class LineCharge(msgspec.Struct, frozen=True):
    """The tokens that all runs of a batch line were charged."""

    prompt: int
    cached: int
    output: int
    # A run is not settled yet.
    is_open: bool


# `running`: another owner runs it. `conflict`: the key was used for a different request.
Begun = OwnedRun | Literal["running", "conflict"] | EndedRun


class IdempotencyRecords:
    """The idempotency records in Redis. Every call may raise StoreUnavailable, and may be repeated. Calls with an
    `owner` return False if another owner has the request."""

    def __init__(
        self,
        client: Redis,
        *,
        lease_ms: int,
        most_bytes: int,
        most_records: int = MOST_RECORDS,
        database: Database | None = None,
    ) -> None:
        """`most_bytes`: per API key, of compressed bodies. `database`: for tests."""
        self._database = database or Database(client)
        self._lease_ms = lease_ms
        self._most_bytes = most_bytes
        self._most_records = most_records

    async def begin(self, name: Name, owner: str, fingerprint: str, seal: Seal | None) -> Begun:
        """Acquire the request for an owner, unique to this attempt, or return its state. Only an API key has a seal."""
        how, *end = await self._run("idem_begin", name, owner, fingerprint, self._lease_ms, self._most_records)
        if how == "acquired":
            once, until_ms, runs = end
            return OwnedRun(Once(once, until_ms), tuple(runs))
        if how != "ended":
            known: Begun = how
            return known
        status, headers, has_body = end
        body = await self._body(name, seal) if has_body and seal is not None else None
        return EndedRun(
            status=int(status), headers=msgspec.json.decode(headers, type=tuple[tuple[str, str], ...]), body=body
        )

    async def runs_of(self, root: str, once: str) -> tuple[str, ...]:
        return tuple(await self._database.call("ZREVRANGE", f"{keyspace.of_root(root)}runs:{once}", 0, -1))

    async def expire_runs(self, root: str, onces: Sequence[str]) -> None:
        for chunk in chunks(onces):
            await self._database.run("idem_over", keyspace.of_root(root), *chunk)

    async def charges(self, root: str, onces: Sequence[str]) -> list[LineCharge]:
        """Return the charges of batch lines, by the names that their runs share."""
        found: list[LineCharge] = []
        for chunk in chunks(onces):
            rows = await self._database.run("idem_charged", keyspace.of_root(root), *chunk)
            found += [LineCharge(prompt, cached, output, bool(is_open)) for prompt, cached, output, is_open in rows]
        return found

    async def renew(self, name: Name, owner: str) -> bool:
        return bool(await self._run("idem_renew", name, owner, self._lease_ms))

    async def finish(self, name: Name, owner: str, ended: EndedRun, seal: Seal | None) -> bool:
        body = b""
        if ended.body is not None and seal is not None:
            body = await asyncio.to_thread(close_compressed, ended.body, seal, _place(name))
        headers = msgspec.json.encode(ended.headers).decode()
        return bool(await self._run("idem_finish", name, owner, ended.status, headers, body, self._most_bytes))

    async def release(self, name: Name, owner: str) -> bool:
        return bool(await self._run("idem_release", name, owner))

    async def _run(self, script: str, name: Name, *args: str | int | bytes) -> Reply:
        return await self._database.run(script, keyspace.of_root(name.root), name.key_id, name.digest, *args)

    async def _body(self, name: Name, seal: Seal) -> bytes | None:
        kept = await self._database.read_bytes(_place(name), "body")
        return None if kept is None else await asyncio.to_thread(open_compressed, kept, seal, _place(name))


def _place(name: Name) -> str:
    return keyspace.idempotency(name.root, name.key_id, name.digest)


def close_compressed(body: bytes, seal: Seal, place: str) -> bytes:
    """Compress a body and close it with a seal."""
    return seal.close(zlib.compress(body, _FAST), place)


def open_compressed(kept: bytes, seal: Seal, place: str) -> bytes | None:
    """Open and decompress a body; None if the seal does not open it."""
    packed = seal.open(kept, place)
    return None if packed is None else zlib.decompress(packed)


async def forget_all(database: Database, root: str, key_id: str) -> None:
    """Delete all records of an erased API key, and what their runs share. Raises StoreUnavailable."""
    prefix = keyspace.of_root(root)
    index = f"{prefix}idems:{key_id}"
    while digests := await database.call("ZRANGE", index, 0, PER_CALL - 1):
        for digest in digests:
            record = keyspace.idempotency(root, key_id, digest)
            print_ = await database.call("HGET", record, "print")
            once = f"{key_id}:{digest}:{(print_ or '')[:_PRINT]}"
            await database.call("UNLINK", record, f"{prefix}runs:{once}", f"{prefix}paid:{once}")
        await database.call("ZREM", index, *digests)
    await database.call("UNLINK", f"{prefix}answers:{key_id}", f"{prefix}kept:{key_id}")
