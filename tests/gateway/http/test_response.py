"""What an application sends, as it goes over the wire: in one write or many, and what must not be sent at all."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.response import Answer

OK = b"HTTP/1.1 200 OK\r\n"


class Wire:
    """What one answer writes, and when it is over. It stands for all that uvicorn's cycle is asked for."""

    def __init__(self, method: str = "GET", *, keep_alive: bool = True, http_version: str = "1.1") -> None:
        self.written: list[bytes] = []
        self.is_over = self.is_closed = False
        stand_in = SimpleNamespace(
            flow=SimpleNamespace(write_paused=False),
            transport=SimpleNamespace(write=self.written.append, close=self._close),
            scope={"method": method, "http_version": http_version},
            default_headers=[(b"date", b"now")],
            message_event=asyncio.Event(),
            on_response=self._end,
            disconnected=False,
            response_started=False,
            response_complete=False,
            waiting_for_100_continue=True,
            keep_alive=keep_alive,
            chunked_encoding=None,
            expected_content_length=0,
            body=bytearray(),
        )
        self.cycle = cast(Any, stand_in)
        self._answer = Answer(self.cycle, BodyHold(BodyBudget(most_bytes=1, most_tenant_bytes=1)))

    async def start(self, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        await self._answer.send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def body(self, body: bytes = b"", *, more: bool = False) -> None:
        await self._answer.send({"type": "http.response.body", "body": body, "more_body": more})

    def push(self, body: bytes) -> bool:
        return self._answer.push(body)

    def _close(self) -> None:
        self.is_closed = True

    def _end(self) -> None:
        self.is_over = True


pytestmark = pytest.mark.anyio


async def test_a_whole_answer_is_one_write() -> None:
    wire = Wire()

    await wire.start((b"content-length", b"2"), (b"x-name", b"value"))
    assert wire.written == []
    await wire.body(b"hi")

    assert wire.written == [OK + b"date: now\r\ncontent-length: 2\r\nx-name: value\r\n\r\nhi"]
    assert (wire.is_over, wire.is_closed, wire.cycle.response_complete) == (True, False, True)


async def test_a_stream_goes_out_part_by_part_in_chunks() -> None:
    wire = Wire(keep_alive=False)

    await wire.start()
    await wire.body(b"one", more=True)
    await wire.body(b"", more=True)
    await wire.body(b"two" * 4, more=True)
    assert not wire.is_over
    await wire.body()

    head, *rest = wire.written
    assert head == OK + b"date: now\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    assert b"".join(rest) == b"c\r\ntwotwotwotwo\r\n0\r\n\r\n"
    assert (wire.is_over, wire.is_closed) == (True, True)


async def test_a_stream_to_an_older_client_ends_with_its_connection() -> None:
    wire = Wire(keep_alive=False, http_version="1.0")

    await wire.start()
    await wire.body(b"one", more=True)
    assert wire.push(b"two")
    assert not wire.is_closed
    await wire.body()

    assert b"".join(wire.written) == OK + b"date: now\r\nconnection: close\r\n\r\nonetwo"
    assert (wire.is_over, wire.is_closed) == (True, True)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_some_answers_have_no_body(method: str, status: int) -> None:
    wire = Wire(method)

    await wire.start(*([(b"content-length", b"5")] if method == "HEAD" else []), status=status)
    await wire.body(b"12345" if method == "HEAD" else b"")

    (written,) = wire.written
    assert written.endswith(b"\r\n\r\n")
    assert b"transfer-encoding" not in written
    assert wire.is_over


async def test_an_answer_may_close_its_connection() -> None:
    wire = Wire()

    await wire.start((b"Connection", b"x, Close"), (b"content-length", b"0"))
    await wire.body()

    assert wire.written[0].lower().count(b"connection:") == 1
    assert wire.is_closed


@pytest.mark.parametrize("header", [(b"na me", b"value"), (b"name", b"val\r\nue: 1"), (b"name", b"\x00")])
async def test_what_is_no_header_is_not_sent(header: tuple[bytes, bytes]) -> None:
    wire = Wire()

    with pytest.raises(RuntimeError):
        await wire.start(header)

    assert (wire.written, wire.cycle.response_started) == ([], False)  # another answer may be given


@pytest.mark.parametrize("body", [b"a", b"abc"])
async def test_a_body_is_as_long_as_it_says(body: bytes) -> None:
    wire = Wire()
    await wire.start((b"content-length", b"2"))

    with pytest.raises(RuntimeError):
        await wire.body(body)

    assert wire.written == []


async def test_messages_out_of_turn_are_refused() -> None:
    wire = Wire()
    with pytest.raises(RuntimeError):
        await wire.body(b"")
    await wire.start((b"content-length", b"0"))
    with pytest.raises(RuntimeError):
        await wire.start()
    await wire.body()
    with pytest.raises(RuntimeError):
        await wire.body()


async def test_nothing_is_written_to_a_client_that_has_left() -> None:
    wire = Wire()
    wire.cycle.disconnected = True

    await wire.start()
    await wire.body(b"hi")

    assert wire.written == []


async def test_a_part_of_a_stream_is_pushed_only_where_nothing_has_to_be_waited_for() -> None:
    wire = Wire()
    assert not wire.push(b"one")
    await wire.start()
    assert not wire.push(b"one")  # the head goes with the first part
    await wire.body(b"one", more=True)
    assert wire.push(b"two")
    wire.cycle.flow.write_paused = True
    assert not wire.push(b"three")
    wire.cycle.flow.write_paused, wire.cycle.disconnected = False, True
    assert wire.push(b"four")  # to nobody

    assert b"".join(wire.written).endswith(b"3\r\none\r\n3\r\ntwo\r\n")


async def test_a_body_of_known_length_is_not_pushed() -> None:
    wire = Wire()
    await wire.start((b"content-length", b"2"))

    assert not wire.push(b"hi")
    await wire.body(b"hi")
    assert not wire.push(b"hi")
