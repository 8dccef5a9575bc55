"""The global queue in Redis: one function of the store per call, and the streams.

This module only converts. Keys and functions are in `keys.py`. Every call can be repeated after a lost reply: the
repeat returns the same result and changes nothing. All methods raise `redis.RedisError` while the store is
unavailable."""

import itertools
import secrets
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
import redis.asyncio

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import (
    Finished,
    Job,
    Lease,
    Outcome,
    controls_of,
    encode,
    ends_of,
)
from fairlane.scheduler.queue.keys import control_stream, library, prefix
from fairlane.scheduler.queue.promises import WHOLE
from fairlane.scheduler.queue.shards import LaneFloor, LaneHead, ShardNews, divided, shards_of
from fairlane.scheduler.queue.types import (
    JobRecord,
    JobState,
    LaneDepth,
    LaneFull,
    News,
    Progress,
    Published,
    Put,
    QueuePresence,
    ReportExchange,
    TenantQueueFull,
    Turn,
    Unattainable,
    claim_due_ms,
    claim_us,
    due_after_ms,
    hard_end_ms,
    hard_first_ms,
    in_rank_order,
    work_us,
)
from fairlane.store import bounds
from fairlane.store.bounds import chunks

# Maximum wait for a stream in one call; the client's socket timeout (5 s by default) must be longer.
MAX_BLOCK_MS = 2_000
READ_COUNT = 256
# Reads of a stream between two trims of its processed entries.
TRIM_EVERY = 64

Arg = bytes | str | int | float
# Of a stream: ids and fields.
Entries = list[tuple[bytes, dict[bytes, bytes]]]
# Of an entry in a worker's stream of leases, in the order of `_lease`.
_LEASE_FIELDS = (b"b", b"e", b"a", b"g", b"s")
_job: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)


class RedisQueue:
    """One model's queue or one of its shards, for gateways and workers. `redis` must return bytes.

    Calls that the store cannot recognise as repeats by their content carry a serial. A client that resends a call
    resends its serial; a caller that repeats a call after an error passes the serial of its first attempt
    (`new_serial`).

    `clock` (milliseconds) replaces the server's clock in tests; all that share a queue must agree on it."""

    def __init__(
        self,
        redis: redis.asyncio.Redis,
        name: str,
        lanes: dict[LaneName, Lane],
        *,
        lease_ms: int = 6_000,
        window: float = QUEUE_WINDOW,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self._redis = redis
        self._prefix = prefix(name)
        self.lanes = [lane.name for lane in in_rank_order(lanes)]
        self.share_floors = [lane.share_floor for lane in in_rank_order(lanes)]
        self._shards = shards_of(name)
        self._clock = clock
        self._library = library(lanes, lease_ms, window)
        # Time from the last `reclaim` until the next worker's lease expires; 0: none.
        self.lapse_ms = 0
        self._nonce = secrets.token_hex(8)
        self._serials = itertools.count()
        self._reads: Counter[str] = Counter()

    def new_serial(self) -> str:
        """Return a serial for a call that its caller may repeat."""
        return f"{self._nonce}:#{next(self._serials)}"

    # Calls of gateways.

    async def put(
        self,
        job: Job,
        *,
        tenant_limit: int | None = None,
        waited_ms: int = 0,
        prefixes: bytes = b"",
        generated: int = 0,
    ) -> Put:
        """Queue a job, and reserve time for its guarantee.

        `waited_ms`: time in another queue from which it was withdrawn, so that it arrived earlier. `generated`: output
        tokens of an earlier run of the same request, which its gateway has and from which it continues. `prefixes`: the
        result of `prefix_keys`. Raises TenantQueueFull, LaneFull and Unattainable without changing anything."""
        if self._shards > 1:
            job = divided(job, self._shards)
        limit = "" if tenant_limit is None else tenant_limit
        due = (due_after_ms(job), hard_first_ms(job), hard_end_ms(job))
        args: list[Arg] = [job.job_id, job.lane, job.tenant, limit, job.gateway_id, *due, *_record_fields(job)]
        known = work_us(job), job.token_ms
        answer = await self._call("put", *args, waited_ms, job.prompt_print, *known, prefixes, generated)
        match answer[0]:
            case b"tenant":
                raise TenantQueueFull(tenant_limit or 0, answer[1], answer[2])
            case b"lane":
                raise LaneFull(job.lane, answer[1], answer[2])
            case b"late":
                raise Unattainable(answer[1])
        return Put(int(answer[1]), bool(answer[2]), answer[3].decode(), answer[4].decode())

    async def cancel(self, job_id: str) -> JobRecord | None:
        """End a waiting job, or ask a leased one's holder to stop it. Idempotent; returns None if it is unknown."""
        return _record(await self._call("cancel", job_id))

    async def record(self, job_id: str) -> JobRecord | None:
        """Return the record of a job, or None if it was never put, was forgotten, or ended more than KEPT_MS ago."""
        return _record(await self._call("record", job_id))

    async def published(self, job_id: str) -> Published | None:
        """Return the output that workers have handed in for a job, or None if it is unknown."""
        answer = await self._call("published", job_id)
        return None if answer is None else Published(answer[0].decode(), tuple(map(_unpacked, answer[1:])))

    async def forget(self, job_ids: Iterable[str]) -> set[str]:
        """Drop the records of ended jobs. Return the jobs that have not ended."""
        unended = set[str]()
        for chunk in chunks(job_ids):
            unended |= _texts(await self._call("forget", *chunk))
        return unended

    async def erase(self, tenant: str, deleted_ms: int, *, streams_until_ms: int = 0) -> int:
        """Drop the records of a deleted tenant's ended jobs, and all entries of streams up to a time: events that
        gateways have read, and leases that workers have read or lost.

        `streams_until_ms` 0 drops no entries. Return the number of records. The cost depends only on this tenant's
        records and the number of gateways and workers."""
        listed, kept, dropped = f"{self._prefix}ended:{tenant}", 0, 0
        while job_ids := await self._page(listed, kept):
            staying = int(await self._call("erase", tenant, deleted_ms, *job_ids))
            kept, dropped = kept + staying, dropped + len(job_ids) - staying
        if streams_until_ms:
            for owners, kind in (("gateways", "events"), ("past_gateways", "events"), ("workers", "leases")):
                first = 0
                while names := await self._page(f"{self._prefix}{owners}", first):
                    await self._call("trim_streams", streams_until_ms, kind, *names)
                    first += len(names)
        return dropped

    async def _page(self, name: str, first: int) -> list[str]:
        page: Any = await self._redis.zrange(name, first, first + bounds.PER_CALL - 1)
        return [member.decode() for member in page]

    async def keep(self, until_ms: Mapping[str, int]) -> set[str]:
        """Shorten the lifetime of ended jobs' records to these times, epoch ms by the store's clock. Return the jobs
        that have not ended."""
        unended = set[str]()
        for chunk in chunks(until_ms.items()):
            pairs: Iterable[Arg] = chain.from_iterable(chunk)
            unended |= _texts(await self._call("keep", *pairs))
        return unended

    async def position(self, job_id: str) -> int | None:
        answer = await self._call("position", job_id)
        return None if answer is None else int(answer)

    async def depths(self) -> dict[LaneName, LaneDepth]:
        answer = await self._call("depths")
        return {
            lane: LaneDepth(queued=queued, oldest_wait_ms=oldest_wait_ms, queued_tokens=max(0, tokens))
            for lane, queued, oldest_wait_ms, tokens in zip(
                self.lanes, answer[::3], answer[1::3], answer[2::3], strict=True
            )
        }

    async def exchange_reports(
        self, gateway_id: str, report: bytes, refused_us: Mapping[LaneName, int]
    ) -> ReportExchange:
        answer = await self._call(
            "exchange_reports",
            gateway_id,
            self.new_serial(),
            report,
            *(refused_us.get(lane, 0) for lane in self.lanes),
        )
        lanes = len(self.lanes)
        asked = {lane: part / WHOLE for lane, part in zip(self.lanes, answer[:lanes], strict=True)}
        return ReportExchange(tuple(sorted(zip(answer[lanes::2], answer[lanes + 1 :: 2], strict=True))), asked)

    async def waiting(self, tenant: str) -> int:
        return int(await self._call("waiting", tenant))

    async def rouse(self, job_ids: Iterable[str]) -> set[str]:
        """Find other workers for a gateway's jobs of which it has no stream. Return those to ask about again, after
        CALL_PATIENCE_MS."""
        watched = set[str]()
        for chunk in chunks(job_ids, bounds.JOBS_PER_CALL):
            watched |= _texts(await self._call("rouse", *chunk))
        return watched

    async def gateway_alive(self, gateway_id: str) -> None:
        """Record a gateway's heartbeat; after GATEWAY_LEASES leases without one, its jobs are cancelled."""
        await self._call("gateway_alive", gateway_id)

    async def read_events(self, gateway_id: str, last_id: str, block_ms: int) -> tuple[str, list[Finished]]:
        """Return the id to continue from, and the ends after `last_id` that the store decided, once there are some or
        `block_ms` have passed.

        `last_id` is the id that the last call returned, and confirms that all entries up to it were processed. `0-0`
        starts with all that is kept, `$` with new entries. `block_ms` 0 does not wait; waits are limited to
        MAX_BLOCK_MS."""
        stream = f"{self._prefix}events:{gateway_id}"
        if last_id == "$":
            last_id = await self._resolve(stream, last_id)
        await self._trim(stream, last_id)
        answer = await self._read({stream: last_id}, block_ms)
        if not answer:
            return last_id, []
        [(_, entries)] = answer
        return entries[-1][0].decode(), ends_of([blob for _, fields in entries for blob in fields.values()])

    # Calls of workers.

    async def turn(
        self,
        worker_id: str,
        capacity: Capacity,
        items: Sequence[Progress] = (),
        *,
        called: Sequence[str] = (),
        unreached: Sequence[str] = (),
        last_id: str = "",
        serial: str | None = None,
        floors: Sequence[LaneFloor] = (),
        elsewhere: Sequence[int] = (),
    ) -> Turn:
        """Record the progress of a worker's jobs, and lease it the most urgent ones that can start.

        `called`: jobs that it was called for, at most JOBS_PER_CALL. `unreached`: gateways that it cannot reach; until
        its next `turn` it gets none of their jobs. `last_id`: what it has read of its streams (`News`). One call
        records and leases JOBS_PER_CALL jobs at most (`Turn.has_more`). No leases are returned until the worker knows,
        from `renew`, that it lost its jobs.

        One of several shards also learns from `floors` what the worker knows of the others, and from `elsewhere` how
        many sequences of each lane could be moved from there. It offers no room until the worker has read its stream of
        leases (`Turn.is_unread`), so that no room is given twice."""
        own, most = serial or self.new_serial(), bounds.JOBS_PER_CALL
        refused = await self.report(worker_id, items[most:], serial=own, part=1)
        report = list(chain.from_iterable(map(_progress, items[:most])))
        unread = _next_id(last_id.partition("/")[2])
        room = [*self._room(capacity), len(unreached), *unreached]
        if self._shards > 1:
            room += self._elsewhere(floors, elsewhere)
        answer = await self._call("turn", worker_id, own, unread, len(called), *called, len(report), *report, *room)
        leases = [_lease(*fields) for fields in answer[1]]
        turn = Turn(refused | _texts(answer[0]), leases, bool(answer[2]), bool(answer[3]))
        return turn if self._shards == 1 else turn._replace(shard=_shard_news(*answer[4]))

    async def renew(self, worker_id: str, holding: Collection[str] | None = None, *, serial: str | None = None) -> bool:
        """Record a worker's heartbeat. Return False, once, if its lease had expired and its jobs were reassigned.

        `holding` names the jobs that the worker knows, including those whose report was not answered yet. A job leased
        for longer than one lease and not among them was in a `turn` whose reply was lost; it is returned to the
        queue."""
        if holding is not None:
            await self._return_unknown(worker_id, set(holding))
        return bool(await self._call("renew", worker_id, serial or self.new_serial()))

    async def report(
        self, worker_id: str, items: Sequence[Progress], *, serial: str | None = None, part: int = 0
    ) -> set[str]:
        """Record the progress of a worker's jobs. Return the jobs that were refused.

        Refused: unknown, ended, not this worker's, a stale epoch. A caller that repeats a call after a lost reply
        passes the same `serial`, and it is recorded once. `part`: the number of its first part under that serial."""
        own = serial or self.new_serial()
        refused = set[str]()
        for number, chunk in enumerate(chunks(items, bounds.JOBS_PER_CALL), start=part):
            answer = await self._call("report", worker_id, own, number, *chain.from_iterable(map(_progress, chunk)))
            refused |= _texts(answer)
        return refused

    async def release(self, worker_id: str, job_ids: Iterable[str]) -> None:
        for chunk in chunks(job_ids, bounds.JOBS_PER_CALL):
            await self._call("release", worker_id, "", *chunk)

    async def retire(self, worker_id: str) -> None:
        await self._call("retire", worker_id)

    async def read_news(self, worker_id: str, last_id: str, block_ms: int) -> News:
        """Return what this worker's streams hold after `last_id`.

        `last_id` is that of the last `News`; `0-0` or `$` (only what comes later) to start. `block_ms` 0 does not wait;
        waits are limited to MAX_BLOCK_MS."""
        control, given = control_stream(self.name, worker_id), f"{self._prefix}leases:{worker_id}"
        control_id, _, given_id = last_id.partition("/")
        control_id = await self._resolve(control, control_id)
        given_id = await self._resolve(given, given_id or last_id)
        await self._trim(control, control_id)
        streams = dict(await self._read({control: control_id, given: given_id}, block_ms))
        commands, handed = streams.get(control.encode(), []), streams.get(given.encode(), [])
        control_id = commands[-1][0].decode() if commands else control_id
        given_id = handed[-1][0].decode() if handed else given_id
        return News(
            f"{control_id}/{given_id}",
            list(controls_of(fields[b"c"] for _, fields in commands if b"c" in fields)),
            [_lease(*(fields[name] for name in _LEASE_FIELDS)) for _, fields in handed],
            [fields[b"w"].decode() for _, fields in commands if b"w" in fields],
        )

    # Calls of the elected gateway, each second.

    async def reclaim(self) -> int:
        """Clear up after dead processes and expired jobs. Return how many jobs were taken from dead workers.

        Must be called more often than every half lease. After a longer time without any `renew` or `reclaim`, because
        the store was unavailable, it does nothing for one full lease, so that holders can renew first."""
        lost, is_more = 0, 1
        while is_more:
            count, is_more, self.lapse_ms = await self._call("reclaim")
            lost += count
        return lost

    # Calls of gateways for a queue without workers.

    async def orphan(self, grace_ms: int) -> QueuePresence:
        """Handle a queue that no worker has served for `grace_ms`. Must be called after `reclaim`.

        Its jobs keep waiting for a worker. After KEPT_MS an empty queue is removed."""
        presence: bytes = await self._call("orphan", grace_ms)
        return QueuePresence(presence.decode())

    async def withdraw(self, job_id: str, grace_ms: int) -> bool:
        """Remove a job without tokens from an orphaned queue, so that it can be put into another one; no event is
        published.

        Return whether the queue no longer holds the job."""
        return bool(await self._call("withdraw", job_id, grace_ms))

    def _room(self, capacity: Capacity) -> list[Arg]:
        room: list[Arg] = [capacity.prefill_ms, capacity.most_sequences, capacity.most_tokens]
        for lane in self.lanes:
            room += [capacity.sequences.get(lane, 0), capacity.kv_tokens.get(lane, 0)]
        for lane in self.lanes:
            room += _yielded(capacity.yielding.get(lane))
        return room

    def _elsewhere(self, floors: Sequence[LaneFloor], elsewhere: Sequence[int]) -> list[Arg]:
        args: list[Arg] = []
        for floor in floors or [LaneFloor(0.0, contended=False) for _ in self.lanes]:
            args += [repr(floor.counter), int(floor.contended)]
        return [*args, *(elsewhere or [0 for _ in self.lanes])]

    def _call(self, operation: str, *args: Arg) -> Awaitable[Any]:
        clock = "" if self._clock is None else self._clock()
        return self._library.call(self._redis, operation, self._prefix, clock, *args)

    async def _return_unknown(self, worker_id: str, known: set[str]) -> None:
        """Return jobs to the queue that were leased to this worker more than one lease ago and that it does not
        know."""
        held, unknown = f"{self._prefix}held:{worker_id}", list[str]()
        for first in itertools.count(0, bounds.PER_CALL):
            page = await self._page(held, first)
            unknown += [job_id for job_id in page if job_id not in known]
            if len(page) < bounds.PER_CALL:
                break
        for chunk in chunks(unknown, bounds.JOBS_PER_CALL):
            await self._call("release", worker_id, "1", *chunk)

    async def _resolve(self, stream: str, last_id: str) -> str:
        if last_id != "$":
            return last_id
        newest: Any = await self._redis.xrevrange(stream, count=1)
        return newest[0][0].decode() if newest else "0-0"

    async def _trim(self, stream: str, last_id: str) -> None:
        self._reads[stream] += 1
        if self._reads[stream] % TRIM_EVERY == 0:
            await self._redis.xtrim(stream, minid=last_id, approximate=False)

    def _read(self, streams: dict[str, str], block_ms: int) -> Awaitable[list[tuple[bytes, Entries]]]:
        block = min(block_ms, MAX_BLOCK_MS) if block_ms > 0 else None
        after: Any = streams  # the client's own type is invariant in keys and values
        answer: Any = self._redis.xread(after, count=READ_COUNT, block=block)
        return answer  # type: ignore[no-any-return]


def _record_fields(job: Job) -> list[Arg]:
    return [
        *(encode(job), repr(job.weight), job.n, len(job.prompt)),
        *(int(job.guaranteed), int(job.follows), job.max_total_tokens),
        *(claim_us(job), claim_due_ms(job)),
    ]


def _progress(item: Progress) -> list[Arg]:
    job_id, epoch, generated, cost, ends, token_ids = item
    return [job_id, epoch, generated, cost, ends or "", len(token_ids), *map(_packed, token_ids)]


def _texts(names: Iterable[bytes]) -> set[str]:
    return {name.decode() for name in names}


def _next_id(last_id: str) -> str:
    time_ms, _, number = last_id.partition("-")
    return f"{time_ms}-{int(number) + 1}" if number else ""


def _packed(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _unpacked(token_ids: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(token_ids) // 4}I", token_ids)


def _shard_news(is_unread: int, lacks_room: int, heads: Sequence[Any]) -> ShardNews:
    lanes = zip(heads[::3], heads[1::3], heads[2::3], strict=True)
    found = [LaneHead(float(counter), float(oldest_ms), bool(waits)) for counter, oldest_ms, waits in lanes]
    return ShardNews(bool(is_unread), bool(lacks_room), tuple(found))


def _yielded(own: Yielding | None) -> tuple[str | int, ...]:
    if own is None:
        return 0, 0, 0, 0, 0, 0
    figures = own.jobs, own.shorter_than, own.sequences, own.kv_tokens
    return *figures, len(own.begun), *own.begun, len(own.waiting), *own.waiting


def _lease(
    body: bytes, epoch: bytes | int, arrived_ms_ago: bytes | int, guaranteed: bytes | int, started: bytes | int
) -> Lease:
    job = msgspec.structs.replace(_job.decode(body), guaranteed=bool(int(guaranteed)))
    return Lease(job=job, epoch=int(epoch), arrived_ms_ago=int(arrived_ms_ago), started=bool(int(started)))


def _record(answer: list[Any] | None) -> JobRecord | None:
    if answer is None:
        return None
    state, outcome, prompt, worker, tenant, lane, gateway, cancelled, epoch, guaranteed, generated = answer
    return JobRecord(
        state=JobState(state.decode()),
        outcome=Outcome(outcome.decode()) if outcome else None,
        generated=generated,
        prompt_tokens=prompt,
        worker_id=worker.decode(),
        tenant=tenant.decode(),
        lane=LaneName(lane.decode()),
        gateway_id=gateway.decode(),
        cancelled=bool(cancelled),
        epoch=epoch,
        guaranteed=bool(guaranteed),
    )
