"""The limits of a connection, against a real server on a real socket."""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from fairlane.gateway import errors
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import connection
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.refusals import TELL_EVERY_S, Malformed
from tests.support.gateway.raw_http import (
    GET,
    IMPATIENT,
    LIMITS,
    PATIENT_S,
    POST,
    SHORT_S,
    SMALL,
    serving,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the gateway runs on: transports differ in what they do with what is still to be written."""
    return "asyncio", {"use_uvloop": True}


async def test_whole_requests_are_served_one_after_the_other() -> None:
    async with serving() as server:
        client = await server.client()
        for _ in range(3):
            client.send(POST + b"content-length: 5\r\n\r\nhello")
            assert await client.answer() == (200, b"5")
            client.send(GET)
            assert await client.answer() == (200, b"0")


async def test_the_next_request_has_its_own_time_for_its_body() -> None:
    async with serving(replace(IMPATIENT, linger_s=SHORT_S / 3)) as server:
        client = await server.client()
        client.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n" + POST + b"content-length: 5\r\n\r\nhe")
        server.app.go.set()
        assert await client.answer() == (200, b"0")
        other = await server.client()
        assert await other.rest() == b""  # so much time has passed that silence was cut
        client.send(b"llo")

        assert await client.answer() == (200, b"5")


async def test_trailers_are_no_headers() -> None:
    async with serving() as server:
        client = await server.client()
        head = POST.replace(b"/", b"/headers", 1) + b"transfer-encoding: chunked\r\n\r\n"
        client.send(head + b"5\r\nhello\r\n0\r\nauthorization: Bearer x\r\n\r\n")

        assert await client.answer() == (200, b"host transfer-encoding")


@pytest.mark.parametrize("waiting", [3, 4, 1000], ids=["as many as may", "one too many", "far too many"])
async def test_of_requests_that_pile_up_those_within_the_bound_are_answered_then_it_is_closed(waiting: int) -> None:
    async with serving(replace(LIMITS, max_pipelined=3)) as server:
        client = await server.client()
        client.send(GET * waiting + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))

        assert (await client.rest()).count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize("together", [True, False], ids=["at once", "body later"])
async def test_a_wish_for_http2_is_ignored_and_its_body_is_read(together: bool) -> None:
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    async with serving() as server:
        client = await server.client()
        client.send(POST + wish + b"content-length: 5\r\n\r\n" + (b"hello" if together else b""))
        if not together:
            await asyncio.sleep(SHORT_S)  # for the head to arrive alone
            client.send(b"hello")
        assert await client.answer() == (200, b"5")
        client.send(GET)
        assert await client.answer() == (200, b"0")


async def test_wishes_of_several_requests_in_one_go_are_ignored() -> None:
    wish = POST + b"connection: Upgrade\r\nupgrade: h2c\r\ncontent-length: "
    async with serving() as server:
        client = await server.client()
        client.send(wish + b"5\r\n\r\nhello" + wish + b"3\r\n\r\nyou" + GET)

        assert [await client.answer() for _ in range(3)] == [(200, b"5"), (200, b"3"), (200, b"0")]


async def test_a_wish_for_a_web_socket_is_ignored() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n")

        assert (await client.rest()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx-long: " + b"a" * 2000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nx-endless: " + b"a" * 5_000_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000,
    ],
    ids=["long url", "long header", "endless header", "too many headers", "endless headers"],
)
async def test_headers_over_the_limit_are_431(request_bytes: bytes) -> None:
    async with serving() as server:
        status, error = await server.ask(request_bytes)

    assert (status, error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(
    ("request_bytes", "param"),
    [
        (b"nonsense\r\n\r\n", None),
        (b"\x16\x03\x01\x02\x00\x01\x00", None),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", None),
        (b"CONNECT a:443 HTTP/1.1\r\nhost: x\r\n\r\n", None),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "host"),
        (b"GET / HTTP/1.1\r\n\r\n", "host"),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "transfer-encoding"),
        (POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", "content-length"),
        (POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", "transfer-encoding"),
        (GET.replace(b"1.1", b"2.0"), None),
        (GET.replace(b"1.1", b"0.9"), None),
        (POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc", None),
        (POST + b"content-length: -3\r\n\r\n", None),
        (POST + b"transfer-encoding: chunked\r\n\r\nnot a size\r\n", None),
    ],
    ids=[
        "nonsense",
        "tls",
        "no colon",
        "connect",
        "two hosts",
        "no host",
        "compressed on its way",
        "both lengths",
        "chunks of HTTP/1.0",
        "HTTP/2.0 by its name",
        "HTTP/0.9 by its name",
        "two lengths",
        "negative",
        "bad chunk",
    ],
)
async def test_what_is_no_http_is_400_with_our_error(request_bytes: bytes, param: str | None) -> None:
    async with serving() as server:
        status, error = await server.ask(request_bytes)

    assert (status, error["code"], error["type"]) == (400, "invalid_request_error", "invalid_request_error")
    assert error["param"] in (param, None)


async def test_malformed_requests_are_counted_and_write_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    malformed = Malformed()
    async with serving(malformed=malformed) as server:
        for _ in range(20):
            await server.ask(b"nonsense\r\n\r\n")
            await server.ask(GET.replace(b"host: x", b"a: b"))

    assert malformed.count == 40
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == ["1 malformed requests, the last from 127.0.0.1: invalid_request_error"]


async def test_what_was_not_told_is_told_with_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    malformed = Malformed(clock=lambda: now)
    for _ in range(3):
        malformed.note("10.0.0.1", errors.invalid(None, "no"))
    now = TELL_EVERY_S
    malformed.note("10.0.0.2", errors.invalid(None, "no"))

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "1 malformed requests, the last from 10.0.0.1",
        "3 malformed requests, the last from 10.0.0.2",
    ]


async def test_an_application_that_waits_for_a_broken_body_hears_of_it() -> None:
    async with serving() as server:
        await server.ask(POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhelloX")
        async with asyncio.timeout(PATIENT_S):
            await server.app.lost.wait()


async def test_headers_that_do_not_come_in_time_are_408() -> None:
    async with serving(IMPATIENT) as server:
        status, error = await server.ask(b"GET / HTTP/1.1\r\nhost:")

    assert (status, error["code"]) == (408, "request_timeout")


async def test_a_byte_now_and_then_does_not_extend_the_deadline() -> None:
    async with serving(IMPATIENT) as server:
        client = await server.client()

        async def trickle() -> None:
            for byte in GET[:-1] * 100:
                client.send(bytes([byte]))
                await asyncio.sleep(SHORT_S / 10)  # the client's slowness is what is tested

        slow = asyncio.create_task(trickle())
        status, _ = await client.refusal()
        slow.cancel()

    assert status == 408


@pytest.mark.parametrize("first", [b"", GET], ids=["at once", "after a request"])
async def test_silence_is_cut_without_a_word(first: bytes) -> None:
    async with serving(IMPATIENT, idle_s=0) as server:
        client = await server.client()
        client.send(first)

        assert (await client.rest()).count(b"HTTP/1.1") == (1 if first else 0)


async def test_empty_lines_do_not_keep_a_connection_open() -> None:
    async with serving(IMPATIENT) as server:
        client = await server.client()
        client.send(GET)
        await client.answer()
        client.send(b"\r\n")

        status, _ = await client.refusal()

    assert status == 408


async def test_the_deadline_of_headers_does_not_touch_a_running_answer() -> None:
    async with serving(IMPATIENT) as server:
        client = await server.client()
        client.send(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.until(b"one\r\n")
        client.send(b"GET / HT")  # the next request begins before this one is answered
        other = await server.client()
        assert await other.rest() == b""  # so much time has passed that silence was cut
        server.app.go.set()

        assert (await client.until(b"0\r\n\r\n")).startswith(b"3\r\ntwo")
        assert (await client.refusal())[0] == 408


async def test_nothing_is_said_in_the_place_of_another_answer() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n")

        assert await client.rest() == b""
        server.app.go.set()


async def test_nothing_is_said_into_a_running_answer() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.until(b"one\r\n")
        client.send(b"nonsense\r\n\r\n")

        assert await client.rest() == b""
        server.app.go.set()


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"], ids=["keep-alive", "close"])
async def test_a_body_over_the_limit_is_refused_by_its_length_alone(close: bytes) -> None:
    async with serving() as server:
        client = await server.client()
        client.send(POST + close + b"content-length: 100000000\r\n\r\n")

        assert (await client.answer())[0] == 413


async def test_a_client_that_waits_for_leave_is_refused_before_it_sends() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(POST + b"content-length: 100000000\r\nexpect: 100-continue\r\n\r\n")

        assert (await client.answer())[0] == 413


async def test_a_body_without_a_length_is_refused_once_it_is_over() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(POST + b"transfer-encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"a" * 0x4000 + b"\r\n") * 10)

        assert (await client.answer())[0] == 413


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"], ids=["keep-alive", "close"])
async def test_a_client_that_sends_it_all_first_can_still_read_the_refusal(close: bytes) -> None:
    async with serving() as server:
        client = await server.client()
        client.send(POST + close + b"content-length: 20000000\r\n\r\n")
        client.send(b"a" * 20_000_000)
        async with asyncio.timeout(PATIENT_S):
            await client.writer.drain()

        assert (await client.answer())[0] == 413


async def test_after_a_refused_body_the_connection_serves_on() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(POST + b"content-length: 200000\r\n\r\n" + b"a" * 200_000)
        refused = await client.answer()
        client.send(GET)

        assert refused[0] == 413
        assert await client.answer() == (200, b"0")


@pytest.mark.parametrize(
    "framing", [b"content-length: 100000000", b"transfer-encoding: chunked\r\nx-many: " + b"a" * 2_000]
)
async def test_what_is_refused_comes_off_the_wire_a_piece_at_a_time(
    framing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DISCARD_REST_S", 3_600.0)
    async with serving() as server:
        client = await server.client()
        client.send(POST + framing + b"\r\n\r\n" + b"a" * 50_000_000)
        status, _ = await client.answer()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), SHORT_S)
        assert status in (413, 431)


async def test_nobody_may_go_on_sending_for_ever() -> None:
    async with serving(replace(LIMITS, linger_s=SHORT_S)) as server:
        client = await server.client()
        client.send(POST + b"content-length: 100000000\r\n\r\n")

        assert (await client.rest()).startswith(b"HTTP/1.1 413")


async def test_endless_framing_around_a_small_body_is_refused() -> None:
    async with serving() as server:
        status, error = await server.ask(POST + b"transfer-encoding: chunked\r\n\r\n1;ext=" + b"x" * 50_000)

    assert (status, error["code"]) == (431, "headers_too_large")


async def test_endless_trailers_are_refused() -> None:
    async with serving() as server:
        status, _ = await server.ask(POST + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 50_000)

    assert status == 431


async def test_a_body_in_chunks_of_a_byte_is_read() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n")

        assert await client.answer() == (200, b"5000")


async def test_a_slow_body_is_408() -> None:
    async with serving(body_timeout_s=SHORT_S) as server:
        client = await server.client()
        client.send(POST + b"content-length: 10\r\n\r\nabc")

        head = await client.until(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 408")
    assert b"x-should-retry: false" in head


def receiving(*messages: Message) -> Receive:
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    return receive


async def test_read_body_joins_its_parts() -> None:
    parts = receiving(
        {"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.request", "body": b"c"}
    )

    assert await read_body(parts, [], max_bytes=3, timeout_s=PATIENT_S) == b"abc"


@pytest.mark.parametrize(("part", "count"), [(b"a" * 65_536, 128), (b"ab", 600_000), (b"a" * 100_000, 10)])
async def test_read_body_copies_a_large_body_in_a_thread(
    part: bytes, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[int] = []

    async def to_thread(join: Callable[[list[bytes]], bytes], parts: list[bytes]) -> bytes:
        joined.extend(map(len, parts))
        return join(parts)

    monkeypatch.setattr("fairlane.gateway.http.body.asyncio.to_thread", to_thread)
    messages = [{"type": "http.request", "body": part, "more_body": place + 1 < count} for place in range(count)]

    assert await read_body(receiving(*messages), [], max_bytes=2**23, timeout_s=PATIENT_S) == part * count
    assert max(joined, default=0) <= max(65_536, len(part))
    assert len(joined) <= 1 + 2 * sum(joined) // 65_536
    assert sum(joined) == (len(part) * count if len(part) * count > 2**20 else 0)


async def test_read_body_keeps_the_order_of_small_and_large_parts() -> None:
    sizes = [1, 70_000, 3, 60_000, 5_000, 65_536, 0, 2]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    messages = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    last = {"type": "http.request", "body": b"", "more_body": False}

    assert await read_body(receiving(*messages, last), [], max_bytes=2**20, timeout_s=PATIENT_S) == b"".join(bodies)


async def test_read_body_stops_as_soon_as_it_is_over() -> None:
    endless = receiving(*[{"type": "http.request", "body": b"ab", "more_body": True}] * 2)

    with pytest.raises(ApiError) as refused:
        await read_body(endless, [], max_bytes=3, timeout_s=PATIENT_S)

    assert refused.value.status == 413


async def test_read_body_believes_no_absurd_length() -> None:
    with pytest.raises(ApiError) as refused:
        await read_body(receiving(), [(b"content-length", b"9" * 5000)], max_bytes=3, timeout_s=PATIENT_S)

    assert refused.value.status == 413


async def test_read_body_tells_when_the_client_has_gone() -> None:
    with pytest.raises(ClientDisconnect):
        await read_body(receiving({"type": "http.disconnect"}), [], max_bytes=3, timeout_s=PATIENT_S)


@pytest.mark.parametrize(
    ("length", "header", "pipelined"),
    [(1_000_000, b"", 1), (1_000_000, b"", 3), (50_000, b"", 1), (50_000, b"connection: close\r\n", 1)],
    ids=["much", "much, and more to come", "little, then idle", "little, then closed"],
)
async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(length: int, header: bytes, pipelined: int) -> None:
    limits = replace(LIMITS, write_timeout_s=SHORT_S)
    async with serving(limits, idle_s=0) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, server.address)
            asked = b"GET /long/%d HTTP/1.1\r\nhost: x\r\n%b\r\n" % (length, header)
            await loop.sock_sendall(client, asked * pipelined)
            await _until(lambda: len(server.connections) == 1)

            await _until(lambda: not server.connections)


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it() -> None:
    length, taken = 300_000, 0
    async with serving(replace(LIMITS, write_timeout_s=SHORT_S)) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, server.address)
            await loop.sock_sendall(client, b"GET /long/%d HTTP/1.1\r\nhost: x\r\n\r\n" % length)
            began_s = loop.time()
            while taken < length:
                piece = await loop.sock_recv(client, 30_000)
                assert piece
                taken += len(piece)
                await asyncio.sleep(SHORT_S / 5)  # the client's slowness is what is tested

            assert loop.time() - began_s > 2 * SHORT_S


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not holds():  # noqa: ASYNC110 - uvicorn's own set, which tells nobody
            await asyncio.sleep(0.005)
