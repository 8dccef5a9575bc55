"""Parsing in turns: reads of many lines, bodies that nobody wants, and what one holder may have waiting."""

import asyncio
from dataclasses import replace

import pytest

from fairlane.gateway.http.protocol import LimitedHttpProtocol
from fairlane.gateway.http.turns import MOST_EVENTS, MOST_LINES, PIECE_BYTES, Turns, has_many_lines
from tests.support.gateway.raw_http import GET, LIMITS, PATIENT_S, POST, Client, serving

pytestmark = pytest.mark.anyio

CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
ONE_BYTE = b"1\r\na\r\n"
UNREAD = b"POST /long/1 HTTP/1.1\r\nhost: x\r\n" + CHUNKED
"""Answered without its body, as a request without a key is."""
MOST_OF_A_TURN = MOST_EVENTS + PIECE_BYTES // len(ONE_BYTE) + 1


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class Events:
    """Callbacks of the parser, and the most of them between two turns of the event loop."""

    def __init__(self) -> None:
        self.count = self.most_in_a_turn = 0

    async def watch(self) -> None:
        while True:
            before = self.count
            await asyncio.sleep(0)
            self.most_in_a_turn = max(self.most_in_a_turn, self.count - before)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    found = Events()
    heard = LimitedHttpProtocol.on_body

    def on_body(protocol: LimitedHttpProtocol, body: bytes) -> None:
        found.count += 1
        heard(protocol, body)

    monkeypatch.setattr(LimitedHttpProtocol, "on_body", on_body)
    return found


async def sent(client: Client, data: bytes) -> None:
    async with asyncio.timeout(PATIENT_S):
        client.send(data)
        await client.writer.drain()


async def test_chunks_of_a_byte_yield_to_other_connections(events: Events) -> None:
    async with serving() as server:
        watching = asyncio.create_task(events.watch())
        clients = [await server.client() for _ in range(3)]
        for client in clients:
            client.send(POST + CHUNKED + ONE_BYTE * 20_000 + b"0\r\n\r\n")
        answers = [await client.answer() for client in clients]
        watching.cancel()

    assert answers == [(200, b"20000")] * 3
    assert events.count == 60_000
    # A read of at most MOST_LINES, two of which are a chunk, is parsed at once: one of each other connection may be
    # parsed in the same turn.
    assert events.most_in_a_turn <= MOST_OF_A_TURN + 2 * (MOST_LINES // 2)


async def test_a_body_that_was_answered_is_parsed_for_a_bounded_number_of_chunks(events: Events) -> None:
    async with serving() as server:
        client = await server.client()
        await sent(client, UNREAD + ONE_BYTE * 300_000)

        assert (await client.rest()).startswith(b"HTTP/1.1 200")
    assert events.count <= LIMITS.linger_chunks + 2 * MOST_OF_A_TURN  # one before the answer, one that goes too far


async def test_a_small_body_that_was_answered_leaves_the_connection_usable() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(UNREAD + ONE_BYTE * (LIMITS.linger_chunks - 24) + b"0\r\n\r\n" + GET)

        assert await client.answer() == (200, b"a")
        assert await client.answer() == (200, b"0")


async def test_what_is_discarded_after_a_refusal_is_bounded() -> None:
    async with serving(replace(LIMITS, discard_bytes=1_000_000)) as server:
        client = await server.client()
        with pytest.raises(ConnectionError):
            await sent(client, POST + b"content-length: 100000000\r\n\r\n" + b"a" * 90_000_000)


async def test_trailers_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    complete = LimitedHttpProtocol.on_message_complete

    def on_message_complete(protocol: LimitedHttpProtocol) -> None:
        kept.extend([name for name, _ in protocol.headers])
        complete(protocol)

    monkeypatch.setattr(LimitedHttpProtocol, "on_message_complete", on_message_complete)
    async with serving() as server:
        client = await server.client()
        client.send(POST + CHUNKED + b"0\r\n" + b"a: b\r\n" * 300 + b"\r\n")
        assert await client.answer() == (200, b"0")

    assert kept == [b"host", b"transfer-encoding"]


class Parser:
    """A connection that notes in which order pieces are parsed."""

    def __init__(self, name: str, order: list[str], events: int = MOST_EVENTS) -> None:
        self.name, self._order, self._events = name, order, events
        self.is_done = asyncio.Event()

    def parse(self, piece: bytes) -> int:
        self._order.append(self.name)
        return self._events

    def parsed(self) -> None:
        self.is_done.set()


async def test_holders_take_turns_whatever_number_of_connections_they_have() -> None:
    turns, order = Turns(), list[str]()
    many = [Parser(f"many-{number}", order) for number in range(5)]
    alone = Parser("alone", order)
    for each in many:
        assert turns.wait(each, "many", b"a" * PIECE_BYTES * 3)
    assert turns.wait(alone, "one", b"a" * PIECE_BYTES * 3)
    async with asyncio.timeout(PATIENT_S):
        await asyncio.gather(*(each.is_done.wait() for each in (*many, alone)))

    assert order[:7] == ["many-0", "alone", "many-1", "alone", "many-2", "alone", "many-3"]
    assert turns.waiting_bytes == 0


async def test_what_waits_is_bounded_for_each_holder_and_in_all() -> None:
    turns, order = Turns(most_bytes=30_000, most_holder_bytes=20_000), list[str]()
    first, second, other = (Parser(name, order) for name in "abc")

    assert turns.wait(first, "one", b"a" * 15_000)
    assert not turns.wait(second, "one", b"a" * 6_000)
    assert not turns.wait(first, "one", b"a" * 6_000)
    assert not turns.wait(other, "two", b"a" * 16_000)
    assert turns.wait(other, "two", b"a" * 15_000)
    turns.leave(first)
    assert turns.wait(second, "one", b"a" * 6_000)
    assert turns.waiting_bytes == 21_000
    for each in (second, other):
        turns.leave(each)
    assert (turns.waiting_bytes, order) == (0, [])


async def test_a_connection_with_too_much_waiting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "wait", lambda *_: False)
    async with serving() as server:
        status, error = await server.ask(POST + CHUNKED + ONE_BYTE * 1_000)

    assert (status, error["code"]) == (429, "overloaded")


async def test_reads_of_few_lines_are_parsed_at_once() -> None:
    assert not has_many_lines(b"a" * 262_144)
    assert not has_many_lines(GET * 16)
    assert has_many_lines(ONE_BYTE * 200)
