"""Leader election among the processes that share a store: one of them does the upkeep for all.

Two processes may both consider themselves elected for a moment, so elected work must be safe to do twice."""

import time
from collections.abc import Callable

import redis.asyncio

from fairlane.store.retry import every
from fairlane.store.scripts import Script

STANDS_PER_LEASE = 3
_STAND = Script("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")
_LEAVE = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")


class Election:
    """One process's candidacy. A dead holder is replaced within one lease and a third."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        key: str,
        name: str,
        *,
        lease_s: float,
        is_fit: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is unique to this process. It is a candidate only while `is_fit` returns true."""
        self._client = client
        self._key, self._name = key, name
        self._lease_s = lease_s
        self._is_fit = is_fit
        self._clock = clock
        self._until_s = 0.0

    @property
    def is_elected(self) -> bool:
        return self._clock() < self._until_s

    async def run(self) -> None:
        await every(self._lease_s / STANDS_PER_LEASE, "the election", self.stand)

    async def stand(self) -> bool:
        """Ask to be elected, or to remain elected; return whether this process is. Raises what the client raises."""
        asked_s = self._clock()
        if self._is_fit() and await _STAND.run(self._client, self._key, self._name, round(self._lease_s * 1e3)):
            self._until_s = asked_s + self._lease_s
        return self.is_elected

    async def leave(self) -> None:
        self._until_s = 0.0
        await _LEAVE.run(self._client, self._key, self._name)
