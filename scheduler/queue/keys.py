"""All Redis keys of the global queue, and the assembly of its functions.

All keys of one queue share the hash tag `{queue}`. Scores and times are milliseconds of the server's clock, counters
are weighted tokens. Under `fl:{queue}:`

| key | type | holds |
| --- | --- | --- |
| `job:<job>` | hash | the record: `body` (the encoded Job, until it ends) and the FIELDS of lua/lib/base.lua |
| `ids:<job>:<choice>` | string | output token ids, 4 bytes each, little-endian, if the job keeps its output |
| `queue:<lane>:<tenant>` | sorted set | the tenant's waiting jobs: returned, guaranteed, others; each by due time |
| `rivals` | hash | with several shards: lane → virtual time of the others, and until when jobs wait there |
| `heads:<lane>` | hash | tenant → its first job that never ran, with its sort fields (lua/lib/jobs.lua) |
| `waiting:<lane>` | sorted set | all waiting jobs by when they were queued: depth, oldest wait, promotion |
| `queued_tokens` | hash | lane → prompt tokens of the waiting jobs |
| `returned:<lane>` | sorted set | waiting jobs that came back from a worker, in the same order |
| `guaranteed:<lane>` | sorted set | guaranteed waiting jobs that never ran, by due time |
| `promised:<lane>` | hash | due time, in buckets → microseconds guaranteed by gateways and not started |
| `asked:<lane>` | hash | arrival time, in buckets → microseconds of work that recently arrived at all gateways |
| `vouched:<lane>` | hash | tenant → weighted tokens of its guaranteed waiting jobs |
| `doors` | hash | gateway → time and content of its last report of admitted requests |
| `followers` | hash | tenant → its waiting jobs, over all lanes, that are not the first of their request |
| `backlog:<lane>` | sorted set | tenants with waiting jobs by counter |
| `counters:<lane>` | sorted set | tenants by counter; a tenant that is not here has the level |
| `floors` | hash | lane → its share floor account (share_floor.py) |
| `level` | hash | lane → the counter of all tenants when the lane was last empty, or the lowest waiting one since |
| `expiry` | sorted set | all waiting jobs by when they expire |
| `workers`, `gateways` | sorted sets | ids by when their lease expires |
| `held:<worker>` | sorted set | jobs leased to it, by number of losses |
| `lost` | sorted set | workers that lost their jobs and have not been notified, by time of the loss |
| `jobs:<gateway>` | sorted set | its jobs that have not ended, all scores 0 |
| `past_gateways` | sorted set | gateways whose lease has expired, by when; their events may remain for an hour |
| `ended:<tenant>` | sorted set | its ended jobs that have a record, by when that expires |
| `reported:<worker>` | hash | part of a report → its serial and refused jobs; expires after an hour |
| `turned:<worker>` | string | serial and answer of its last `turn`, for a repeat of that call; expires after an hour |
| `informed:<worker>` | string | serial of the `renew` that reported the loss of its jobs; expires after an hour |
| `refusals` | hash | gateway → serial of its last report of refused work; expires with `doors` |
| `pulse` | hash | `seen`: last renew or reclaim; `quiet_until`: reclaim does nothing before; `served`: last renew |
| `events:<gateway>` | stream | ends that the store decided: field `e` is one encoded Finished |
| `control:<worker>` | stream | commands of gateways: `c`: an encoded Control, `w`: a job that it is called for |
| `leases:<worker>` | stream | jobs that it was given at once: the fields of a lease, until it has read it or is late |
| `homes:<generation>` | hash | digest of a prompt's prefix → the worker that took it last (prefix_affinity.py) |
| `rooms` | hash | worker → capacity that it offered (lua/lib/rooms.lua), less the jobs that it was given since |
| `room:<lane>` | sorted set | workers that could start a job in the lane, by KV tokens |
| `yielding:<lane>` | sorted set | workers with work in the lane that may yield, by its sequences |"""

from pathlib import Path

from fairlane.scheduler.planner import ordering
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.queue import prefix_affinity, promises, rooms, shards
from fairlane.scheduler.queue import types as queue_types
from fairlane.scheduler.queue.memory_jobs import POISONED
from fairlane.store import bounds
from fairlane.store.functions import Library
from fairlane.store.scripts import read_scripts

# Maximum entries of a stream: a reader that is further behind counts as dead long before.
STREAM_LENGTH = 16_384
# What all functions share, in this order.
_SHARED = ("base", "promises", "shards", "jobs", "reports", "prefix_affinity", "take_order", "rooms")
# Functions that only read. All others but these two free memory or hold leases, so they run where memory is full.
_READERS = ("record", "published", "position", "waiting", "depths")
_GROWING = ("put", "exchange_reports")
_PARTS = read_scripts(Path(__file__).parent / "lua")
# Python constants that the functions get under the same names, by module.
_LUA_CONSTANTS = {
    queue_types: "APART_MS OLDEST_PER_TAKE GATEWAY_LEASES KEPT_MS LOOKS_PER_TAKE MAX_LOSSES NEVER_MS FLOOR_LIMIT"
    " QUANTUM_COST RECORD_TTL_MS SUSPECT_LOSSES TENANTS_PER_TAKE",
    bounds: "PER_CALL JOBS_PER_CALL",
    shards: "FRESH_MS",
    prefix_affinity: "AFFINITY_DELAY_MS AFFINITY_GENERATION_MS AFFINITY_LOAD_RATIO AFFINITY_PEERS DIGEST_BYTES"
    " MAX_AFFINITIES",
    ordering: "BEHIND LEAD PLENTY SHORT_FIRST",
    rooms: "CALL_PATIENCE_MS HANDED_PATIENCE_MS ROOMS_PER_PUT",
    promises: "BUCKET_MS BUCKETS PAST_MS MARGIN MAX_TAKEN RECENT_MS SURGE_MS WHOLE",
}


def prefix(queue: str) -> str:
    """Return the prefix of all keys of this queue: the one key that its functions are given."""
    return f"fl:{{{queue}}}:"


def control_stream(queue: str, worker_id: str) -> str:
    """Return the key of a worker's control stream."""
    return f"{prefix(queue)}control:{worker_id}"


def library(lanes: dict[LaneName, Lane], lease_ms: int, window: float) -> Library:
    """Return the functions of a queue with these settings."""
    shared = [_constants(lanes, lease_ms, window), *(_PARTS[name] for name in _SHARED)]
    bodies = {name: f"begin(KEYS, ARGV)\n{_PARTS[name]}" for name in _PARTS if name not in _SHARED}
    flags = {name: "'no-writes'" if name in _READERS else "'allow-oom'" for name in bodies if name not in _GROWING}
    return Library("fairlane_queue", "\n".join(shared), bodies, flags)


def _constants(lanes: dict[LaneName, Lane], lease_ms: int, window: float) -> str:
    ranked = queue_types.in_rank_order(lanes)
    rows = ", ".join(
        f"{{name = '{lane.name}', level = {level}, max_wait_ms = {lane.max_wait_ms!r},"
        f" long_wait_ms = {lane.long_wait_ms!r}, burst_ms = {lane.burst_ms!r}, share_floor = {lane.share_floor!r},"
        f" max_queued = {lane.max_queued}}}"
        for level, lane in enumerate(ranked, start=1)
    )
    by_name = ", ".join(f"['{lane.name}'] = LANES[{level}]" for level, lane in enumerate(ranked, start=1))
    numbers = {"LEASE_MS": lease_ms, "WINDOW": window, "STREAM_LENGTH": STREAM_LENGTH}
    for module, names in _LUA_CONSTANTS.items():
        numbers |= {name: getattr(module, name) for name in names.split()}
    lines = [f"local {name} = {value!r}" for name, value in numbers.items()]
    named = f"local LANES = {{{rows}}}", f"local LANE = {{{by_name}}}", f"local POISONED = '{POISONED}'"
    return "\n".join([*named, *lines])
