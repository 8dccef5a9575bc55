"""Workers' streams into a gateway's jobs: who holds a job, what it is told, and whose tokens count."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, QueueConnections
from fairlane.gateway.pipeline.streams import JobStreams
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.frames import (
    Closed,
    Events,
    Granted,
    Open,
    Opened,
    Refused,
    Stop,
    ToGateway,
    Tokens,
)
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Finished, Outcome, TokenDelta
from tests.support.quotas.house import ask
from tests.support.scheduler.queues import job as message

pytestmark = pytest.mark.anyio
QUEUE = "model@1"
OURS = message("f1", granted_until=8, max_tokens=100)


@dataclass(eq=False)
class Peer:
    """A worker's link, as the gateway sees it."""

    queue: str = QUEUE
    peer_name: str = "w"
    said: list[msgspec.Struct] = field(default_factory=list)

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        self.said += messages


class Gateway:
    """One job, and the streams into it."""

    def __init__(self, n: int = 1) -> None:
        connections = cast(QueueConnections, None)
        self.dispatcher = Dispatcher("g", lambda _: connections, AllOpenRequests(DEFAULT_LANES), kept_s=1.0)
        self.streams = JobStreams(self.dispatcher)
        self.job = self.add("f1", n)
        self.dispatcher.open_requests.at(QUEUE)

    def add(self, job_id: str, n: int = 1) -> LiveJob:
        request = LiveRequest(ask(job_id, max_output_tokens=100, n=n))
        job = LiveJob(job_id, request, 1, QUEUE, granted=8, message=msgspec.structs.replace(OURS, job_id=job_id))
        request.jobs = [job]
        self.dispatcher._jobs[job_id] = job
        return job

    def hear(self, peer: Peer, *messages: ToGateway) -> list[Any]:
        """Return what the worker is answered."""
        before = len(peer.said)
        self.streams.received(cast(Link, peer), messages)
        return peer.said[before:]

    @property
    def received(self) -> list[int]:
        return list(self.job.choices[0].token_ids)


def finished(epoch: int = 1, outcome: Outcome = Outcome.FINISHED) -> Finished:
    return Finished(job_id="f1", epoch=epoch, outcome=outcome)


async def test_who_takes_a_job_over_goes_on_from_what_its_gateway_has() -> None:
    gateway, first, second = Gateway(), Peer(), Peer()

    assert gateway.hear(first, Open(1, "f1", 1)) == [Opened(1, 8, ((),))]
    assert gateway.hear(first, Tokens(1, 0, 0, (5, 6))) == []
    assert gateway.hear(second, Open(7, "f1", 3)) == [Opened(7, 8, ((5, 6),))]
    assert first.said[1:] == [Refused(1, superseded=True)]
    assert gateway.hear(first, Tokens(1, 0, 2, (9,))) == [Refused(1)]
    gateway.hear(second, Tokens(7, 0, 2, (7,)))

    assert gateway.received == [5, 6, 7]


async def test_an_older_lease_is_refused_from_then_on() -> None:
    gateway, old = Gateway(), Peer()
    gateway.hear(Peer(), Open(1, "f1", 4))

    assert gateway.hear(old, Open(1, "f1", 3)) == [Refused(1, superseded=True)]
    assert gateway.job.fence == 4


async def test_a_worker_of_another_model_card_is_refused() -> None:
    gateway = Gateway()

    assert gateway.hear(Peer(queue="model@2"), Open(1, "f1", 9)) == [Refused(1)]


async def test_a_job_without_a_stream_waits_and_is_opened_again() -> None:
    gateway, peer = Gateway(), Peer()
    gateway.hear(peer, Open(1, "f1", 1), Tokens(1, 0, 0, (5,)))

    gateway.streams.lost(cast(Link, peer))
    assert gateway.job.stream is None
    again = Peer()
    assert gateway.hear(again, Open(1, "f1", 1)) == [Opened(1, 8, ((5,),))]
    gateway.hear(again, Tokens(1, 0, 0, (5, 6)))

    assert gateway.received == [5, 6]


async def test_an_end_is_confirmed_once_and_the_job_is_not_opened_again() -> None:
    gateway, peer = Gateway(), Peer()
    end = TokenDelta(job_id="f1", epoch=1, choice=0, first_index=0, token_ids=(5,), finish_reason="stop")

    assert gateway.hear(peer, Open(1, "f1", 1), Events(1, (end, finished()))) == [Opened(1, 8, ((),)), Closed(1)]
    assert gateway.hear(Peer(), Open(2, "f1", 2)) == [Refused(2)]
    assert gateway.job.finished == finished()


async def test_the_end_of_a_settled_job_is_confirmed_and_its_tokens_are_refused() -> None:
    gateway, peer = Gateway(), Peer()
    gateway.hear(peer, Open(1, "f1", 1), Tokens(1, 0, 0, (5,)))

    gateway.dispatcher.abandon(gateway.job)

    assert peer.said[1:] == [Stop(1)]
    assert gateway.hear(peer, Events(1, (finished(outcome=Outcome.CANCELLED),))) == [Closed(1)]
    assert gateway.hear(peer, Tokens(1, 0, 1, (6,))) == [Refused(1)]
    assert gateway.received == [5]


async def test_tokens_beyond_the_grant_are_not_accepted() -> None:
    gateway, peer = Gateway(), Peer()

    assert gateway.hear(peer, Open(1, "f1", 1), Tokens(1, 0, 0, tuple(range(9))))[1:] == [Refused(1)]
    assert gateway.received == []
    assert gateway.job.request.is_faulty


async def test_a_grant_goes_to_the_holder_and_is_part_of_what_the_next_one_is_told() -> None:
    gateway, peer = Gateway(), Peer()
    gateway.hear(peer, Open(1, "f1", 1))
    gateway.job.granted = 16
    assert gateway.job.stream is not None
    gateway.job.stream.grant(gateway.job.granted_until)

    assert peer.said[1:] == [Granted(1, 16)]
    assert gateway.hear(Peer(), Open(1, "f1", 2)) == [Opened(1, 16, ((),))]


async def test_streams_of_one_link_do_not_harm_each_other() -> None:
    gateway, peer = Gateway(), Peer()

    assert gateway.hear(peer, Tokens(9, 0, 0, (1,)), Open(1, "f1", 1), Open(2, "other", 1), Tokens(1, 0, 0, (5,))) == [
        Refused(9),
        Opened(1, 8, ((),)),
        Refused(2),
    ]
    assert gateway.received == [5]


async def test_tokens_out_of_order_fail_their_request_once_and_harm_no_other_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway, peer = Gateway(), Peer()
    other = gateway.add("f2")
    gateway.hear(peer, Open(1, "f1", 1), Open(2, "f2", 1))

    gateway.hear(peer, Tokens(1, 0, 3, (5,)), Tokens(2, 0, 0, (6,)))
    gateway.dispatcher.abandon(gateway.job)
    assert gateway.hear(peer, *[Tokens(1, 0, 3 + index, (5,)) for index in range(3)]) == 3 * [Refused(1)]
    gateway.hear(peer, Tokens(2, 0, 1, (7,)))

    assert gateway.job.request.is_faulty
    assert (gateway.received, list(other.choices[0].token_ids)) == ([], [6, 7])
    assert not other.request.is_faulty
    assert len(caplog.records) <= 1


async def test_a_worker_that_goes_on_beyond_its_grant_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    gateway, peer = Gateway(), Peer()
    other = gateway.add("f2")
    gateway.hear(peer, Open(1, "f1", 1), Open(2, "f2", 1))

    for index in range(4):
        assert gateway.hear(peer, Tokens(1, 0, 8 + index, (5,))) == [Refused(1)]
    gateway.hear(peer, Tokens(2, 0, 0, (6,)))

    assert len(caplog.records) == 1
    assert list(other.choices[0].token_ids) == [6]


async def test_a_number_that_is_used_again_ends_the_stream_that_had_it() -> None:
    gateway, peer = Gateway(), Peer()
    other = gateway.add("f2")

    gateway.hear(peer, Open(1, "f1", 1), Open(1, "f2", 1))
    assert (gateway.job.stream, other.stream is None) == (None, False)
    gateway.hear(peer, Tokens(1, 0, 0, (6,)))

    assert (gateway.received, list(other.choices[0].token_ids)) == ([], [6])
