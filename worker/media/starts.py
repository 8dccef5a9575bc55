"""Gives jobs to the engine, as soon as their images and sounds are here."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import msgspec

from fairlane.scheduler.protocol.messages import Finished, Lease, Outcome
from fairlane.worker.engine.engine import RemotePart
from fairlane.worker.media.items import Items, Media
from fairlane.worker.output_stream import OutputStream, messages_of

LOST_MEDIA = "an image or a sound of the request is no longer available"


class JobOwner(Protocol):
    """The worker's server, which moves jobs into and out of the engine."""

    def start_job(self, lease: Lease, *, again: bool) -> None:
        """Give a job to the engine. `again`: it runs already, from fewer tokens, and begins anew."""

    def grant_job(self, job_id: str, granted_until: int) -> None: ...

    def cancel_job(self, job_id: str) -> None: ...

    def drop_jobs(self, jobs: Sequence[tuple[str, int]], why: str) -> None:
        """Remove jobs from the engine, by id and epoch."""

    def forget_job(self, job_id: str, epoch: int) -> None:
        """Called when the store no longer assigns the job to this worker."""


class JobStarts:
    """The starts of one outlet's jobs. Used only on the event loop."""

    def __init__(self, owner: JobOwner, remote: RemotePart | None) -> None:
        self.media = Media(remote)
        self._owner = owner

    def start(self, stream: OutputStream, items: Items, *, again: bool) -> None:
        digests = frozenset(span.digest for span in stream.lease.job.media)
        then = partial(self._fetched, stream, items)
        stream.lacks_media = bool(digests) and not self.media.hold(stream.key, digests, items, then)
        if not stream.lacks_media:
            self._owner.start_job(stream.lease, again=again)

    def grant(self, stream: OutputStream, granted_until: int) -> None:
        if stream.lacks_media:
            job = msgspec.structs.replace(stream.lease.job, granted_until=granted_until)
            stream.lease = msgspec.structs.replace(stream.lease, job=job)
        else:
            self._owner.grant_job(stream.job_id, granted_until)

    def withhold(self, stream: OutputStream, why: str) -> None:
        """Do not start a job. The engine reports its capacity anew: the queue was asked without this job's part."""
        stream.waits = False
        self.release(stream)
        self._owner.drop_jobs([stream.key], why)

    def release(self, stream: OutputStream) -> None:
        """Drop a job's media, and do not start it if they have not arrived."""
        stream.lacks_media = False
        self.media.release(stream.key)

    def end(self, stream: OutputStream, items: Items, outcome: Outcome, error: str = "") -> None:
        """End a job that the engine does not have."""
        end = Finished(job_id=stream.job_id, epoch=stream.lease.epoch, outcome=outcome, error=error)
        stream.record([end])
        if stream.is_open:
            items.send(messages_of(stream.number, (end,)))

    def _fetched(self, stream: OutputStream, items: Items, is_whole: bool) -> None:
        if is_whole:
            stream.lacks_media = False
            self._owner.start_job(stream.lease, again=False)
        else:
            self.withhold(stream, LOST_MEDIA)
            self.end(stream, items, Outcome.FAILED, LOST_MEDIA)
