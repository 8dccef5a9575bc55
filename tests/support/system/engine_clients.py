"""Clients of completions whose every token is looked at: those that ask again until all is there, those that leave in
mid-stream, and those that take what they get.
"""

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import httpx

ALTERNATIVES = 2
"""Log-probabilities asked for at each token: their distance tells a near-tie."""
ASKED_WITHIN_S = 400.0
RETRY_S = 0.1
NOT_NOW = frozenset({"no_worker", "overloaded", "store_unavailable", "shutting_down"})
"""Refusals that a stream tells which was opened before they were known: a 503 in other words."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Gateways are asked in the clear; one of httpx's own making takes 20 ms for each client."""


class Kind(Enum):
    """What a client does when its stream breaks off."""

    PATIENT = auto()
    """It asks again, under the same idempotency key, until all is there."""
    LEAVER = auto()
    """It leaves by itself after some tokens."""
    ONCE = auto()
    """Nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    kind: Kind
    prompt: tuple[int, ...]
    n: int
    max_tokens: int
    tier: str = "auto"
    has_logprobs: bool = True
    """Records have none, so that without them alone a further try goes on where the last one was cut."""
    leaves_after: int = 0
    """Tokens, of one that leaves."""

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": [*self.prompt],
            "n": self.n,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": ALTERNATIVES if self.has_logprobs else None,
            "service_tier": self.tier,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass
class Told:
    """What one request was answered, by choice: its text, and with log-probabilities also its tokens, and how far each
    was from the next likely one."""

    asked: Asked
    texts: list[str] = field(default_factory=list)
    tokens: list[list[str]] = field(default_factory=list)
    margins: list[list[float]] = field(default_factory=list)
    end: str = ""
    """whole, left, cut, refused, or the code of an error."""
    usage: dict[str, Any] | None = None
    tries: int = 0
    frames: int = 0
    """Of this try, that held text."""
    most: int = 0
    """What `count` of any of the tries came to."""
    faults: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """A further try: it begins at the first token."""
        self.tries += 1
        self.frames = 0
        self.texts = [""] * self.asked.n
        self.tokens = [[] for _ in range(self.asked.n)]
        self.margins = [[] for _ in range(self.asked.n)]
        self.usage = None

    @property
    def count(self) -> int:
        """Tokens of this try, as far as its frames tell them apart."""
        return sum(map(len, self.tokens)) if self.asked.has_logprobs else self.frames

    def take(self, chunk: dict[str, Any]) -> None:
        """One frame of the stream."""
        for choice in chunk["choices"]:
            logprobs = choice["logprobs"] or {"tokens": [], "top_logprobs": []}
            place = choice["index"]
            self.texts[place] += choice["text"]
            self.frames += bool(choice["text"])
            self.tokens[place] += logprobs["tokens"]
            self.margins[place] += [_margin(top) for top in logprobs["top_logprobs"]]
        self.usage = chunk.get("usage") or self.usage


def _margin(top: dict[str, float]) -> float:
    best = sorted(top.values(), reverse=True)[:2]
    return best[0] - best[1] if len(best) == 2 else float("inf")


class Progress:
    """Tokens that clients have been told in all, each once."""

    def __init__(self) -> None:
        self.tokens = 0
        self._changed = asyncio.Condition()

    async def told(self, count: int) -> None:
        """So many more."""
        self.tokens += count
        async with self._changed:
            self._changed.notify_all()

    async def reach(self, count: int) -> None:
        """Wait for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.tokens >= count)


@dataclass
class Clients:
    """Everybody who asks, in one process."""

    urls: list[str]
    model: str
    keys: dict[Kind, str]
    chooser: random.Random
    on_tokens: Callable[[Asked, int], None] = lambda _asked, _count: None
    progress: Progress = field(default_factory=Progress)
    ends: Counter[str] = field(default_factory=Counter)
    within_s: float = ASKED_WITHIN_S

    async def ask(self, asked: Asked) -> Told:
        """One request to its end."""
        told, gateway = Told(asked), self.chooser.randrange(len(self.urls))
        async with asyncio.timeout(self.within_s), httpx.AsyncClient(timeout=self.within_s, verify=_NO_TLS) as client:
            while True:
                told.end = await self._try(client, self.urls[gateway % len(self.urls)], told)
                if asked.kind is not Kind.PATIENT or told.end not in ("cut", "refused"):
                    break
                gateway += 1
                await asyncio.sleep(RETRY_S)
        self.ends[f"{asked.kind.name.lower()} {told.end}"] += 1
        return told

    async def _try(self, client: httpx.AsyncClient, url: str, told: Told) -> str:
        asked = told.asked
        headers = {"authorization": f"Bearer {self.keys[asked.kind]}"}
        if asked.kind is Kind.PATIENT:
            headers["idempotency-key"] = f"request-{asked.number}"
        earlier = told.texts
        told.begin()
        try:
            async with client.stream(
                "POST", f"{url}/v1/completions", json=asked.body(self.model), headers=headers
            ) as answer:
                if answer.status_code in (429, 503):
                    return "refused"
                if answer.status_code != httpx.codes.OK:
                    return f"{answer.status_code} {json.loads(await answer.aread())['error']['code']}"
                return await self._read(answer, told)
        except httpx.TransportError:
            return "cut"
        finally:
            for before, now in zip(earlier, told.texts, strict=False):
                if not (before.startswith(now) or now.startswith(before)):
                    told.faults.append(f"request {asked.number}: a further try told another text")

    async def _read(self, answer: httpx.Response, told: Told) -> str:
        asked = told.asked
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return "whole"
            chunk = json.loads(line[6:])
            if "error" in chunk:
                code = str(chunk["error"]["code"])
                return "refused" if code in NOT_NOW and not told.count else code
            told.take(chunk)
            if told.count > told.most:
                news, told.most = told.count - told.most, told.count
                self.on_tokens(asked, news)
                await self.progress.told(news)
            if asked.kind is Kind.LEAVER and told.count >= asked.leaves_after:
                return "left"
        return "cut"
