"""A gateway's end of its links: the gateway's own streams and live jobs, without requests, budgets and HTTP."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from fairlane.gateway.errors import ApiError
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.pipeline.streams import JobStreams
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.quotas.store import Ask
from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.frames import Fetch, Measured, MediaPart, ToGateway
from fairlane.scheduler.protocol.messages import Event, Finished, Job, PositionLogprobs, TokenDelta


@dataclass
class GatewayEnd:
    """What one gateway has received. A token out of order or twice, or a second end, is a fault."""

    on_news: Callable[[], None] = lambda: None
    jobs: dict[str, LiveJob] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[tuple[str, int], list[PositionLogprobs]] = field(default_factory=lambda: defaultdict(list))
    embeddings: dict[str, bytes] = field(default_factory=dict)
    ends: dict[str, Finished] = field(default_factory=dict)
    epochs: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    fault: BaseException | None = None
    queue_name: str = "q"
    media: dict[bytes, bytes] = field(default_factory=dict)
    part_bytes: int = 4
    """Of an item, in a message."""
    measured: list[tuple[bytes, int]] = field(default_factory=list)
    addressed: list[ToGateway] = field(default_factory=list)
    """Messages of the links, for tests that count them."""

    def __post_init__(self) -> None:
        self.streams = JobStreams(cast(Dispatcher, self))

    def expect(self, job: Job) -> LiveJob:
        """Register a job, as a gateway does before it is put."""
        ask = cast(Ask, SimpleNamespace(n=job.n, reservation_id=job.job_id))
        request = LiveRequest(ask)
        live = LiveJob(job.job_id, request, len(job.prompt), self.queue_name, granted=job.granted_until, message=job)
        request.jobs.append(live)
        request.read_by(lambda: self._read(request))
        self.jobs[job.job_id] = live
        return live

    def grant(self, job_id: str, granted_until: int) -> None:
        job = self.jobs[job_id]
        job.granted = granted_until
        if job.stream is not None:
            job.stream.grant(job.granted_until)

    def stop(self, job_id: str) -> None:
        """Ask the holder to end a job."""
        stream = self.jobs[job_id].stream
        assert stream is not None
        stream.stop()

    def settle(self, job_id: str) -> None:
        """Forget a job, as after its settlement."""
        job = self.jobs.pop(job_id)
        if job.stream is not None:
            job.stream.stop()
            job.stream = None

    # What the streams ask of their dispatcher.

    def deliver(self, job: LiveJob, event: Event) -> None:
        job.accept(event)

    # scheduler.links.connection.Peer.

    def received(self, link: Link, messages: Sequence[ToGateway]) -> None:
        self.addressed += messages
        self.streams.received(link, [each for each in messages if not isinstance(each, Fetch | Measured)])
        for message in messages:
            if isinstance(message, Fetch):
                whole = self.media.get(message.digest, b"")
                part = whole[message.start : message.start + self.part_bytes]
                link.send([MediaPart(message.digest, message.start, len(whole), part)])
            elif isinstance(message, Measured):
                self.measured.append((message.digest, message.tokens))
                self.on_news()

    def lost(self, link: Link) -> None:
        self.streams.lost(link)

    def accept(self, event: Event) -> None:
        """Take an event that the store published."""
        job = self.jobs.get(event.job_id)
        if job is not None:
            job.accept(event)
            job.request.ring()

    def _read(self, request: LiveRequest) -> None:
        for job, news in request.take_news():
            if isinstance(news, ApiError):
                self.fault = news
            else:
                self._record(job, news)
        self.on_news()

    def _record(self, job: LiveJob, event: Event) -> None:
        self.events.append(event)
        match event:
            case TokenDelta():
                received = self.tokens[job.id, event.choice]
                if event.first_index != len(received):
                    self.fault = AssertionError(f"{event} after {len(received)} tokens")
                received.extend(event.token_ids)
                self.logprobs[job.id, event.choice].extend(event.logprobs)
                self.epochs[job.id].add(event.epoch)
                if event.embedding:
                    self.embeddings[job.id] = event.embedding
            case Finished():
                if job.id in self.ends:
                    self.fault = AssertionError(f"{job.id} ended twice")
                self.ends[job.id] = event
