"""Floods of one tenant, from a process of their own: whoever measures beside them waits for the server alone."""

import asyncio
import json
import multiprocessing
import random
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

import httpx

from benchmarks.common.served import MODEL

WORDS = ("time", "river", "stone", "light", "north", "garden", "window", "letter", "market", "bridge", "summer")
LIST_PROMPTS, LIST_TOKENS = 128, 7_900
REFUSED_S = 0.2
"""How long a stream that was refused waits before it asks again."""


def words(draws: random.Random, count: int) -> str:
    """A text that no other begins like."""
    return " ".join(draws.choices(WORDS, k=count))


class Flood(NamedTuple):
    """A closed loop."""

    streams: int
    body: Callable[[random.Random], bytes]
    """Of the next request; no prompt begins as another does."""


def _text(prompt_words: int, tokens: int, *, n: int = 1, tier: str = "priority") -> Callable[[random.Random], bytes]:
    def body(draws: random.Random) -> bytes:
        asked = {"prompt": words(draws, prompt_words), "max_tokens": tokens, "n": n, "service_tier": tier}
        return json.dumps({"model": MODEL, "stream": True, "ignore_eos": True, **asked}).encode()

    return body


def _lists() -> Callable[[random.Random], bytes]:
    same = random.Random(0)
    tail = ",".join(str(same.randrange(1_000, 40_000)) for _ in range(LIST_TOKENS - 1))

    def body(draws: random.Random) -> bytes:
        prompts = ",".join(f"[{draws.randrange(1_000, 40_000)},{tail}]" for _ in range(LIST_PROMPTS))
        return f'{{"model":"{MODEL}","stream":true,"ignore_eos":true,"max_tokens":1,"prompt":[{prompts}]}}'.encode()

    return body


FLOODS: dict[str, Flood] = {
    "choices": Flood(35, _text(20, 300, n=2)),
    "prompts": Flood(8, _text(5_900, 16)),
    "lists": Flood(8, _lists()),
    "batch": Flood(48, _text(100, 200, tier="flex")),
}
"""By name: two choices each; prompts of some 6,000 tokens; bodies of 128 prompts of 7,900 ids; throughput work."""


class Crowd:
    """A flood that runs until it is stopped."""

    def __init__(self, name: str, url: str, key: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._tokens = context.Value("q", 0)
        self._refused = context.Value("q", 0)
        self._process = context.Process(target=_run, args=(name, url, key, self._tokens, self._refused), daemon=True)
        self._process.start()

    @property
    def tokens(self) -> int:
        """Tokens that came, of all choices."""
        return int(self._tokens.value)

    @property
    def refused(self) -> int:
        """Requests that were not let in, or failed."""
        return int(self._refused.value)

    def stop(self) -> None:
        """End all streams."""
        self._process.terminate()
        self._process.join()


def _run(name: str, url: str, key: str, tokens: "Synchronized[int]", refused: "Synchronized[int]") -> None:
    asyncio.run(_keep_on(name, url, key, tokens, refused))


async def _keep_on(name: str, url: str, key: str, tokens: "Synchronized[int]", refused: "Synchronized[int]") -> None:
    flood = FLOODS[name]

    async def stream(draws: random.Random) -> None:
        while True:
            async with client.stream("POST", f"{url}/completions", content=flood.body(draws)) as answer:
                if answer.is_error:
                    refused.value += 1
                    await asyncio.sleep(REFUSED_S)
                    continue
                async for line in answer.aiter_lines():
                    tokens.value += '"choices":[{' in line

    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=900, limits=limits) as client, asyncio.TaskGroup() as group:
        for number in range(flood.streams):
            group.create_task(stream(random.Random(number)))
