"""A gateway's calls to its budgets, in a process of its own: reservations and settlements, and the least scripts.

Started by `benchmarks.quotas.rates`, one order after the other: see `benchmarks.common.turns`.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

import redis.asyncio
import uvloop

from benchmarks.common.turns import Answer, Order, answer_turns
from benchmarks.quotas.drive import Operation, drive
from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge
from fairlane.quotas.tenants import TenantStore
from fairlane.store.connections import connections

LIMITS = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "tokens_per_day": 10**14}
"""Of each tenant: all that they cost, and never refused."""
TIMEOUT_S = 30.0
CONNECTIONS = 8
SEED = "seed"
COPIED_AT_ONCE = 1_000
PROMPT_TOKENS, OUTPUT_TOKENS, QUANTUM = 20, 30, 64
LEAST = """
local n = redis.call('HGET', KEYS[1], 'n')
redis.call('HSET', KEYS[1], 'n', (tonumber(n) or 0) + 1)
return 1
"""
"""The least script that reads and writes: what a store can do of them is the ceiling of ours."""


COPY = """
for number = ARGV[3], ARGV[4] do
  local id = 't' .. number
  local prefix = 'fl:quota:{' .. id .. '}:'
  redis.call('COPY', KEYS[1] .. 'tenant:' .. ARGV[1], prefix .. 'tenant:' .. id)
  redis.call('COPY', KEYS[1] .. 'card:tenant:' .. ARGV[1], prefix .. 'card:tenant:' .. id)
  redis.call('COPY', KEYS[1] .. 'key:' .. ARGV[2], prefix .. 'key:' .. ARGV[2])
  redis.call('HSET', prefix .. 'key:' .. ARGV[2], 'tenant', id)
  local card = redis.call('GET', KEYS[1] .. 'card:key:' .. ARGV[2])
  redis.call('SET', prefix .. 'card:key:' .. ARGV[2], string.sub(card, 1, -1 - #ARGV[1]) .. id)
end
"""
"""Makes tenants like one that the admin's way has made, of which ARGV names the id and the key."""


class Caller:
    """One client of the store, with the connections that a gateway has."""

    def __init__(self, url: str) -> None:
        self._connections = connections(url, timeout_s=TIMEOUT_S, limit=CONNECTIONS)
        self._client: redis.asyncio.Redis = self._connections.patient
        self._quotas = RedisQuotaStore(self._client)
        self._key_id, self._least = "", ""
        self._tenants = 0
        self._numbers = itertools.count()

    async def set_up(self, tenants: int) -> None:
        """Make tenants with limits and a key each, until there are so many."""
        if not self._key_id:
            seed = await TenantStore(self._client).create({"id": SEED, "limits": LIMITS})
            self._key_id = (await KeyStore(self._client).create(seed, {"name": "bench"})).key.id
            self._least = await self._client.script_load(LEAST)
        copy = await self._client.script_load(COPY)
        for first in range(self._tenants, tenants, COPIED_AT_ONCE):
            last = min(first + COPIED_AT_ONCE, tenants) - 1
            await self._client.evalsha(copy, 1, keyspace.of_root(SEED), SEED, self._key_id, first, last)
        self._tenants = max(self._tenants, tenants)

    async def turn(self, kind: str, tenants: int, concurrency: int, seconds: float) -> Answer:
        """Drive one kind of operation."""
        operate: Operation = {"budget": self._budget, "least": self._twice}[kind]
        return await drive(operate, self._numbers, tenants=tenants, concurrency=concurrency, seconds=seconds)

    async def _budget(self, number: int, tenant: int) -> None:
        """Reserve for one request, and settle it."""
        name, reservation_id = f"t{tenant}", f"job-{number}"
        ask = Ask(
            reservation_id=reservation_id,
            root=name,
            tenant=name,
            key_id=self._key_id,
            model="model",
            lane="latency",
            prompts=(PROMPT_TOKENS,),
            max_output_tokens=QUANTUM * 4,
            explicit_max=False,
            quantum=QUANTUM,
        )
        await self._quotas.reserve(ask)
        charge = Charge(prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, outcome="finished")
        await self._quotas.settle(name, reservation_id, charge)

    async def _twice(self, number: int, tenant: int) -> None:
        """Two of the least scripts, one after the other."""
        for _ in range(2):
            await self._client.evalsha(self._least, 1, f"least:{tenant}")


def build(options: Mapping[str, Any]) -> Callable[[Order], Answer]:
    """Serve orders: `set_up` of tenants, or a turn."""
    os.sched_setaffinity(0, options["cores"])
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    runner.get_loop()
    caller = Caller(options["url"])

    def serve(order: Order) -> Answer:
        if "set_up" in order:
            runner.run(caller.set_up(order["set_up"]))
            return {}
        return runner.run(caller.turn(**order))

    return serve


if __name__ == "__main__":
    answer_turns(build, "fairlane", "redis", "hiredis", "uvloop")
