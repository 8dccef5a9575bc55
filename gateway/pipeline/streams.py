"""Workers' streams into this gateway's jobs, over their links.

A stream belongs to one lease. The latest lease that opened a job has it: its epoch is the job's fence, older leases and
the stream that it replaces are refused. A job without a stream waits for one."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlane.gateway.errors import internal_error
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.frames import (
    Closed,
    Events,
    Fetch,
    Granted,
    Left,
    Measured,
    Open,
    Opened,
    Refused,
    Stop,
    ToGateway,
    Tokens,
    ToWorker,
)
from fairlane.scheduler.protocol.messages import Event, Finished, TokenDelta
from fairlane.scheduler.queue.shards import queue_of

log = logging.getLogger(__name__)

OfMedia = Callable[[Link, Fetch | Measured], Sequence[ToWorker]]


@dataclass(slots=True, eq=False)
class JobStream:
    """One lease's stream into a job."""

    link: Link
    number: int
    job: LiveJob
    epoch: int

    def grant(self, granted_until: int) -> None:
        self.link.send([Granted(self.number, granted_until)])

    def stop(self) -> None:
        self.link.send([Stop(self.number)])


class JobStreams:
    """All streams of one gateway process: the peer of its `LinkListener`."""

    def __init__(self, dispatcher: Dispatcher, of_media: OfMedia = lambda link, message: ()) -> None:
        """`of_media` takes messages about media, and returns the answers."""
        self._dispatcher = dispatcher
        self._of_media = of_media
        self._streams: dict[Link, dict[int, JobStream]] = {}
        # Links that ended while they had streams; an idle link is closed by its worker.
        self.lost_links = 0

    def received(self, link: Link, messages: Sequence[ToGateway]) -> None:
        streams = self._streams.setdefault(link, {})
        answers: list[ToWorker] = []
        reached: dict[LiveRequest, None] = {}
        for message in messages:
            if isinstance(message, Open):
                answers.append(self._open(link, streams, message))
            elif (stream := streams.get(message.stream)) is None:
                if isinstance(message, Fetch | Measured):
                    answers += self._of_media(link, message)
                elif not isinstance(message, Left):
                    answers.append(Refused(message.stream))
            elif isinstance(message, Left):
                self._detach(stream)
            else:
                answers += self._deliver(streams, stream, _events(stream, message))
                reached[stream.job.request] = None
        for request in reached:
            request.ring()
        if answers:
            link.send(answers)

    def lost(self, link: Link) -> None:
        streams = self._streams.pop(link, {})
        self.lost_links += bool(streams)
        for stream in streams.values():
            if stream.job.stream is stream:
                stream.job.stream = None

    def _open(self, link: Link, streams: dict[int, JobStream], message: Open) -> ToWorker:
        job = self._dispatcher.jobs.get(message.job_id)
        if job is None or job.finished is not None or job.message is None:
            return Refused(message.stream)
        if job.queue != link.queue and queue_of(job.queue) != link.queue:
            return Refused(message.stream)
        if message.epoch < job.fence:
            return Refused(message.stream, superseded=True)
        older = job.stream
        if isinstance(older, JobStream):
            self._detach(older)
            if (older.link, older.number) != (link, message.stream):
                older.link.send([Refused(older.number, superseded=True)])
        if message.stream in streams:
            self._detach(streams[message.stream])
        stream = JobStream(link, message.stream, job, message.epoch)
        streams[message.stream], job.stream, job.fence = stream, stream, message.epoch
        generated = tuple(tuple(choice.token_ids) for choice in job.choices)
        return Opened(message.stream, job.granted_until, generated)

    def _deliver(self, streams: dict[int, JobStream], stream: JobStream, events: Sequence[Event]) -> Sequence[ToWorker]:
        is_over = bool(events) and isinstance(events[-1], Finished)
        if stream.job.stream is not stream:  # settled, or another worker's by now
            del streams[stream.number]
            return [Closed(stream.number) if is_over else _refusal(stream)]
        if _exceeds_grant(stream.job, events):
            log.error("worker %s sent tokens beyond the grant of job %s", stream.link.peer_name, stream.job.id)
            self._detach(stream)
            stream.job.fail(internal_error())
            return [Refused(stream.number)]
        try:
            for event in events:
                self._dispatcher.deliver(stream.job, event)
        except Exception:  # the link's other streams are not harmed
            log.exception("job %s: an event of worker %s cannot be delivered", stream.job.id, stream.link.peer_name)
            stream.job.fail(internal_error())
        if not is_over:
            return ()
        self._detach(stream)
        return [Closed(stream.number)]

    def _detach(self, stream: JobStream) -> None:
        self._streams.get(stream.link, {}).pop(stream.number, None)
        if stream.job.stream is stream:
            stream.job.stream = None


def _refusal(stream: JobStream) -> Refused:
    return Refused(stream.number, superseded=stream.epoch < stream.job.fence)


def _events(stream: JobStream, message: ToGateway) -> Sequence[Event]:
    if isinstance(message, Events):
        return message.events
    if not isinstance(message, Tokens):
        return ()
    delta = TokenDelta(
        job_id=stream.job.id,
        epoch=stream.epoch,
        choice=message.choice,
        first_index=message.first_index,
        token_ids=message.token_ids,
    )
    return (delta,)


def _exceeds_grant(job: LiveJob, events: Sequence[Event]) -> bool:
    most = job.granted_until
    for event in events:  # noqa: SIM110 - asked for every token: a generator costs more
        if isinstance(event, TokenDelta) and event.first_index + len(event.token_ids) > most:
            return True
    return False
