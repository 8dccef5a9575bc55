"""What a tenant carries away sealed and brings back later, as the summary of a conversation: each tenant has a key.

The key is drawn when it is first wanted, stands in the store beside the tenant's budgets, and goes with the tenant.
A client can neither read nor change what it carries, nor make any. Who reads the store has the keys, but not what was
sealed with them: that is with the clients.

And the secret that keys pseudonyms in request traces, one for all gateways of an installation.
"""

import secrets

from fairlane.quotas import keyspace
from fairlane.quotas.idempotency import Seal
from fairlane.quotas.scripts import Database, Redis

KEY_BYTES = 32


class TenantSeal:
    """One tenant's."""

    def __init__(self, key: str, tenant: str) -> None:
        self._seal = Seal(key)
        self._place = f"carried:{tenant}"

    def close(self, content: bytes) -> bytes:
        """What the tenant may carry away."""
        return self._seal.close(content, self._place)

    def open(self, carried: bytes) -> bytes | None:
        """The content; None where it was not closed by this, or was changed."""
        return self._seal.open(carried, self._place)


class TenantSeals:
    """Those of all tenants. Every call may raise StoreUnavailable, and may be repeated."""

    def __init__(self, client: Redis, *, database: Database | None = None) -> None:
        """`database`: for tests."""
        self._database = database or Database(client)

    async def of(self, root: str, tenant: str) -> TenantSeal:
        """A tenant's, made now if there is none."""
        place = keyspace.seal(root, tenant)
        key = await self._database.call("GET", place)
        if key is None:
            await self._database.call("SET", place, secrets.token_hex(KEY_BYTES), "NX")
            key = await self._database.call("GET", place)
        return TenantSeal(str(key), tenant)


async def forget_seal(database: Database, root: str, tenant: str) -> None:
    """Forget the key of a tenant that is no more. Raises StoreUnavailable."""
    await database.call("DEL", keyspace.seal(root, tenant))


async def pseudonym_key(client: Redis, *, database: Database | None = None) -> bytes:
    """The key, drawn now if there is none. May be repeated. Raises StoreUnavailable. `database`: for tests."""
    calls = database or Database(client)
    key = await calls.call("GET", keyspace.PSEUDONYMS)
    if key is None:
        await calls.call("SET", keyspace.PSEUDONYMS, secrets.token_hex(KEY_BYTES), "NX")
        key = await calls.call("GET", keyspace.PSEUDONYMS)
    return bytes.fromhex(str(key))
