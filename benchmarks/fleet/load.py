"""Streamed chats at a steady rate, from a process of its own: how many tokens came, and how long they were under way.

python -m benchmarks.fleet.load '{"urls": […], …}' prints what it saw as one JSON object. Each token is the time at
which its worker's step ended (`worker.py`); the time at which the client reads its bytes, less that, is its delay."""

import asyncio
import re
import statistics
import sys
import time
from urllib.parse import urlsplit

import msgspec
import uvloop

from benchmarks.gateway import load
from benchmarks.gateway.load import COMPLAINT_BYTES, Client, request_bytes

MODEL, TICKS, TICK_S = "fleet", 2**15, 1e-4
"""As in `worker.py`, which only a checkout's own code can import."""
TEMPLATE_TOKENS = len("<user\n>\n<assistant\n")
"""Of the letters and marks around a prompt of one message."""
_CONTENT = re.compile(rb'"content":"((?: \d+)+)"')


class Order(load.Order, frozen=True, kw_only=True):
    """What to do: send these chats to the gateways in turns, one each `every_s`."""

    urls: list[str]
    chats: int
    every_s: float
    prompt_tokens: int


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `chats` are those with all their tokens and their end; `complaint` is the first other answer."""

    chats: int
    tokens: int
    p50_ms: float
    p99_ms: float
    complaint: str


class Reader(Client):
    """Reads one stream, and notes how long each token was under way."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: list[float] = []
        self._looked = 0

    def data_received(self, data: bytes) -> None:
        """Note the tokens of one read."""
        now = time.monotonic() / TICK_S
        super().data_received(data)
        for found in _CONTENT.finditer(self._read, self._looked):
            self.ticks += [(now - int(token)) % TICKS for token in found[1].split()]
            self._looked = found.end()


def prompt_of(order: Order, number: int) -> str:
    """Return a prompt, one letter for each token. No two prompts begin alike."""
    return f"{number}: {'go on ' * order.prompt_tokens}"[: order.prompt_tokens - TEMPLATE_TOKENS]


async def run(order: Order) -> Seen:
    """Send the chats, and read all of them to their ends."""
    loop, ticks, complaints = asyncio.get_running_loop(), list[float](), list[str]()
    began_s = loop.time()

    async def chat(number: int) -> None:
        await asyncio.sleep(began_s + number * order.every_s - loop.time())
        url = order.urls[number % len(order.urls)]
        place, asked = urlsplit(url), msgspec.structs.replace(order, url=url, prompt=prompt_of(order, number))
        _, reader = await loop.create_connection(Reader, place.hostname or "", place.port or 80)
        answer = await reader.ask(request_bytes(asked))
        reader.close()
        ticks.extend(reader.ticks)
        if len(reader.ticks) != order.tokens or b"data: [DONE]" not in answer:
            complaints.append(f"{len(reader.ticks)} tokens: {answer[-COMPLAINT_BYTES:].decode(errors='replace')}")

    await asyncio.gather(*map(chat, range(order.chats)))
    percent_ms = [each * TICK_S * 1e3 for each in statistics.quantiles(ticks or [0.0, 0.0], n=100, method="inclusive")]
    return Seen(
        chats=order.chats - len(complaints),
        tokens=len(ticks),
        p50_ms=percent_ms[49],
        p99_ms=percent_ms[98],
        complaint=complaints[0] if complaints else "",
    )


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Order)))).decode())
