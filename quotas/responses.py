"""Stored responses and conversations, which their tenant can read and continue, and sealed state that clients hold.

A response is sealed with its own id, of which the store has only a digest. State that clients hold is sealed with a key
in the store, which is deleted with the tenant; a client can neither read, change nor forge it."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Literal
from weakref import WeakValueDictionary

from fairlane.common.seal import Seal
from fairlane.quotas import keyspace
from fairlane.quotas.idempotency import close_compressed, open_compressed
from fairlane.quotas.scripts import Database, Redis

# Per tenant.
MOST_RESPONSES = 10_000
# Changes of one content that wait for each other.
MOST_WAITING = 128
# Concurrent changes of one content, by other processes, that a change may lose to.
_MOST_TRIES = 32


class _Turns(asyncio.Lock):
    taken = 0


class KeptResponses:
    """The stored responses in Redis. Every call may raise StoreUnavailable, and may be repeated."""

    def __init__(
        self,
        client: Redis,
        *,
        ttl_ms: int,
        most_bytes: int,
        most_response_bytes: int,
        most_responses: int = MOST_RESPONSES,
        database: Database | None = None,
    ) -> None:
        """`ttl_ms`: 0 stores none. `most_bytes`: per tenant, compressed. `most_response_bytes`: uncompressed."""
        self._database = database or Database(client)
        self._ttl_ms = ttl_ms
        self._most_bytes = most_bytes
        self._most_response_bytes = most_response_bytes
        self._most_responses = most_responses
        # Changes take turns, by the content's place, because they would lose to each other.
        self._turns: WeakValueDictionary[str, _Turns] = WeakValueDictionary()

    async def keep(self, root: str, tenant: str, response_id: str, content: bytes) -> bool:
        """Store a response; False if it is too large or storage is off."""
        if not self._ttl_ms or len(content) > self._most_response_bytes:
            return False
        name, place = _name(response_id), _place(root, tenant, response_id)
        closed = await asyncio.to_thread(close_compressed, content, Seal(response_id), place)
        bounds = (self._ttl_ms, self._most_bytes, self._most_responses)
        return bool(await self._database.run("response_keep", keyspace.of_root(root), tenant, name, closed, *bounds))

    async def change(
        self, root: str, tenant: str, response_id: str, change: Callable[[bytes], bytes]
    ) -> Literal["kept", "gone", "full", "contended"]:
        """Replace stored content by what `change` makes of it. `change` is called again if another process made a
        change meanwhile."""
        turns = self._turns.setdefault(_place(root, tenant, response_id), _Turns())
        if turns.taken >= MOST_WAITING:
            return "contended"
        turns.taken += 1
        try:
            async with turns:
                return await self._change(root, tenant, response_id, change)
        finally:
            turns.taken -= 1

    async def _change(
        self, root: str, tenant: str, response_id: str, change: Callable[[bytes], bytes]
    ) -> Literal["kept", "gone", "full", "contended"]:
        name, place, seal = _name(response_id), _place(root, tenant, response_id), Seal(response_id)
        bounds = (self._ttl_ms, self._most_bytes, self._most_responses)

        def changed(kept: bytes) -> bytes | None:
            known = open_compressed(kept, seal, place)
            content = b"" if known is None else change(known)
            return None if len(content) > self._most_response_bytes else close_compressed(content, seal, place)

        for _ in range(_MOST_TRIES):
            kept = await self._database.read_bytes(place, "body")
            if kept is None:
                return "gone"
            closed = await asyncio.to_thread(changed, kept)
            if closed is None:
                return "full"
            sha1 = hashlib.sha1(kept, usedforsecurity=False).hexdigest()
            done = await self._database.run(
                "response_keep", keyspace.of_root(root), tenant, name, closed, *bounds, sha1
            )
            if done >= 0:
                return "kept" if done else "full"
        return "contended"

    async def read(self, root: str, tenant: str, response_id: str) -> bytes | None:
        place = _place(root, tenant, response_id)
        kept = await self._database.read_bytes(place, "body")
        return None if kept is None else await asyncio.to_thread(open_compressed, kept, Seal(response_id), place)

    async def forget(self, root: str, tenant: str, response_id: str) -> bool:
        call = tenant, _name(response_id), self._database.new_call()
        return bool(await self._database.run("response_drop", keyspace.of_root(root), *call))


def _name(response_id: str) -> str:
    return hashlib.sha256(response_id.encode()).hexdigest()


def _place(root: str, tenant: str, response_id: str) -> str:
    return f"{keyspace.of_root(root)}response:{tenant}:{_name(response_id)}"


class TenantSeal:
    """The seal of one tenant."""

    def __init__(self, key: str, tenant: str) -> None:
        self._seal = Seal(key)
        self._place = f"carried:{tenant}"

    def close(self, content: bytes) -> bytes:
        return self._seal.close(content, self._place)

    def open(self, carried: bytes) -> bytes | None:
        return self._seal.open(carried, self._place)


class TenantSeals:
    """The seals of all tenants. Every call may raise StoreUnavailable, and may be repeated."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def of(self, root: str, tenant: str) -> TenantSeal:
        return TenantSeal(await self._database.secret(f"{keyspace.of_root(root)}seal:{tenant}"), tenant)
