"""Links between real sockets: both ends prove themselves, frames arrive in order, and a lost link is redialled."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlane.scheduler.links import connection, frames, handshake, listener
from fairlane.scheduler.links import dialer as dialer_module
from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.dialer import Dialer
from fairlane.scheduler.links.frames import Closed, Codec, FrameError, Open, Opened, ToGateway, Tokens, ToWorker
from fairlane.scheduler.links.listener import LinkListener

pytestmark = pytest.mark.anyio
SECRET = b"s" * 32
LIMIT_S = 10.0


@dataclass
class Gateway:
    """Answers each Open, and keeps what it received."""

    messages: list[Any] = field(default_factory=list)
    lost_links: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self.messages += messages
        link.send([Opened(each.stream, 64, ((1, 2),)) for each in messages if isinstance(each, Open)])
        self.changed.set()

    def lost(self, _link: Link) -> None:
        self.lost_links += 1
        self.changed.set()


@dataclass
class Worker:
    """Keeps what it received, and how often its link was open."""

    messages: list[Any] = field(default_factory=list)
    is_busy: bool = True
    opened: int = 0
    lost: int = 0
    failures: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_jobs(self) -> bool:
        self.failures += 1
        self.changed.set()
        return self.is_busy

    def linked(self) -> None:
        self.opened += 1
        self.changed.set()

    def received(self, messages: Sequence[Any]) -> None:
        self.messages += messages
        self.changed.set()

    def unlinked(self) -> None:
        self.lost += 1
        self.changed.set()


def known(secret: bytes) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        return secret

    return read


async def until(each: Gateway | Worker, what: Any) -> None:
    """Wait until `what()` is true."""
    async with asyncio.timeout(LIMIT_S):
        while not what():
            each.changed.clear()
            await each.changed.wait()


@asynccontextmanager
async def listening(
    secret: bytes = SECRET, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[LinkListener, Gateway, str]]:
    gateway = Gateway()
    opened = LinkListener("g", known(secret), gateway)
    port = await opened.listen("127.0.0.1", 0, tls)
    try:
        yield opened, gateway, f"tcp://127.0.0.1:{port}"
    finally:
        await opened.aclose()


@asynccontextmanager
async def dialling(
    address: str, *, secret: bytes = SECRET, gateway_id: str = "g", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Dialer, Worker]]:
    worker = Worker()
    dialer = Dialer(
        address, worker_id="w", queue="q", gateway_id=gateway_id, secret=known(secret), peer=worker, tls=tls
    )
    task = asyncio.create_task(dialer.run())
    try:
        yield dialer, worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_link_carries_messages_both_ways() -> None:
    async with listening() as (_, gateway, address), dialling(address) as (dialer, worker):
        await until(worker, lambda: worker.opened)
        dialer.send([Open(1, "job", 7), Tokens(1, 0, 0, (5, 6))])
        await until(worker, lambda: worker.messages)

    assert gateway.messages == [Open(1, "job", 7), Tokens(1, 0, 0, (5, 6))]
    assert worker.messages == [Opened(1, 64, ((1, 2),))]


async def test_a_unix_socket_carries_a_link_and_is_its_users_alone(tmp_path: Path) -> None:
    gateway, path = Gateway(), tmp_path / "link"
    opened = LinkListener("g", known(SECRET), gateway)
    await opened.listen_unix(path)
    async with dialling(f"unix://{path}") as (dialer, worker):
        await until(worker, lambda: worker.opened)
        dialer.send([Open(1, "job", 7)])
        await until(gateway, lambda: gateway.messages)
    mode = path.stat().st_mode & 0o777
    await opened.aclose()

    assert mode == 0o600


async def test_a_lost_link_is_dialled_again() -> None:
    async with listening() as (opened, gateway, address), dialling(address) as (dialer, worker):
        await until(worker, lambda: worker.opened)
        await until(gateway, lambda: opened.links)
        next(iter(opened.links)).close()
        await until(worker, lambda: worker.opened == 2)
        dialer.send([Open(1, "job", 7)])
        await until(gateway, lambda: gateway.messages)

    assert (worker.lost, gateway.lost_links) == (1, 1)


async def test_a_gateway_that_accepts_links_and_drops_them_is_redialled_with_a_growing_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays = list[float]()

    async def slept(seconds: float) -> None:
        delays.append(seconds)

    async with listening() as (_, _, address), dialling(address) as (dialer, worker):
        monkeypatch.setattr(asyncio, "sleep", slept)
        for opened in range(1, 8):
            await until(worker, lambda opened=opened: worker.opened == opened)
            assert dialer._link is not None
            dialer._link.close()
        await until(worker, lambda: worker.opened == 8)
        monkeypatch.undo()
        monkeypatch.setattr(dialer_module, "STEADY_S", 0.0)
        assert dialer._link is not None
        dialer._link.close()
        await until(worker, lambda: worker.opened == 9)

    assert delays[:7] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


async def test_a_worker_without_the_secret_is_told_nothing() -> None:
    async with listening() as (opened, gateway, address), dialling(address, secret=b"x" * 32) as (_, worker):
        async with asyncio.timeout(LIMIT_S):
            while opened.refused < 2:  # noqa: ASYNC110 - a count, without an event
                await asyncio.sleep(0.01)

    assert (worker.opened, gateway.messages) == (0, [])


async def test_a_listener_without_the_secret_is_sent_nothing() -> None:
    async with listening(b"x" * 32) as (opened, gateway, address), dialling(address) as (_, worker):
        async with asyncio.timeout(LIMIT_S):
            while opened.refused < 2:  # noqa: ASYNC110 - a count, without an event
                await asyncio.sleep(0.01)

    assert (worker.opened, gateway.messages) == (0, [])


async def test_another_gateway_at_the_address_is_not_taken_for_the_expected_one() -> None:
    async with listening() as (opened, gateway, address), dialling(address, gateway_id="old") as (_, worker):
        async with asyncio.timeout(LIMIT_S):
            while opened.refused < 2:  # noqa: ASYNC110 - a count, without an event
                await asyncio.sleep(0.01)

    assert (worker.opened, gateway.messages) == (0, [])


async def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_S", 0.02)
    monkeypatch.setattr(connection, "SILENT_S", 0.2)

    async with listening() as (opened, gateway, address), dialling(address) as (_, worker):
        await until(worker, lambda: worker.opened)
        await until(gateway, lambda: opened.links)
        link = next(iter(opened.links))
        monkeypatch.setattr(link, "send", lambda _messages: None)  # its loop hangs
        await until(worker, lambda: worker.opened == 2)


async def raw(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 2**31) + b"x",
        struct.pack(">I", 4) + b"\xff\xff\xff\xff",
        struct.pack(">I", 1) + b"\x90",
        b"",
    ],
    ids=["http", "long", "unreadable", "empty", "nothing"],
)
async def test_a_peer_that_is_not_proven_is_closed_and_harms_nobody(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.3)
    async with listening() as (_, gateway, address), dialling(address) as (dialer, worker):
        await until(worker, lambda: worker.opened)
        reader, writer = await raw(address)
        writer.write(said)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012
                while True:
                    await reader.readexactly(64)
        writer.close()
        dialer.send([Open(1, "job", 7)])
        await until(worker, lambda: worker.messages)

    assert (worker.lost, gateway.lost_links) == (0, 0)


async def open_link(dialer: Dialer, worker: Worker) -> Link:
    await until(worker, lambda: worker.opened)
    assert dialer._link is not None
    return dialer._link


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.thorough)], ids=["100", "10,000"])
async def test_unproven_peers_are_few_and_do_not_keep_a_worker_out(rounds: int) -> None:
    async with listening() as (opened, _, address):
        loop, where = asyncio.get_running_loop(), ("127.0.0.1", int(address.rpartition(":")[2]))
        for number in range(rounds):
            strangers = [socket.socket() for _ in range(100)]  # as many as wait to be accepted
            for stranger in strangers:
                stranger.setblocking(False)
            await asyncio.gather(*[loop.sock_connect(stranger, where) for stranger in strangers])
            await asyncio.sleep(0)
            assert 0 < len(opened._unproven) <= listener.MOST_UNPROVEN
            if number < rounds - 1:
                for stranger in strangers:
                    stranger.close()
        async with dialling(address) as (_, worker):
            await until(worker, lambda: worker.opened)
        assert len(opened._unproven) <= listener.MOST_UNPROVEN
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("has_jobs", [False, True])
async def test_a_gateway_that_stops_is_logged_only_while_the_worker_has_jobs_of_it(
    has_jobs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (opened, _, address), dialling(address) as (dialer, worker):
        await open_link(dialer, worker)
        worker.is_busy = has_jobs
        await opened.aclose()
        await until(worker, lambda: worker.failures)

    assert ["gateway g cannot be reached" in each.getMessage() for each in caplog.records] == [True] * has_jobs


async def test_half_a_frame_and_silence_end_their_own_link_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "PING_S", 0.05)
    monkeypatch.setattr(connection, "SILENT_S", 0.5)
    async with (
        listening() as (opened, gateway, address),
        dialling(address) as (bad, worker),
        dialling(address) as (good, other),
    ):
        link = await open_link(bad, worker)
        await open_link(good, other)
        assert link._transport is not None
        link._transport.write(struct.pack(">I", 100) + b"x" * 50)
        monkeypatch.setattr(link, "send", lambda _messages: None)
        await until(worker, lambda: worker.lost == 1)
        good.send([Open(1, "job", 7)])
        await until(other, lambda: other.messages)

        assert (other.lost, gateway.lost_links) == (0, 1)
        assert [each.getMessage() for each in caplog.records] == ["link lost: w was silent for 0.5 s"]
        assert all(not each._codec._buffer for each in opened.links)


async def test_a_gateway_that_reads_nothing_is_given_up_with_a_bounded_buffer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (opened, _, address), dialling(address) as (bad, worker):
        await open_link(bad, worker)
        await until(worker, lambda: opened.links)
        [deaf] = opened.links
        async with dialling(address) as (good, other):
            await open_link(good, other)
            monkeypatch.setattr(connection, "MOST_UNSENT_BYTES", 2**20)
            assert deaf._transport is not None
            deaf._transport.pause_reading()
            sent = 0
            while not worker.lost:
                bad.send([Tokens(1, 0, 0, tuple(range(70_000, 71_000)))])
                sent += 1
                assert sent < 100_000
                await asyncio.sleep(0)
            good.send([Open(1, "job", 7)])
            await until(other, lambda: other.messages)

            assert other.lost == 0
            assert [each.getMessage() for each in caplog.records] == ["link closed: g does not read"]


@pytest.mark.parametrize("broken", [struct.pack(">I", frames.MAX_FRAME_BYTES + 1), struct.pack(">I", 2) + b"\xc1\xc1"])
async def test_a_broken_frame_ends_its_own_link_alone(broken: bytes) -> None:
    async with listening() as (_, _, address), dialling(address) as (bad, worker), dialling(address) as (good, other):
        await until(worker, lambda: worker.opened)
        await until(other, lambda: other.opened)
        link = bad._link
        assert link is not None
        assert link._transport is not None
        link._transport.write(broken)
        await until(worker, lambda: worker.lost == 1)
        good.send([Open(1, "job", 7)])
        await until(other, lambda: other.messages)

    assert other.lost == 0


def test_frames_arrive_whole_in_any_pieces() -> None:
    codec, messages = Codec(ToGateway), [Open(1, "job", 7), Tokens(1, 0, 0, tuple(range(300)))]
    whole, read = codec.encode(messages) * 3, []
    for at in range(0, len(whole), 7):
        codec.feed(whole[at : at + 7])
        while (found := codec.next()) is not None:
            read.append(found)

    assert read == [messages] * 3


def test_messages_of_many_streams_become_frames_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    codec, messages = Codec(ToWorker, 100), [Closed(number) for number in range(200)]
    codec.feed(codec.encode(messages))
    read: list[object] = []
    while (found := codec.next()) is not None:
        read += found

    assert read == messages
    with pytest.raises(FrameError):
        codec.encode([Opened(1, 1, (tuple(range(200)),))])


@pytest.mark.parametrize(
    ("worker", "gateway", "result"),
    [
        (3, 3, 3),
        (2, 3, 2),
        (3, 2, 2),
        (1, 3, "link version 1 is too old: this gateway needs 2 or later"),
        (3, 1, "link version 1 is too old: this worker needs 2 or later"),
    ],
)
def test_releases_one_apart_speak_the_older_version_and_others_are_refused(
    monkeypatch: pytest.MonkeyPatch, worker: int, gateway: int, result: int | str
) -> None:
    def run(version: int) -> None:
        monkeypatch.setattr(handshake, "VERSION", version)
        monkeypatch.setattr(handshake, "OLDEST_VERSION", version - 1)

    asked = handshake.challenge()
    run(worker)
    said = handshake.hello(SECRET, asked, "w", "q", "g")
    run(gateway)
    told = handshake.answer(SECRET, asked, said, "g")
    run(worker)
    if isinstance(result, int):
        assert handshake.check(SECRET, asked, said, told) == result
    else:
        with pytest.raises(handshake.LinkRefused, match=f"^{result}$"):
            handshake.check(SECRET, asked, said, told)


@pytest.mark.parametrize("field_", ["version", "worker_id", "queue", "gateway_id", "nonce"])
def test_nothing_that_a_dialer_said_can_be_changed_on_the_way(field_: str) -> None:
    asked = handshake.challenge()
    said = handshake.hello(SECRET, asked, "w", "q", "g")
    changed = {"version": 2, "worker_id": "v", "queue": "p", "gateway_id": "h", "nonce": b"n" * 32}[field_]
    with pytest.raises(handshake.LinkRefused):
        handshake.answer(SECRET, asked, msgspec.structs.replace(said, **{field_: changed}), "g")
    with pytest.raises(handshake.LinkRefused):
        handshake.answer(SECRET, handshake.challenge(), said, "g")


async def test_a_worker_that_leaves_during_the_handshake_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss has been seen already: nobody would remove the link again."""
    async with listening() as (opened, gateway, address):
        answer = handshake.answer

        def last(*said: Any) -> Any:
            for link in opened._unproven:
                link.connection_lost(None)
            return answer(*said)

        monkeypatch.setattr(handshake, "answer", last)
        async with dialling(address) as (_, _), asyncio.timeout(LIMIT_S):
            while opened.refused < 2:  # noqa: ASYNC110 - a count, without an event
                await asyncio.sleep(0.01)

        assert opened.links == set()
    assert gateway.lost_links == 0


async def test_a_handshake_that_is_given_up_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.05)
    tasks = asyncio.all_tasks()
    async with listening() as (opened, _, address):
        _, writer = await raw(address)
        async with asyncio.timeout(LIMIT_S):
            while not opened._unproven:  # noqa: ASYNC110 - a set, without an event
                await asyncio.sleep(0.01)
            while opened._unproven:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        writer.close()

    assert asyncio.all_tasks() == tasks


async def test_a_gateway_that_leaves_during_the_handshake_is_not_taken_as_open(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0
    check = handshake.check

    async with listening() as (_, _, address), dialling(address) as (dialer, worker):
        await until(worker, lambda: worker.opened)

        def last(*said: Any) -> Any:
            nonlocal checked
            checked += 1
            return check(*said)

        async def shaken(self: Link) -> Any:
            said = await shake(self)
            if isinstance(said, handshake.Welcome):
                self.connection_lost(None)
            return said

        shake = Link.shake
        monkeypatch.setattr(handshake, "check", last)
        monkeypatch.setattr(Link, "shake", shaken)
        assert dialer._link is not None
        dialer._link.close()
        async with asyncio.timeout(LIMIT_S):
            while checked < 2:  # noqa: ASYNC110 - a count, without an event
                await asyncio.sleep(0.01)

        assert (worker.opened, worker.lost) == (1, 1)
