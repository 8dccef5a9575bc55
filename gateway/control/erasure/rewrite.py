"""Has the embedded store write its append-only file anew, so that what was erased is in no file of it either."""

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from fairlane.store.errors import is_rewriting


class StoreRewrite:
    """Rewrites the file of a store that is ours alone. Other stores' files are their operators' to rewrite."""

    def __init__(self, client: Redis, *, is_embedded: bool) -> None:
        self._client = client
        self._is_embedded = is_embedded

    async def begin(self) -> bool:
        """Begin a rewrite of what the store holds now. False: one that began earlier is not over, and may hold what was
        erased since. May raise redis.RedisError."""
        if not self._is_embedded:
            return True
        try:
            await self._client.execute_command("BGREWRITEAOF")  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if is_rewriting(error):
                return False
            raise
        return True
