"""A flood of the throughput lane in a closed loop, and single requests of the latency lane beside it."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from fairlane.scheduler.protocol.engine_priority import encode
from fairlane.scheduler.protocol.lanes import LATENCY, THROUGHPUT, Lane, LaneName

FLOOD = 48
"""Streams of the flood at any time, each of a prompt of its own."""
FLOOD_PROMPT, FLOOD_TOKENS = 120, 96
PROMPT, TOKENS = 60, 16
"""Of a request of the latency lane."""
VOCABULARY = 10_000
"""Prompts are of token ids below this."""


@dataclass
class Found:
    """What one arm did."""

    ttft_s: list[float] = field(default_factory=list)
    """Of the latency lane's requests."""
    tpot_s: list[float] = field(default_factory=list)
    """Of them, too: between the first token and the last, for each further one."""
    flood_tokens: int = 0
    seconds: float = 0.0
    """The window in which requests of the latency lane came, and the flood's tokens were counted."""

    @property
    def flood_rate(self) -> float:
        """Tokens a second of the flood."""
        return self.flood_tokens / self.seconds if self.seconds else 0.0


class Door(Protocol):
    """How one arm is asked for tokens."""

    url: str

    def headers(self, lane: Lane) -> dict[str, str]:
        """Of a request of this lane."""

    def body(self, name: str, lane: Lane, token_ids: list[int], tokens: int) -> dict[str, Any]:
        """Of a request for just so many tokens, streamed."""

    def count(self, event: dict[str, Any], so_far: int) -> int:
        """Tokens that came with this event, after so many."""


class VllmDoor:
    """vLLM's token interface, with the priority that a lease holder would give it."""

    def __init__(self, base_url: str) -> None:
        self.url = f"{base_url}/inference/v1/generate"

    def headers(self, lane: Lane) -> dict[str, str]:
        return {}

    def body(self, name: str, lane: Lane, token_ids: list[int], tokens: int) -> dict[str, Any]:
        return {
            "request_id": name,
            "token_ids": token_ids,
            "sampling_params": {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, "temperature": 0.0},
            "priority": encode(lane.rank, time.time() * 1e3 + lane.ttft_ms),
            "stream": True,
        }

    def count(self, event: dict[str, Any], so_far: int) -> int:
        choices = event.get("choices") or [{}]
        return len(choices[0].get("token_ids") or ())


class FairlaneDoor:
    """Fairlane's completions, each lane by the key of a tenant of its own."""

    def __init__(self, base_url: str, model: str, keys: Mapping[LaneName, str]) -> None:
        self.url = f"{base_url}/v1/completions"
        self._model = model
        self._keys = keys

    def headers(self, lane: Lane) -> dict[str, str]:
        return {"authorization": f"Bearer {self._keys[lane.name]}", "x-fairlane-lane": lane.name}

    def body(self, name: str, lane: Lane, token_ids: list[int], tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": token_ids,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

    def count(self, event: dict[str, Any], so_far: int) -> int:
        usage = event.get("usage") or {}
        return max(0, int(usage.get("completion_tokens", 0)) - so_far)


class Load:
    """One arm's load; the same seed sends the same prompts."""

    def __init__(self, door: Door, seed: int) -> None:
        self._door = door
        self._rng = random.Random(seed)
        self._names = itertools.count()
        self._counts, self._began_s = False, 0.0
        self.found = Found()

    async def run(self, warm_s: float, requests: int, every_s: float) -> Found:
        """Flood; after `warm_s` send so many requests of the latency lane, `every_s` apart, whenever they are answered:
        a slow server gets as much to do as a fast one."""
        async with self._flooded(warm_s) as client, asyncio.TaskGroup() as group:
            for _ in range(requests):
                group.create_task(self._one(client))
                await asyncio.sleep(every_s)
            self._end_window()
        return self.found

    async def flood_alone(self, warm_s: float, window_s: float) -> Found:
        """Flood; after `warm_s` count for `window_s`."""
        async with self._flooded(warm_s):
            await asyncio.sleep(window_s)
            self._end_window()
        return self.found

    @asynccontextmanager
    async def _flooded(self, warm_s: float) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=600.0) as client, asyncio.TaskGroup() as group:
            flood = [group.create_task(self._flood(client)) for _ in range(FLOOD)]
            await asyncio.sleep(warm_s)
            self._counts, self._began_s = True, time.monotonic()
            yield client
            for task in flood:
                task.cancel()

    def _end_window(self) -> None:
        self._counts, self.found.seconds = False, time.monotonic() - self._began_s

    async def _flood(self, client: httpx.AsyncClient) -> None:
        while True:
            async for tokens in self._stream(client, THROUGHPUT, FLOOD_PROMPT, FLOOD_TOKENS):
                self.found.flood_tokens += tokens if self._counts else 0

    async def _one(self, client: httpx.AsyncClient) -> None:
        sent_s, first_s = time.monotonic(), None
        async for _ in self._stream(client, LATENCY, PROMPT, TOKENS):
            first_s = first_s or time.monotonic()
        if first_s is None:
            raise RuntimeError("a request of the latency lane ended without a token")
        self.found.ttft_s.append(first_s - sent_s)
        self.found.tpot_s.append((time.monotonic() - first_s) / (TOKENS - 1))

    async def _stream(self, client: httpx.AsyncClient, lane: Lane, prompt: int, tokens: int) -> AsyncIterator[int]:
        """How many tokens come with each event."""
        prompt_ids = [self._rng.randrange(10, VOCABULARY) for _ in range(prompt)]
        body, so_far = self._door.body(f"load-{next(self._names)}", lane, prompt_ids, tokens), 0
        async with client.stream("POST", self._door.url, json=body, headers=self._door.headers(lane)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    came = self._door.count(json.loads(line[6:]), so_far)
                    so_far += came
                    if came:
                        yield came
        if so_far != tokens:
            raise RuntimeError(f"{so_far} tokens instead of {tokens}")
