"""`python -m benchmarks.engines.stepping --port PORT`: an engine whose step takes the same time
however much it computes, behind vLLM's token interface, so that what stands before it is all that differs."""

import argparse
import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

VERSION = "0.32.0"
BLOCK_SIZE, BLOCKS = 16, 65_536
CONTEXT_LENGTH = 2048
FIRST_ID, IDS = 1_000, 8_000
"""Tokens are of these ids, all of which a model of some size has."""


@dataclass(eq=False)
class Row:
    """One request: a token of each step in which it has a slot."""

    max_tokens: int
    tokens: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    came: int = 0
    is_over: bool = False


class SteppingEngine:
    """`slots` requests at a time, first come first served, a step every `step_s`."""

    def __init__(self, slots: int, step_s: float, model: str) -> None:
        self._slots = slots
        self._step_s = step_s
        self._model = model
        self._running: list[Row] = []
        self._waiting: deque[Row] = deque()

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Step for as long as the server runs."""
        stepping = asyncio.create_task(self._steps())
        try:
            yield
        finally:
            stepping.cancel()

    async def _steps(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self._step_s, loop.time())
            self._running = [row for row in self._running if not row.is_over]
            while self._waiting and len(self._running) < self._slots:
                self._running.append(self._waiting.popleft())
            await asyncio.sleep(due_s - loop.time())
            for row in self._running:
                row.came += 1
                row.is_over = row.is_over or row.came == row.max_tokens
                row.tokens.put_nowait(FIRST_ID + row.came * 7 % IDS)

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        return StreamingResponse(
            self._lines(int(body["sampling_params"]["max_tokens"])), media_type="text/event-stream"
        )

    async def _lines(self, max_tokens: int) -> AsyncIterator[str]:
        row = Row(max_tokens)
        self._waiting.append(row)
        try:
            for number in range(1, max_tokens + 1):
                choice = {"index": 0, "token_ids": [await row.tokens.get()], "logprobs": None}
                choice["finish_reason"] = "length" if number == max_tokens else None
                yield _event({"choices": [choice], "usage": {"completion_tokens": number}})
            yield "data: [DONE]\n\n"
        finally:
            row.is_over = True

    async def facts(self, request: Request) -> Response:
        """What a lease holder asks before it takes work."""
        answers: dict[str, Any] = {
            "/version": {"version": VERSION},
            "/v1/models": {"data": [{"id": self._model, "root": "", "max_model_len": CONTEXT_LENGTH}]},
            "/health": {},
        }
        return JSONResponse(answers[request.url.path])

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{BLOCKS}"}} 1.0\n')


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--model", default="stepping", help="the name that it serves by")
    asked = parser.parse_args()
    engine = SteppingEngine(asked.slots, asked.step_ms / 1e3, asked.model)
    facts = [Route(path, engine.facts) for path in ("/version", "/v1/models", "/health")]
    generate = [
        Route("/inference/v1/generate", engine.generate, methods=["POST"]),
        Route("/inference/v1/abort_requests", lambda _: Response(), methods=["POST"]),
    ]
    app = Starlette(routes=[*facts, Route("/metrics", engine.metrics), *generate], lifespan=engine.lifespan)
    uvicorn.run(app, host="127.0.0.1", port=asked.port, log_level="warning")


if __name__ == "__main__":
    main()
