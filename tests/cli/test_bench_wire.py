"""What `fairlane bench` makes of answers that are cut, split, late or no answers at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from fairlane.cli.bench import run as bench_run
from fairlane.cli.bench.connection import Endpoint
from fairlane.cli.bench.load import BenchRequest, PromptMaker, TenantKey
from fairlane.cli.bench.results import Measured
from fairlane.cli.bench.run import BenchRun
from fairlane.scheduler.protocol.lanes import LaneName

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
EMPTY = b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
WHOLE = TOKEN + b"\n: queued position=1\n\n" + TOKEN + TOKEN + EMPTY + USAGE + DONE


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow a failed request with the next one at once."""
    monkeypatch.setattr(bench_run, "PAUSE_S", 0.001)


def chunked(*parts: bytes, ends: bool = True) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + (b"0\r\n\r\n" if ends else b"")


@asynccontextmanager
async def server(pieces: Sequence[bytes], *, closes: bool = False) -> AsyncIterator[str]:
    """Answers every request with these pieces, each sent by itself."""
    asked: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.add(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if closes:
                break
        writer.close()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    listening = await asyncio.start_server(quiet, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for writer in asked:
            writer.close()
        await listening.wait_closed()


async def one(url: str, requests: int = 1, timeout_s: float = 20.0) -> list[Measured]:
    """What a run measured of requests that follow each other."""
    run = BenchRun(
        Endpoint(url, "/v1/completions"), [TenantKey("a", "k")], lambda *_: {}, PromptMaker("0", range(9)), timeout_s
    )
    asked = (
        BenchRequest(number=number, at_s=0.0, lane=LaneName.LATENCY, key=0, prompt_tokens=3, output_tokens=3)
        for number in range(requests)
    )
    await run.closed(asked, 1, None)
    return run.tally.done


@pytest.mark.parametrize("cut", [1, 7, 4096])
async def test_a_stream_is_read_however_it_is_cut(cut: int) -> None:
    wire = HEAD + chunked(WHOLE[:50], WHOLE[50:51], WHOLE[51:])

    async with server([wire[place : place + cut] for place in range(0, len(wire), cut)]) as url:
        first, second = await one(url, 2)

    for found in (first, second):
        assert (found.code, found.prompt_tokens, found.cached_tokens, found.output_tokens) == (None, 7, 2, 3)
        assert found.first_s is not None
        assert found.last_s is not None
        assert 0.0 < found.first_s <= found.last_s <= found.end_s


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([HEAD + chunked(TOKEN, TOKEN)], "incomplete"),
        ([HEAD + chunked(TOKEN, ends=False)], "connection_lost"),
        ([HEAD + chunked(TOKEN, b'data: {"error":{"message":"","code":"unavailable"}}\n\n')], "unavailable"),
        ([HEAD + chunked(b'data: {"error": ...}\n\n')], "error"),
        ([b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\noops"], "http_500"),
        (
            [b'HTTP/1.1 429 No\r\nretry-after-ms: 1\r\ncontent-length: 31\r\n\r\n{"error":{"code":"overloaded"}}'],
            "overloaded",
        ),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "unreadable"),
        ([], "connection_lost"),
    ],
)
async def test_an_answer_that_is_none_has_a_code(pieces: list[bytes], code: str) -> None:
    async with server(pieces, closes=True) as url:
        (found,) = await one(url)

    assert found.code == code


async def test_a_stream_that_stands_still_is_given_up() -> None:
    async with server([HEAD + chunked(TOKEN, ends=False)]) as url:
        (found,) = await one(url, timeout_s=1.0)

    assert (found.code, found.output_tokens) == ("timeout", 1)


async def test_a_connection_that_was_closed_meanwhile_is_opened_anew() -> None:
    async with server([HEAD + chunked(WHOLE)], closes=True) as url:
        found = await one(url, 3)

    assert [each.code for each in found] == [None, None, None]


async def test_nobody_there_is_told() -> None:
    (found,) = await one("http://127.0.0.1:9")

    assert found.code == "unreachable"


async def test_more_than_may_be_open_is_not_sent() -> None:
    async with server([HEAD + chunked(TOKEN, ends=False)]) as url:
        run = BenchRun(Endpoint(url, "/"), [TenantKey("a", "k")], lambda *_: {}, PromptMaker("0", range(9)), 0.3)
        asked = [
            BenchRequest(number=n, at_s=0.0, lane=LaneName.LATENCY, key=0, prompt_tokens=1, output_tokens=1)
            for n in range(5)
        ]
        await run.opened(iter(asked), 2)

    assert (run.tally.sent, run.tally.unsent) == (2, 3)


def test_a_url_says_port_and_encryption() -> None:
    plain, tls = Endpoint("http://h/base/", "/v1/x"), Endpoint("https://user:pw@h", "/v1/x")

    assert (plain.host, plain.port, plain.is_tls) == ("h", 80, False)
    assert (tls.port, tls.is_tls) == (443, True)
    assert plain.request({}, "k", "latency").startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: h\r\n")
    assert b"pw" not in tls.request({}, "k", "latency")
