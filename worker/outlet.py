"""A worker's output: tokens go to their gateways over links, progress goes to the store.

A job's stream opens once its gateway has answered with the tokens that it has. A new job starts without waiting for
that answer; any other job continues from it. The output is kept until the gateway has confirmed the job's end, so that
a redialled link continues where the lost one ended. The end is then reported to the store. If a gateway stays
unreachable, its jobs return to the queue, finished or not: the next worker asks the gateway first. This worker is then
given no job of that gateway until it is linked again, or UNREACHED_S have passed."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import msgspec

from fairlane.scheduler.links.dialer import GatewayPeer
from fairlane.scheduler.links.frames import Closed, Granted, Left, MediaPart, Open, Opened, Refused, Stop
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT
from fairlane.scheduler.protocol.media import MeasureMedia
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.types import charged_when_taken
from fairlane.store.bounds import PER_CALL
from fairlane.store.retry import StoreLink
from fairlane.worker.engine.engine import RemotePart
from fairlane.worker.media.items import Items
from fairlane.worker.media.starts import JobOwner, JobStarts
from fairlane.worker.output_stream import OutputStream, messages_of
from fairlane.worker.reports import Publication
from fairlane.worker.shards.store_reports import StoreCalls, StoreReports

# Weighted tokens that a job computes beyond what is charged before its next report: 192 tokens of output. If worker and
# gateway die together, at most these are not charged.
REPORT_COST = 192 * DECODE_WEIGHT
# A link without jobs stays open for this long.
LINGER_S = 60.0
# Time to redial a lost link before its jobs return to the queue: with SILENT_S, a cut is over within 2 s.
REDIAL_S = 0.25
# The queue gives a worker no jobs of a gateway for this long after it has returned some. Shorter than the interval at
# which a gateway looks whether its jobs reach it, so that one that no worker reaches notices that.
UNREACHED_S = 3.0
# A gateway that is out of reach is dialled for this many times the patience with it: three leases, after which the
# store cancels the jobs of a dead gateway.
REDIAL_PATIENCES = 6


class GatewayLink(Protocol):
    """A link to one gateway, as `scheduler.links.dialer.Dialer` is."""

    @property
    def is_open(self) -> bool: ...

    def send(self, messages: Sequence[msgspec.Struct]) -> None: ...

    async def run(self) -> None: ...


# With the gateway's id and address.
Dial = Callable[[str, str, GatewayPeer], GatewayLink]


@dataclass(slots=True, eq=False, kw_only=True)
class _Stream(OutputStream):
    gateway: "_Gateway"
    reports: StoreReports


@dataclass(slots=True, eq=False)
class _Gateway:
    outlet: "Outlet"
    gateway_id: str
    address: str
    streams: dict[int, _Stream] = field(default_factory=dict)
    link: GatewayLink = field(init=False)
    items: Items = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    # Returns its jobs to the queue while it is out of reach, or closes the link while it has none.
    timer: asyncio.TimerHandle | None = None
    # Time that its jobs wait while it is out of reach.
    patience_s: float = field(init=False)
    # Ends the time in which this worker should be given no jobs of it, since it was out of reach.
    avoided: asyncio.TimerHandle | None = None
    _armed: tuple[Callable[["_Gateway"], None], float] | None = None

    def __post_init__(self) -> None:
        self.patience_s = self.outlet.patience_s
        self.link = self.outlet.dial(self.gateway_id, self.address, self)
        self.items = Items(self.link.send)
        self.task = asyncio.get_running_loop().create_task(self.link.run(), name=f"link {self.gateway_id}")

    def close(self) -> None:
        self.task.cancel()
        self.disarm()
        self.stop_avoiding()

    def arm(self) -> None:
        """Set the timer for the present state. A timer that runs is not restarted: more jobs must not postpone it."""
        outlet, armed = self.outlet, None
        if not self.streams:
            armed = outlet.hang_up, LINGER_S if self.link.is_open else REDIAL_PATIENCES * outlet.patience_s
        elif not self.link.is_open:
            armed = outlet.give_up, self.patience_s
        if armed == self._armed:
            return
        self.disarm()
        if armed is not None:
            act, limit_s = armed
            self._armed, self.timer = armed, asyncio.get_running_loop().call_later(limit_s, act, self)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self._armed = None

    def leave(self, streams: Sequence[_Stream]) -> None:
        """Remove streams. The gateway is notified of those that it may consider open."""
        removed = [stream for stream in streams if self.streams.pop(stream.number, None) is not None]
        left = [Left(stream.number) for stream in removed if not stream.is_over]
        if left:
            self.link.send(left)
        self.arm()

    @property
    def has_jobs(self) -> bool:
        return bool(self.streams)

    def linked(self) -> None:
        self.patience_s = REDIAL_S
        self.arm()
        self.link.send([Open(stream.number, *stream.key) for stream in self.streams.values() if not stream.is_over])
        self.items.linked()
        self.stop_avoiding()

    def avoid(self) -> None:
        if self.avoided is not None:
            self.avoided.cancel()
        self.avoided = asyncio.get_running_loop().call_later(UNREACHED_S, self.stop_avoiding)

    def stop_avoiding(self) -> None:
        if self.avoided is not None:
            self.avoided.cancel()
            self.avoided = None
            self.outlet.on_reached()

    def unlinked(self) -> None:
        for stream in self.streams.values():
            stream.is_open = False
        self.arm()

    def received(self, messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, MediaPart):
                self.items.received(message)
            stream = self.streams.get(message.stream)
            if stream is None or stream.is_over:
                continue
            match message:
                case Opened():
                    self.outlet.opened(stream, message)
                case Granted():
                    self.outlet.starts.grant(stream, message.granted_until)
                case Stop():
                    self.outlet.stop(stream)
                case Closed():
                    self.outlet.over(stream)
                case Refused():
                    self.outlet.refused(stream, message)


class Outlet:
    """All streams of one worker. Used only on the event loop."""

    def __init__(
        self,
        owner: JobOwner,
        *,
        dial: Dial,
        stores: Sequence[StoreCalls],
        link: StoreLink,
        patience_s: float,
        on_reached: Callable[[], None] = lambda: None,
        remote: RemotePart | None = None,
    ) -> None:
        """`stores`: the queue's shards. `patience_s`: how long jobs wait for the first link to a gateway. `on_reached`
        is called when a gateway leaves `unreached`. `remote` takes the media of jobs."""
        self.owner = owner
        self.on_reached = on_reached
        self.patience_s = patience_s
        self.dial = dial
        self.starts = JobStarts(owner, remote)
        self._streams: dict[str, _Stream] = {}
        self._gateways: dict[str, _Gateway] = {}
        self._numbers = count(1)
        self._reports = [StoreReports(self, calls, link) for calls in stores]
        # Set when a stream has left.
        self._forgot = asyncio.Event()

    # Leases in.

    def took(self, leases: Iterable[Lease], shard: int = 0) -> None:
        """Open a stream for each lease of a shard, and start the new jobs."""
        opening: dict[_Gateway, list[Open]] = defaultdict(list)
        for lease in leases:
            self._replace(lease.job.job_id)
            gateway = self._gateway(lease.job.gateway_id, lease.job.gateway_address)
            stream = _Stream(
                *(lease, next(self._numbers)),
                waits=lease.started,
                charged=charged_when_taken(lease.job, resumes=lease.started),
                gateway=gateway,
                reports=self._reports[shard],
            )
            stream.begin([()] * lease.job.n)
            gateway.streams[stream.number] = self._streams[stream.job_id] = stream
            opening[gateway].append(Open(stream.number, *stream.key))
            if not stream.waits:
                self.starts.start(stream, gateway.items, again=False)
        for gateway, opens in opening.items():
            gateway.arm()
            gateway.link.send(opens)

    @property
    def unreached(self) -> list[str]:
        """The gateways of which this worker should be given no jobs."""
        return [each.gateway_id for each in self._gateways.values() if each.avoided is not None][-PER_CALL:]

    def waiting(self) -> list[str]:
        """Return the jobs that have not started, because their gateway has not answered or sent their media."""
        return [stream.job_id for stream in self._streams.values() if stream.waits or stream.lacks_media]

    def cancel(self, job_id: str) -> bool:
        """Cancel a job as the store asks. Return whether the engine may have it."""
        stream = self._streams.get(job_id)
        if stream is None or not (stream.waits or stream.lacks_media or stream.end is not None):
            return True
        if stream.waits or stream.lacks_media:
            self.starts.withhold(stream, "it was cancelled before its gateway answered")
        if not stream.gateway.link.is_open:
            self._return([stream])  # the store ends it then, and notifies its gateway
        elif stream.end is None:  # its gateway gets the end in place of the tokens
            self.starts.end(stream, stream.gateway.items, Outcome.CANCELLED)
        return False

    def measure(self, asked: MeasureMedia) -> None:
        """Report an item's number of tokens to the gateway that asks for it."""
        gateway = self._gateway(asked.gateway_id, asked.gateway_address)
        gateway.arm()
        self.starts.media.measure(asked, gateway.items)

    # Output.

    def put(self, publications: Iterable[Publication]) -> None:
        sending: dict[_Gateway, list[msgspec.Struct]] = defaultdict(list)
        for each in publications:
            stream = self._streams.get(each.job_id)
            if stream is None or stream.lease.epoch != each.epoch or stream.is_over:
                continue
            stream.cost += each.cost
            if stream.lease is each.lease:  # else it began anew since, from more tokens
                stream.record(each.events)
                if stream.is_open:
                    sending[stream.gateway] += messages_of(stream.number, each.events)
            is_claim_used = stream.lease.job.guaranteed and not stream.reported and stream.generated
            if stream.cost > stream.charged + REPORT_COST or is_claim_used:
                stream.reports.want(stream)
        for gateway, messages in sending.items():
            gateway.link.send(messages)

    # What gateways say.

    def opened(self, stream: _Stream, message: Opened) -> None:
        """Start a waiting job, restart it if the gateway has more tokens, or send what the gateway lacks."""
        has = message.generated
        if len(has) != len(stream.output):
            self.refused(stream, Refused(stream.number))
            return
        stream.is_open = True
        is_behind = any(len(theirs) > len(own) for theirs, own in zip(has, stream.output, strict=True))
        if (stream.waits or is_behind) and stream.end is None:
            again, stream.waits = not (stream.waits or stream.lacks_media), False
            stream.begin(has)
            job = msgspec.structs.replace(stream.lease.job, granted_until=message.granted_until)
            stream.lease = msgspec.structs.replace(stream.lease, job=job, generated=has)
            self.starts.start(stream, stream.gateway.items, again=again)
            return
        messages = [message for event in stream.since(has) for message in messages_of(stream.number, (event,))]
        if messages:
            stream.gateway.link.send(messages)
        if message.granted_until > stream.lease.job.granted_until:
            self.starts.grant(stream, message.granted_until)

    def stop(self, stream: _Stream) -> None:
        """Cancel a job as its gateway asks."""
        if self.cancel(stream.job_id):
            self.owner.cancel_job(stream.job_id)

    def over(self, stream: _Stream) -> None:
        """Report a job's end: its gateway has it, or will not ask for it."""
        stream.is_over = True
        stream.reports.want(stream)

    def refused(self, stream: _Stream, message: Refused) -> None:
        """Drop a job whose gateway has ended it, or gets it under a later lease."""
        stream.is_open = False
        self.starts.release(stream)
        if stream.end is None or message.superseded:
            self.owner.drop_jobs([stream.key], "its gateway refused it")
        if message.superseded:  # the store ignores it, unless it has forgotten the later lease
            self._return([stream])
            return
        stream.outcome = stream.outcome or Outcome.CANCELLED
        self.over(stream)

    def give_up(self, gateway: _Gateway) -> None:
        gateway.disarm()
        gateway.patience_s = REDIAL_S  # for jobs of it that this worker is given until it is linked again
        gateway.avoid()
        streams = list(gateway.streams.values())
        self.owner.drop_jobs([stream.key for stream in streams], f"gateway {gateway.gateway_id} cannot be reached")
        self._return(streams)

    def hang_up(self, gateway: _Gateway) -> None:
        gateway.close()
        del self._gateways[gateway.gateway_id]

    # Returns to the queue.

    def give_back(self, job_ids: Iterable[str]) -> None:
        """Return jobs to the queue that the engine does not hold."""
        self._return([self._streams[job_id] for job_id in job_ids if job_id in self._streams])

    async def hand_back_all(self) -> None:
        self._return(list(self._streams.values()))
        await self.flushed()

    def drop(self, jobs: Iterable[tuple[str, int]]) -> None:
        for job_id, epoch in jobs:
            stream = self._streams.get(job_id)
            if stream is not None and stream.lease.epoch == epoch:
                self._forget(stream)

    def _return(self, streams: Sequence[_Stream]) -> None:
        leaving: dict[_Gateway, list[_Stream]] = defaultdict(list)
        for stream in streams:
            if stream.lacks_media:
                self.starts.release(stream)
            if stream.reports.give_back(stream):
                leaving[stream.gateway].append(stream)
        for gateway, left in leaving.items():
            gateway.leave(left)

    # Reports to the store.

    async def run(self) -> None:
        """Report progress, ask for jobs, and return jobs to the queue, as long as the worker serves."""
        await asyncio.gather(*(reports.run() for reports in self._reports))

    def ask(self, shard: int = 0) -> None:
        """Send a report, be it empty, since its answer may bring jobs."""
        self._reports[shard].wake()

    async def flushed(self) -> None:
        for reports in self._reports:
            await reports.flushed()

    async def asked(self, shard: int) -> None:
        await self._reports[shard].flushed()

    @property
    def has_unconfirmed_ends(self) -> bool:
        """Whether reports of ends will follow as soon as gateways have confirmed them."""
        return any(each.end is not None and each.is_open and not each.is_over for each in self._streams.values())

    async def emptied(self) -> None:
        """Wait until no job is left: all are reported, dropped or returned."""
        await self._until(lambda: not self._streams)

    async def ends_reported(self) -> None:
        """Wait until each job that has ended is reported. Jobs that run are left as they are."""
        await self._until(lambda: all(each.end is None and not each.is_over for each in self._streams.values()))

    async def _until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._forgot.clear()
            await self._forgot.wait()

    async def aclose(self) -> None:
        tasks = [gateway.task for gateway in self._gateways.values()]
        for gateway in self._gateways.values():
            gateway.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.starts.media.aclose()

    def lost(self, jobs: Sequence[tuple[str, int]]) -> None:
        self.owner.drop_jobs(jobs, "they were reassigned to other workers")

    def holds(self, stream: OutputStream) -> bool:
        return self._streams.get(stream.job_id) is stream

    def _replace(self, job_id: str) -> None:
        # A report must not name a job under two epochs: the store would refuse both.
        older = self._streams.get(job_id)
        if older is not None:
            self.owner.drop_jobs([older.key], "it was leased again")
            self._forget(older)

    def _forget(self, stream: _Stream) -> None:
        stream.reports.forget(stream)
        self.starts.release(stream)
        del self._streams[stream.job_id]
        self.owner.forget_job(*stream.key)
        stream.gateway.leave([stream])
        self._forgot.set()

    def _gateway(self, gateway_id: str, address: str) -> _Gateway:
        gateway = self._gateways.get(gateway_id)
        if gateway is None:
            gateway = self._gateways[gateway_id] = _Gateway(self, gateway_id, address)
        return gateway
