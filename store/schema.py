"""The schema of what all processes keep in a store, so that none works on records that it cannot read.

The key `fl:schema` holds two numbers: the schema of the newest release that has started on the store, and the oldest
schema whose processes can work on the same store. The first process to start writes it, and the first of a newer
release raises it. A process works on the store if it reads the store's schema and the store's processes read its own;
as a release understands the one before it, both may then run at the same time. `fairlane migrate` converts the data to
its release's schema; then both numbers are that schema."""

import redis.asyncio

from fairlane.store.migrations import STEPS
from fairlane.store.scripts import Script

KEY = "fl:schema"
# Raise both by one in a release that changes keys, records or scripts in such a way that the release before the last
# one could not work beside it. Until the first release, a change needs a stop of the fleet instead (CHANGELOG.md).
SCHEMA = 1
OLDEST_SCHEMA = 1
# In place of the numbers, before a backup's name, until its restore has ended.
RESTORING = "restoring"

_JOIN = Script("""
local found = redis.call('GET', KEYS[1])
local newest = found and tonumber(string.match(found, '^(%d+) %d+$'))
local mine, oldest = tonumber(ARGV[1]), tonumber(ARGV[2])
if not found or newest and newest >= oldest and newest < mine then
  redis.call('SET', KEYS[1], mine .. ' ' .. oldest)
end
return found
""")


async def join(client: redis.asyncio.Redis) -> str:
    """Record that a process of this release works on the store; return why it must not, or nothing.

    Raises what the client raises."""
    return await read(client) or refusal(await _JOIN.run(client, KEY, SCHEMA, OLDEST_SCHEMA))


async def read(client: redis.asyncio.Redis) -> str:
    """Return what `join` would, without writing."""
    stored: bytes | None = await client.execute_command("GET", KEY)  # type: ignore[no-untyped-call]
    return refusal(stored)


def refusal(stored: bytes | None) -> str:
    """Return why this release cannot work on a store with this value of KEY; nothing if it can."""
    if stored is None:
        return ""
    if stored.startswith(RESTORING.encode()):
        return f"the restore of the backup {stored.decode()[len(RESTORING) :].strip()} has not ended"
    newest, _, oldest = stored.decode(errors="replace").partition(" ")
    if not (newest.isdecimal() and oldest.isdecimal()):
        return f"its schema is {stored[:20]!r}, which this release does not know"
    if int(newest) < OLDEST_SCHEMA:
        return f"its schema {newest} is too old: this release needs {OLDEST_SCHEMA} or later"
    if int(newest) in STEPS and int(oldest) < int(newest) < SCHEMA:
        return f"its data is not migrated: run `fairlane migrate --apply` of a release with schema {newest}"
    if int(oldest) > SCHEMA:
        return (
            f"its schema {newest} is too new: it needs processes of schema {oldest} or later, and this one has {SCHEMA}"
        )
    return ""


async def steps_due(client: redis.asyncio.Redis) -> list[int]:
    """Return the schemas to which the store's data must be migrated. Raises ValueError with the refusal if this release
    cannot do it."""
    stored: bytes | None = await client.execute_command("GET", KEY)  # type: ignore[no-untyped-call]
    if refused := refusal(stored):
        raise ValueError(refused)
    newest, _, oldest = (stored or f"{OLDEST_SCHEMA} {OLDEST_SCHEMA}".encode()).decode().partition(" ")
    if int(newest) > SCHEMA:
        rule = f"data is not migrated backwards: use a release with schema {newest}, or restore an earlier backup"
        raise ValueError(f"its schema {newest} is newer than this release's {SCHEMA}; {rule}")
    return [number for number in sorted(STEPS) if int(oldest) < number <= SCHEMA]


async def migrate(client: redis.asyncio.Redis, url: str) -> None:
    """Convert the store's data to this release's schema, which processes of the release before then refuse. Repeatable.
    Raises ValueError as `steps_due`."""
    due = await steps_due(client)
    for number in due:
        await STEPS[number](url)
    if due:
        await client.set(KEY, f"{SCHEMA} {SCHEMA}")
