"""Reads the saved keys of a store while gateways serve, and writes them to another store.

    1. list all keys
    2. for each root: read its keys, its open reservations and the ends of its ledgers in one step; then large keys
    3. list all keys again, and repeat 2 for roots that have new keys: one may have been created between 1 and 2
    4. read the keys that all roots share

A root that appears after step 1 is not part of the backup."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
import redis.asyncio
from redis.exceptions import ResponseError

from fairlane.cli.client import CommandError
from fairlane.cli.recovery import families
from fairlane.store import checks, urls
from fairlane.store.bounds import chunks
from fairlane.store.scripts import Script

TIMEOUT_S = 120.0
# Calls under way at the same time.
AT_ONCE = 16
SCANNED = 1_000
MOST_ROUNDS = 10

# Returns {{key, expiry in ms or -1, dump}, …} of the keys ARGV[2…] and of those that they list. After "1", ledgers are
# not dumped: a second list has {key, last id, entries added so far} of each.
_READ = Script("""
local LISTS = {leases = 'reservation:', escrows = 'escrow:', files = 'file:', batches = 'batch:'}
local found, ledgers = {}, {}
local function add(key)
  local dumped = redis.call('DUMP', key)
  if dumped then found[#found + 1] = {key, redis.call('PEXPIRETIME', key), dumped} end
end
for at = 2, #ARGV do
  local key = ARGV[at]
  local prefix, kind = string.match(key, '^(fl:%a+:{[^}]*}:)(%a+)')
  if kind == 'ledger' and ARGV[1] == '1' then
    if redis.call('EXISTS', key) == 1 then
      local info, stream = redis.call('XINFO', 'STREAM', key), {}
      for place = 1, #info, 2 do stream[info[place]] = info[place + 1] end
      ledgers[#ledgers + 1] = {key, stream['last-generated-id'], stream['entries-added']}
    end
  else
    add(key)
    if kind and LISTS[kind] then
      for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do add(prefix .. LISTS[kind] .. name) end
    end
  end
end
return {found, ledgers}
""")
# Removes what a ledger got after the entry ARGV[1].
_CUT = Script("""
local info, stream = redis.call('XINFO', 'STREAM', KEYS[1]), {}
for place = 1, #info, 2 do stream[info[place]] = info[place + 1] end
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+')) do redis.call('XDEL', KEYS[1], entry[1]) end
redis.call('XSETID', KEYS[1], stream['last-generated-id'], 'ENTRIESADDED', ARGV[2])
""")


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One key. A later record of the same key replaces it."""

    key: bytes
    # Epoch ms; 0: never.
    expires_ms: int = 0
    # As by DUMP; empty: the key does not exist.
    dump: bytes = b""
    # Of a ledger: its last entry, and the number of entries added so far.
    last: bytes = b""
    added: int = 0


async def keys_of(url: str, is_saved: Callable[[bytes], bool]) -> AsyncIterator[bytes]:
    """Yield the names of a store's keys, some perhaps twice."""
    for server, _ in await checks.masters(url, timeout_s=TIMEOUT_S):
        async with urls.client(server, limit=1, timeout_s=TIMEOUT_S) as client:
            async for key in client.scan_iter(match="fl:*", count=SCANNED):
                if is_saved(key):
                    yield key


async def read(client: redis.asyncio.Redis, url: str, is_saved: Callable[[bytes], bool]) -> AsyncIterator[list[Record]]:
    """Yield all records of a store. Raises CommandError, STORE_ERRORS."""
    roots, shared = await _listed(url, is_saved)
    due, taken = dict(roots), dict[bytes, set[bytes]]()
    for _ in range(MOST_ROUNDS):
        for some in chunks(due.items(), AT_ONCE):
            found = await asyncio.gather(*(_root(client, keys) for _, keys in some))
            for (root, _), records in zip(some, found, strict=True):
                names = {record.key for record in records}
                yield records + [Record(key) for key in taken.get(root, set()) - names]
                taken[root] = names
        now, shared = await _listed(url, is_saved)
        due = {root: keys | now[root] for root, keys in roots.items() if root in now and _steady(now[root] - keys)}
        roots |= due
        if not due:
            break
    else:
        raise CommandError("tenants or keys are created faster than the store can be read: try again")
    for alone in chunks(shared, AT_ONCE):
        dumped = await asyncio.gather(*(_dumped(client, [key]) for key in alone))
        yield [record for records in dumped for record in records]


async def write(client: redis.asyncio.Redis, records: Iterable[Record]) -> None:
    """Write records of different keys. Raises CommandError, STORE_ERRORS."""
    for some in chunks(records, AT_ONCE):
        try:
            await asyncio.gather(*(_write(client, record) for record in some))
        except ResponseError as error:
            if "DUMP payload version" not in str(error):
                raise
            rule = "restore into the kind of store that was backed up, of the same version or a newer one"
            raise CommandError(f"the store cannot read this backup's keys: {rule}") from None


async def _listed(url: str, is_saved: Callable[[bytes], bool]) -> tuple[dict[bytes, set[bytes]], list[bytes]]:
    roots, shared = defaultdict[bytes, set[bytes]](set), set[bytes]()
    async for key in keys_of(url, is_saved):
        root = families.root_of(key)
        if root is None:
            shared.add(key)
        elif families.kind_of(key) not in families.LISTED_KINDS:
            roots[root].add(key)
    return {root: families.with_lists(root, keys) for root, keys in roots.items()}, list(shared)


def _steady(keys: Collection[bytes]) -> bool:
    return any(families.kind_of(key) not in families.FLEETING_KINDS for key in keys)


async def _root(client: redis.asyncio.Redis, keys: set[bytes]) -> list[Record]:
    large = {key for key in keys if families.kind_of(key) in families.LARGE_KINDS}
    ledgers = {key for key in large if families.kind_of(key) == b"ledger"}
    at_once = [*(keys - (large - ledgers))]
    found, ends = await _READ.run(client, at_once[0], 1, *at_once) if at_once else ((), ())
    ended = {key: (last, added) for key, last, added in ends}
    records = [_record(*each) for each in found]
    for some in [[key] for key in ended] + [*chunks(large - ledgers)]:
        for record in await _dumped(client, some):
            last, added = ended.get(record.key, (b"", 0))
            records.append(msgspec.structs.replace(record, last=last, added=added))
    return records


async def _dumped(client: redis.asyncio.Redis, keys: Sequence[bytes]) -> list[Record]:
    found, _ = await _READ.run(client, keys[0], 0, *keys)
    return [_record(*each) for each in found]


def _record(key: bytes, expires_ms: int, dump: bytes) -> Record:
    return Record(key, max(0, expires_ms), dump)


async def _write(client: redis.asyncio.Redis, record: Record) -> None:
    call: Any = client.execute_command
    if not record.dump:
        await call("UNLINK", record.key)
        return
    await call("RESTORE", record.key, record.expires_ms, record.dump, "REPLACE", "ABSTTL")
    if record.last:
        await _CUT.run(client, record.key, record.last, record.added)
