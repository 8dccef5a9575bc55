"""Floods of what costs the event loop by its number and not by its bytes: chunks of a byte, and millions of values."""

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.system.harness import MODEL
from tests.system.attacks.bodies import PATH, Answers, Target, filled
from tests.system.attacks.target import bearer

ONE_BYTE = b"1\r\na\r\n"
PIECE = ONE_BYTE * 20_000
OF_A_SMALL_ROUTE = 190_000
"""Bytes that a route takes which has one prompt, of a model with a context of 8,192 tokens."""
LINE_BYTES = 2**20 - 16
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


async def _pour(target: Target, head: bytes, until: float, answers: Answers) -> None:
    """Send a body in chunks of a byte that never ends, and go on after the answer; again once the server closes."""
    while time.monotonic() < until:
        status = b""
        try:
            reader, writer = await asyncio.open_connection(*target.address)
        except OSError:
            answers["reset"] += 1
            continue
        try:
            writer.write(head)
            async with asyncio.timeout(until - time.monotonic()):
                answering = asyncio.create_task(reader.read(12))
                while True:
                    writer.write(PIECE)
                    await writer.drain()
                    if answering.done():
                        status = answering.result()
        except (OSError, TimeoutError):
            pass
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError, OSError):
                status = status or await answering
            writer.transport.abort()
        answers[status[9:12].decode() or "held"] += 1


async def _chunks(target: Target, connections: int, seconds: float, *, has_key: bool) -> Answers:
    answers: Answers = Counter()
    given = f"authorization: Bearer {target.key}\r\n" if has_key else ""
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{given}transfer-encoding: chunked\r\n\r\n".encode()
    until = time.monotonic() + seconds
    await asyncio.gather(*(_pour(target, head, until, answers) for _ in range(connections)))
    return answers


@dataclass(frozen=True, slots=True)
class _Values:
    """A body of very many values."""

    made: Callable[[], bytes]
    path: str = PATH
    headers: Mapping[str, str] = field(default_factory=dict)

    async def attack(self, target: Target, seconds: float) -> Answers:
        answers: Answers = Counter()
        body = self.made()

        async def send(client: httpx.AsyncClient) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                once = {name: f"{value}-{uuid.uuid4()}" for name, value in self.headers.items()}
                try:
                    answer = await client.post(self.path, content=body, headers=bearer(target.key) | once)
                    answers[str(answer.status_code)] += 1
                except httpx.TransportError:
                    answers["reset"] += 1

        async with httpx.AsyncClient(base_url=target.url, timeout=60.0) as client:
            await asyncio.gather(*(send(client) for _ in range(8)))
        return answers


def _call() -> bytes:
    arguments = filled(b'{"a": [', b"[],", b"[]]}", OF_A_SMALL_ROUTE - 1_000).decode()
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 1}).encode()


async def _batches(target: Target, seconds: float) -> Answers:
    """Files of eight lines of a megabyte, and a batch of each."""
    line = filled(b'{"custom_id": [', b"[],", b"[]]}", LINE_BYTES) + b"\n"
    answers: Answers = Counter()

    async def send(client: httpx.AsyncClient) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sent = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", line * 8)})
            answers[str(sent.status_code)] += 1
            if sent.is_success:
                asked = {"input_file_id": sent.json()["id"], "endpoint": PATH, "completion_window": "24h"}
                answers[str((await client.post("/v1/batches", json=asked)).status_code)] += 1

    async with httpx.AsyncClient(base_url=target.url, timeout=60.0, headers=bearer(target.key)) as client:
        with suppress(httpx.TransportError):
            await asyncio.gather(*(send(client) for _ in range(8)))
    return answers


@dataclass(frozen=True, slots=True)
class Loop:
    """One flood."""

    attacked: str
    attack: Callable[[Target, float], Coroutine[Any, Any, Answers]]


_PROMPT = f'{{"model": "{MODEL}", "max_tokens": 1, "prompt": "a", '.encode()
_ONCE = _Values(lambda: filled(b'{"stream": [', b"[],", b"[]]}"), headers={"idempotency-key": "a"})
_PREVIOUS = _Values(lambda: filled(b'{"previous_response_id": [', b"[],", b"[]]}", OF_A_SMALL_ROUTE), RESPONSES)
_SCHEMA = _Values(lambda: filled(_PROMPT + b'"guided_json": "[', b"[],", b'[]]"}'))
_LONG = _Values(lambda: filled(_PROMPT + b'"no_such_field": "', b"a\\n", b'"}'))
_CALLS = _Values(_call, CHAT)

LOOPS: Mapping[str, Loop] = {
    "small-chunks": Loop(
        "bodies in chunks of a byte on 8 connections, without a key",
        lambda target, seconds: _chunks(target, 8, seconds, has_key=False),
    ),
    "small-chunks-with-a-key": Loop(
        "the same on 2 connections, with a key", lambda target, seconds: _chunks(target, 2, seconds, has_key=True)
    ),
    "lists-as-stream": Loop("8 MB of empty lists as `stream`, with an `Idempotency-Key`", _ONCE.attack),
    "lists-as-previous": Loop("190 KB of empty lists as `previous_response_id`", _PREVIOUS.attack),
    "lists-as-schema": Loop("8 MB of empty lists in the text of `guided_json`", _SCHEMA.attack),
    "lists-as-arguments": Loop("190 KB of empty lists in the arguments of a call", _CALLS.attack),
    "lists-as-custom-id": Loop("batches with lines of 1 MB of empty lists as `custom_id`", _batches),
    "escaped-lines": Loop("a text of 8 MB in which every other character is escaped", _LONG.attack),
}
