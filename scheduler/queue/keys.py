"""Every key of the global queue in Redis, and what its scripts are put together from.

All keys of one queue share the hash tag `{queue}`. Scores and times are milliseconds of the server's clock, counters
weighted tokens. Under `fl:{queue}:`

| key | type | holds |
| --- | --- | --- |
| `job:<job>` | hash | the record: `body` (the encoded Job, until it ends) and the FIELDS of lua/lib/base.lua |
| `ids:<job>:<choice>` | string | published token ids, 4 bytes each, little-endian |
| `queue:<lane>:<tenant>` | sorted set | the tenant's waiting jobs: returned, guaranteed, others; each by when due |
| `heads:<lane>` | hash | tenant → its first job that never ran, after what orders it (lua/lib/jobs.lua) |
| `waiting:<lane>` | sorted set | all waiting jobs by when they were queued: depth, oldest wait, promotion |
| `queued_tokens` | hash | lane → tokens of the prompts that wait |
| `returned:<lane>` | sorted set | waiting jobs that came back from a worker, in the same order |
| `guaranteed:<lane>` | sorted set | guaranteed jobs that wait and never ran, by when they are due |
| `promised:<lane>` | hash | when due, in buckets → microseconds that gateways have promised and that have not begun |
| `asked:<lane>` | hash | when, in buckets → microseconds of work that came to all gateways of late |
| `vouched:<lane>` | hash | tenant → weighted tokens that it was guaranteed and waits for |
| `doors` | hash | gateway → when it last told the others what it has let in, and what |
| `followers` | hash | tenant → its waiting jobs, over all lanes, that are not the first of their request |
| `backlog:<lane>` | sorted set | tenants with waiting jobs by counter |
| `counters:<lane>` | sorted set | tenants by counter; a tenant that is not here stands at the level |
| `floors` | hash | lane → its account with its share floor (share_floor.py) |
| `level` | hash | lane → where all stood when last nobody waited, or the lowest of those that waited since |
| `expiry` | sorted set | all waiting jobs by when their time is over |
| `workers`, `gateways` | sorted sets | ids by when their lease lapses |
| `held:<worker>` | sorted set | jobs leased to it, by how often their workers died |
| `lost` | sorted set | workers that have not heard yet that their jobs were taken away, by when |
| `jobs:<gateway>` | sorted set | its jobs that have not ended, all scores 0 |
| `past_gateways` | sorted set | gateways whose lease has lapsed, by when; their events may be there for an hour still |
| `ended:<tenant>` | sorted set | its jobs that have ended and have a record, by when that expires |
| `serials:<gateway>` | hash | worker, part of its step → serial of that publication, refused jobs; goes after an hour |
| `took:<worker>` | string | serial and jobs of its last `take`, for a repeat of that call; expires after one lease |
| `informed:<worker>` | string | serial of the `renew` that reported the loss of its jobs; expires after an hour |
| `refusals` | hash | gateway → serial of its last report of refused work; expires with `doors` |
| `pulse` | hash | `seen`: last renew or reclaim; `quiet_until`: until when reclaim does nothing; `served`: last renew |
| `events:<gateway>` | stream | what workers say: each field of an entry is one encoded list of events |
| `control:<worker>` | stream | what gateways say: field `c` is one encoded Control, field `w` a call |
| `homes:<generation>` | hash | digest of a prompt's beginning → the worker that took it last |
| `wake` | stream | one entry: the last time that every worker was woken, and who is to ask first |
| `rooms` | hash | worker → what it said it could start (lua/lib/rooms.lua), less the jobs that it was called for |
| `room:<lane>` | sorted set | workers that could start something in the lane, by KV tokens |
| `called` | sorted set | workers that were called for a job and have not taken since, by when |
| `calls:<worker>` | set | jobs that the worker was called for; goes with its entry in `called` |
"""

from pathlib import Path

from fairlane.scheduler.planner import ordering
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.queue import homes, promises, rooms
from fairlane.scheduler.queue import types as queue_types
from fairlane.scheduler.queue.memory_jobs import POISONED
from fairlane.store import bounds
from fairlane.store.scripts import Script, read_scripts

STREAM_LENGTH = 16_384
"""Entries that a stream holds at most: minutes of a gateway's steps, against seconds until it counts as dead."""
_PRELUDES = ("base", "promises", "jobs")
_PARTS = read_scripts(Path(__file__).parent / "lua")
_LUA_CONSTANTS = {
    queue_types: "APART_MS ELDERS_PER_TAKE GATEWAY_LEASES KEPT_MS LOOKS_PER_TAKE MAX_LOSSES NEVER_MS OWED_LIMIT"
    " QUANTUM_COST RECORD_TTL_MS SUSPECT_LOSSES TENANTS_PER_TAKE",
    bounds: "PER_CALL",
    homes: "DIGEST_BYTES HOMES_MS HOME_LEAD HOME_MS HOME_PEERS MOST_HOMES",
    ordering: "BEHIND LEAD PLENTY SHORT_FIRST",
    rooms: "CALL_PATIENCE_MS ROOMS_PER_PUT",
    promises: "BUCKET_MS BUCKETS PAST_MS MARGIN MOST_TAKEN RECENT_MS SURGE_MS WHOLE",
}
"""What the scripts know of these modules, under the same names."""


def prefix(queue: str) -> str:
    """What every key of this queue begins with, and the one key that its scripts are given."""
    return f"fl:{{{queue}}}:"


def control_stream(queue: str, worker_id: str) -> str:
    """Where a worker of this queue is spoken to."""
    return f"{prefix(queue)}control:{worker_id}"


def scripts(lanes: dict[LaneName, Lane], lease_ms: int, window: float) -> dict[str, Script]:
    """Every operation of a queue with these settings: the constants, the preludes, and its own text."""
    shared = [_constants(lanes, lease_ms, window), *(_PARTS[name] for name in _PRELUDES)]
    rooms = _PARTS["rooms"]
    more = {
        "put": [_PARTS["homes"], rooms],
        "take": [_PARTS["homes"], _PARTS["take_order"], rooms],
        "reclaim": [rooms],
        "retire": [rooms],
        "rouse": [rooms],
    }
    return {
        name: Script("\n".join([*shared, *more.get(name, []), _PARTS[name]]))
        for name in _PARTS.keys() - {*_PRELUDES, "homes", "rooms", "take_order"}
    }


def _constants(lanes: dict[LaneName, Lane], lease_ms: int, window: float) -> str:
    """What the scripts know of the settings, as Lua text: the same for all processes that share a queue."""
    rows = ", ".join(
        f"{{name = '{lane.name}', max_wait_ms = {lane.max_wait_ms!r}, long_wait_ms = {lane.long_wait_ms!r},"
        f" burst_ms = {lane.burst_ms!r}, share_floor = {lane.share_floor!r}, max_queued = {lane.max_queued}}}"
        for lane in queue_types.in_rank_order(lanes)
    )
    numbers = {"LEASE_MS": lease_ms, "WINDOW": window, "STREAM_LENGTH": STREAM_LENGTH}
    for module, names in _LUA_CONSTANTS.items():
        numbers |= {name: getattr(module, name) for name in names.split()}
    lines = [f"local {name} = {value!r}" for name, value in numbers.items()]
    return "\n".join([f"local LANES = {{{rows}}}", f"local POISONED = '{POISONED}'", *lines])
