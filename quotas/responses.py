"""Responses that are kept for a while, so that their tenant can read them again or go on from them.

Each belongs to one tenant, is gone after its time, and is sealed by its own id: the store has only a digest of that,
and so nobody who has the store alone can read any. What one tenant keeps is bounded in bytes and in number; beyond
either the oldest go.
"""

import asyncio
import hashlib
import zlib

from fairlane.quotas import keyspace
from fairlane.quotas.idempotency import Seal
from fairlane.quotas.scripts import Database, Redis

MOST_RESPONSES = 10_000
"""Of one tenant."""
_AT_ONCE = 100
_FAST = 1
"""zlib's level."""


class KeptResponses:
    """The responses in Redis. Every call may raise StoreUnavailable, and may be repeated."""

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
        """`ttl_ms`: how long each is kept; 0: not at all. `most_bytes`: of a tenant's, as they are kept: compressed.
        `most_response_bytes`: of one, as it is. `database`: for tests."""
        self._database = database or Database(client)
        self._ttl_ms = ttl_ms
        self._most_bytes = most_bytes
        self._most_response_bytes = most_response_bytes
        self._most_responses = most_responses

    async def keep(self, root: str, tenant: str, response_id: str, content: bytes) -> bool:
        """Keep a response; False where it is too large, or none is kept."""
        if not self._ttl_ms or len(content) > self._most_response_bytes:
            return False
        name = _name(response_id)
        closed = await asyncio.to_thread(_closed, content, response_id, keyspace.response(root, tenant, name))
        bounds = (self._ttl_ms, self._most_bytes, self._most_responses)
        return bool(
            await self._database.run("response_keep", keyspace.of_root(root), tenant, name, closed, *bounds),
        )

    async def read(self, root: str, tenant: str, response_id: str) -> bytes | None:
        """What was kept; None where there is none of this tenant's."""
        place = keyspace.response(root, tenant, _name(response_id))
        kept = await self._database.read_bytes(place, "body")
        return None if kept is None else await asyncio.to_thread(_opened, kept, response_id, place)

    async def forget(self, root: str, tenant: str, response_id: str) -> bool:
        """Forget one; False where there is none of this tenant's."""
        call = tenant, _name(response_id), self._database.new_call()
        return bool(await self._database.run("response_drop", keyspace.of_root(root), *call))


def _name(response_id: str) -> str:
    return hashlib.sha256(response_id.encode()).hexdigest()


def _closed(content: bytes, response_id: str, place: str) -> bytes:
    return Seal(response_id).close(zlib.compress(content, _FAST), place)


def _opened(kept: bytes, response_id: str, place: str) -> bytes | None:
    packed = Seal(response_id).open(kept, place)
    return None if packed is None else zlib.decompress(packed)


async def forget_responses(database: Database, root: str, account: str) -> int:
    """Forget all responses of a deleted tenant; how many. Raises StoreUnavailable."""
    count = 0
    while dropped := await database.run("responses_drop", keyspace.of_root(root), account, _AT_ONCE):
        count += dropped
    return count
