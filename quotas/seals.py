"""Sealed state that clients hold and send back later, such as conversation summaries, with one key per tenant.

The key is drawn on first use, lies in the store with the tenant's budgets, and is deleted with the tenant. A client
can neither read, change nor forge sealed state. A reader of the store has the keys, but not the sealed content.

Also the secret that keys pseudonyms in request traces, one for all gateways of an installation."""

from fairlane.quotas import keyspace
from fairlane.quotas.idempotency import Seal
from fairlane.quotas.scripts import Database, Redis


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

    def __init__(self, client: Redis, *, database: Database | None = None) -> None:
        self._database = database or Database(client)

    async def of(self, root: str, tenant: str) -> TenantSeal:
        return TenantSeal(await self._database.secret(keyspace.seal(root, tenant)), tenant)


async def forget_seal(database: Database, root: str, tenant: str) -> None:
    """Delete the key of a deleted tenant. Raises StoreUnavailable."""
    await database.call("DEL", keyspace.seal(root, tenant))


async def pseudonym_key(client: Redis, *, database: Database | None = None) -> bytes:
    """Return the key, drawing it if there is none. May be repeated. Raises StoreUnavailable. `database`: for tests."""
    return bytes.fromhex(await (database or Database(client)).secret(keyspace.PSEUDONYMS))
