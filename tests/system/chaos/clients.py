"""Clients that compare each token with the undisturbed answer."""

import asyncio
import json
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

from tests.system.chaos.fleet import Fleet
from tests.system.chaos.members import MODEL, continuation

# A request must have ended after this time, whatever happens to the fleet meanwhile.
END_S = 100.0
# A client gives up a connection that is silent for this long, and asks again.
SILENT_S = 30.0
RETRY_S = 0.2
# Creating the default context takes 20 ms for each client.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TOKEN = re.compile(r"w(\d+)")


class Kind(StrEnum):
    """How a client behaves when its stream breaks off; each kind is a tenant."""

    # It repeats the request with the same idempotency key until the answer has an end.
    PATIENT = "patient"
    # It does not repeat it.
    ONCE = "once"
    # It disconnects in the middle of the stream.
    LEAVER = "leaver"
    # It does not read for a while in the middle of the stream.
    SLOW = "slow"


@dataclass
class Try:
    """One attempt. `ended`: whole, cut, left, a status or the code of an error."""

    gateway: int
    began_s: float
    booking: str = ""
    received: int = 0
    ended: str = ""
    ended_s: float = 0.0


@dataclass
class Request:
    """One request with its attempts."""

    number: int
    kind: Kind
    prompt: list[int]
    n: int
    max_tokens: int
    streams: bool
    leaves_after: int = 0
    tries: list[Try] = field(default_factory=list)
    # Loop times of its last tokens, for the pauses.
    token_times: list[float] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return bool(self.tries) and self.tries[-1].ended == "whole"

    @property
    def total(self) -> int:
        return self.n * self.max_tokens

    def __str__(self) -> str:
        tries = ", ".join(f"{each.ended} at gateway{each.gateway} {each.booking}" for each in self.tries)
        return f"{self.kind} request {self.number} of {self.n} x {self.max_tokens} tokens ({tries})"


@dataclass
class Clients:
    """All clients. `violated` records a broken invariant."""

    fleet: Fleet
    chooser: random.Random
    violated: Callable[[str], None]
    keys: dict[Kind, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    longest: int = 160
    keeps_times: bool = False

    async def open_tenants(self) -> None:
        for kind in Kind:
            self.keys[kind] = await self.fleet.tenant(kind)

    async def ask_until(self, stopped: asyncio.Event, kinds: dict[Kind, int]) -> None:
        """Ask one request after the other."""
        while not stopped.is_set():
            await self.ask(self._draw(kinds))
            await asyncio.sleep(self.chooser.uniform(0.0, 0.3))

    def _draw(self, kinds: dict[Kind, int]) -> Request:
        chooser = self.chooser
        [kind] = chooser.choices([*kinds], [*kinds.values()])
        n, length = chooser.choice((1, 1, 2)), chooser.randint(8, self.longest)
        prompt = [chooser.randrange(3, 97) for _ in range(chooser.randint(2, 40))]
        streams = kind in (Kind.LEAVER, Kind.SLOW) or chooser.random() < 0.8
        leaves_after = chooser.randint(1, n * length)
        request = Request(len(self.requests), kind, prompt, n, length, streams, leaves_after)
        self.requests.append(request)
        return request

    async def ask(self, request: Request) -> None:
        gateway = self.chooser.randrange(len(self.fleet.urls))
        try:
            async with asyncio.timeout(END_S):
                while True:
                    attempt = Try(gateway % len(self.fleet.urls), time.monotonic())
                    request.tries.append(attempt)
                    try:
                        attempt.ended = await self._try(request, attempt)
                    finally:
                        attempt.ended_s = time.monotonic()
                    is_repeated = attempt.ended == "cut" or attempt.ended[0].isdigit()
                    if not is_repeated or request.kind is not Kind.PATIENT:
                        break
                    gateway += 1
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self.violated(f"without an end after {END_S:.0f} s: {request}")
        self.ends[f"{request.kind} {request.tries[-1].ended}"] += 1

    async def _try(self, request: Request, attempt: Try) -> str:
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": request.prompt,
            "n": request.n,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": request.streams,
        }
        headers = {"authorization": f"Bearer {self.keys[request.kind]}"}
        if request.kind is Kind.PATIENT:
            headers["idempotency-key"] = f"request-{request.number}"
        url = f"{self.fleet.urls[attempt.gateway]}/v1/completions"
        with suppress(httpx.TransportError):
            async with (
                httpx.AsyncClient(timeout=SILENT_S, verify=_NO_TLS) as client,
                client.stream("POST", url, json=body, headers=headers) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    error = json.loads(await answer.aread())["error"]
                    return f"{answer.status_code} {error['code']}"
                if request.streams:
                    return await self._read(request, attempt, answer)
                whole = json.loads(await answer.aread())
                attempt.booking = whole["id"].partition("-")[2]
                texts = {choice["index"]: choice["text"] for choice in whole["choices"]}
                return self._check_whole(request, attempt, [texts.get(number, "") for number in range(request.n)])
        return "cut"

    async def _read(self, request: Request, attempt: Try, answer: httpx.Response) -> str:
        texts, pauses = [""] * request.n, request.kind is Kind.SLOW
        expected = [_text(request, choice) for choice in range(request.n)]
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return self._check_whole(request, attempt, texts)
            if not line.startswith("data: "):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                return str(chunk["error"]["code"])
            attempt.booking = chunk["id"].partition("-")[2]
            for choice in chunk["choices"]:
                place, text = choice["index"], choice["text"]
                texts[place] += text
                if not expected[place].startswith(texts[place]):
                    self.violated(f"another token in choice {place} of {request}: {texts[place][-60:]!r}")
                    return "wrong"
                attempt.received += (count := len(_TOKEN.findall(text)))
                self.tokens += count
            if self.keeps_times:
                request.token_times.append(time.monotonic())
            if request.kind is Kind.LEAVER and attempt.received >= request.leaves_after:
                return "left"
            if pauses and attempt.received >= request.leaves_after:
                pauses = False
                await asyncio.sleep(self.chooser.uniform(1.0, 5.0))
        return "cut"

    def _check_whole(self, request: Request, attempt: Try, texts: list[str]) -> str:
        if texts != [_text(request, choice) for choice in range(request.n)]:
            counts = [len(_TOKEN.findall(text)) for text in texts]
            self.violated(f"a wrong answer of {counts} tokens: {request}")
            return "wrong"
        attempt.received = request.total
        return "whole"


def _text(request: Request, choice: int) -> str:
    return "".join(f"w{token}" for token in continuation(request.prompt, choice, request.max_tokens))
