"""Rewrites the embedded store's append-only file, so that erased data is also gone from disk."""

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from fairlane.store.errors import is_rewriting


class StoreRewrite:
    """Rewrites the append-only file of the embedded store. Operators must rewrite those of other stores."""

    def __init__(self, client: Redis, *, is_embedded: bool) -> None:
        self._client = client
        self._is_embedded = is_embedded

    async def begin(self) -> bool:
        """Start a rewrite. Return False if an earlier one still runs, which may contain data erased since.

        May raise redis.RedisError."""
        if not self._is_embedded:
            return True
        try:
            await self._client.execute_command("BGREWRITEAOF")  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if is_rewriting(error):
                return False
            raise
        return True
