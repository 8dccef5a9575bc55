"""The secret that keys pseudonyms in request traces, one for all gateways of an installation."""

import secrets

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis

KEY_BYTES = 32


async def pseudonym_key(client: Redis, *, database: Database | None = None) -> bytes:
    """The key, drawn now if there is none. May be repeated. Raises StoreUnavailable. `database`: for tests."""
    calls = database or Database(client)
    key = await calls.call("GET", keyspace.PSEUDONYMS)
    if key is None:
        await calls.call("SET", keyspace.PSEUDONYMS, secrets.token_hex(KEY_BYTES), "NX")
        key = await calls.call("GET", keyspace.PSEUDONYMS)
    return bytes.fromhex(str(key))
