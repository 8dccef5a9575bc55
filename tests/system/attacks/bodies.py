"""Floods of bodies and numbers, each by one tenant with a key that works."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from tests.support.system.harness import MODEL
from tests.system.attacks.target import Address, address_of

BODY_BYTES = 8 * 2**20
PATH = "/v1/completions"
_START = f'{{"model": "{MODEL}", "max_tokens": 1, '.encode()
Answers = Counter[str]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the attacks go, and with whose key."""

    url: str
    key: str

    @property
    def address(self) -> Address:
        return address_of(self.url)

    def head(self, framing: str) -> bytes:
        return f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n{framing}\r\n\r\n".encode()


async def unfinished(target: Target, connections: int, seconds: float, *, chunked: bool) -> Answers:
    """Bodies of 8 MB of which a part comes and the end never, on so many connections at a time."""
    answers: Answers = Counter()
    part = b"a" * 100_000
    if chunked:
        said = target.head("transfer-encoding: chunked") + b"%x\r\n%b\r\n" % (len(part), part)
    else:
        said = target.head(f"content-length: {BODY_BYTES}") + part

    async def hold() -> None:
        reader, writer = await asyncio.open_connection(*target.address)
        try:
            writer.write(said)
            status = await asyncio.wait_for(reader.read(12), seconds)
            answers[status[9:12].decode() or "closed"] += 1
        except TimeoutError:
            answers["held"] += 1
        except OSError:
            answers["reset"] += 1
        finally:
            writer.transport.abort()

    await asyncio.gather(*(hold() for _ in range(connections)))
    return answers


async def flood(target: Target, connections: int, seconds: float, body: bytes) -> Answers:
    """The same whole body again and again, on so many connections."""
    answers: Answers = Counter()
    until = time.monotonic() + seconds

    async def send(client: httpx.AsyncClient) -> None:
        while time.monotonic() < until:
            try:
                answer = await client.post(PATH, content=body, headers={"authorization": f"Bearer {target.key}"})
                answers[str(answer.status_code)] += 1
            except httpx.TransportError:
                answers["reset"] += 1

    async with httpx.AsyncClient(base_url=target.url, timeout=60.0) as client:
        await asyncio.gather(*(send(client) for _ in range(connections)))
    return answers


def filled(start: bytes, item: bytes, end: bytes, most_bytes: int = BODY_BYTES) -> bytes:
    """A body of about so many bytes, out of the same item."""
    return start + item * ((most_bytes - len(start) - len(end)) // len(item)) + end


@dataclass(frozen=True, slots=True)
class Body:
    """A whole body, to be made where it is sent."""

    attacked: str
    made: Callable[[], bytes]


BODIES: Mapping[str, Body] = {
    "texts": Body("a text of 8 MB", lambda: filled(_START + b'"prompt": "', b"word ", b'", "no_such_field": 1}')),
    "escapes": Body(
        "a text of 8 MB of escapes", lambda: filled(_START + b'"prompt": "', b"\\u00e9", b'", "no_such_field": 1}')
    ),
    "ones": Body("8 MB of `1,`", lambda: filled(_START + b'"prompt": [', b"1,", b"1]}")),
    "ids": Body("8 MB of token ids", lambda: filled(_START + b'"prompt": [[', b"12345,", b"1]]}")),
    "fractions": Body("8 MB of fractions", lambda: filled(_START + b'"prompt": [', b"1.5,", b"1]}")),
    "digits": Body("numbers of 4,000 digits", lambda: filled(_START + b'"prompt": [', b"7" * 4_000 + b",", b"1]}")),
    "mixed-digits": Body(
        "the same behind a list", lambda: filled(_START + b'"prompt": [[],', b"7" * 4_000 + b",", b"1]}", 2_000_000)
    ),
    "keys": Body(
        "49,000 unknown keys", lambda: _START + b",".join(b'"k%d": 1' % number for number in range(49_000)) + b"}"
    ),
    "nested": Body("8 MB of `[`", lambda: filled(_START + b'"prompt": ', b"[", b"")),
    "nested-a-little": Body("49,000 lists in each other", lambda: _START + b'"prompt": ' + b"[" * 49_000),
    "small-lists": Body(
        "49,000 prompts of two ids", lambda: _START + b'"prompt": [' + b",".join([b"[1,2]"] * 49_000) + b"]}"
    ),
    "spaces": Body("8 MB of spaces", lambda: filled(_START + b'"prompt":', b" ", b"1}")),
}
"""Each of them refused."""
UNFINISHED = {"unfinished": "bodies of 8 MB that never end", "unfinished-chunks": "the same in chunks"}


async def attack(target: Target, name: str, seconds: float, *, connections: int = 8, held: int = 400) -> Answers:
    """One of them by its name, for about so long."""
    if name in UNFINISHED:
        return await unfinished(target, held, seconds, chunked=name == "unfinished-chunks")
    return await flood(target, connections, seconds, BODIES[name].made())
