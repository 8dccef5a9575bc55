"""What peers stand before: an OpenAI server that answers at once, as our own gateway stands before the instant engine.

python -m benchmarks.gateway.mock PORT

It says as many tokens as `max_tokens` asks for, a frame for each where the answer streams.
"""

import asyncio
import json
import sys
from typing import Any

import uvloop

from benchmarks.gateway.instant import MODEL, WORDS

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Mock(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._read = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # what TCP gives
        """A peer has connected."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A request, or a part of it."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
        if found and len(body) >= length and self._transport is not None:
            self._read = b""
            self._transport.write(answer(json.loads(body or b"{}")))


def answer(asked: dict[str, Any]) -> bytes:
    """The whole answer as it goes over the wire."""
    tokens = asked.get("max_tokens") or 1
    words = [WORDS[number % len(WORDS)] for number in range(tokens)]
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
    known = {"id": "chatcmpl-mock", "created": 1, "model": MODEL}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        body = _json({**known, "object": "chat.completion", "choices": [choice], "usage": usage})
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    frames = [_frame(known, {"role": "assistant", "content": ""}, None)]
    frames += [_frame(known, {"content": word}, None) for word in words]
    frames += [_frame(known, {}, "length"), b"data: [DONE]\n\n"]
    return b"".join([STREAM_HEAD, *(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames), b"0\r\n\r\n"])


def _frame(known: dict[str, Any], delta: dict[str, Any], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + _json({**known, "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


async def serve(port: int) -> None:
    """Serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
