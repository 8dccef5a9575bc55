"""A server with vLLM's token-in-token-out interface, whose model is a sum: for tests of what stands before one.

The next token depends on all tokens before it, so whoever resumes a stream elsewhere gets the same ones. Steps take
`step_s`; `slots` requests run at a time, the lowest priority number first. What it does wrong is told to it.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

VOCABULARY = 97
EOS = 2
MODEL = "sum"
STARTED_S = 20.0


def next_token(token_ids: Sequence[int]) -> int:
    """Never an end of sequence."""
    return 3 + sum((place + 1) * token for place, token in enumerate(token_ids)) % (VOCABULARY - 3)


def continuation(token_ids: Sequence[int], count: int) -> list[int]:
    """So many tokens after these."""
    found = [*token_ids]
    for _ in range(count):
        found.append(next_token(found))
    return found[len(token_ids) :]


@dataclass
class VllmStandIn:
    """One server, in a thread of its own; use it as a context."""

    step_s: float = 0.001
    slots: int = 8
    version: str = "0.32.0"
    blocks: int = 64
    block_size: int = 4
    asked: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    produced: int = 0
    """Tokens in all."""
    most_running: int = 0
    refuses: int | None = None
    """Answers requests with this status."""
    lies: str | None = None
    """What is wrong from a stream's third token on: `vocabulary`, `count`, `short`, `silent`, `cut`, `garbled`."""
    lies_left: int = 10**9
    is_healthy: bool = True
    port: int = 0

    def __post_init__(self) -> None:
        self._running: set[str] = set()
        self._waiting: list[tuple[int, int, asyncio.Event]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "VllmStandIn":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on the port of before if there was one."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        app = Starlette(
            routes=[
                Route("/version", lambda _: JSONResponse({"version": self.version})),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
                Route("/inference/v1/abort_requests", self._abort, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()
        deadline = threading.Event()
        while not self._server.started:
            deadline.wait(0.005)

    def stop(self) -> None:
        """Cut every connection."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(STARTED_S)

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self.is_healthy else 503)

    async def _metrics(self, _: Request) -> Response:
        labels = f'block_size="{self.block_size}",num_gpu_blocks="{self.blocks}",num_cpu_blocks="None"'
        return PlainTextResponse(f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n")

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": MODEL, "root": "", "max_model_len": 256}]})

    async def _abort(self, request: Request) -> Response:
        self.aborted += (await request.json())["request_ids"]
        return Response()

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        if self.refuses is not None:
            return JSONResponse({"error": {"message": "no"}}, self.refuses)
        return StreamingResponse(self._stream(request, body), media_type="text/event-stream")

    async def _stream(self, request: Request, body: dict[str, Any]) -> AsyncIterator[str]:
        sampling, context = body["sampling_params"], [*body["token_ids"]]
        async with self._slot(body["request_id"], body["priority"]):
            for number in range(1, sampling["max_tokens"] + 1):
                await asyncio.sleep(self.step_s)
                if await request.is_disconnected():
                    self.aborted.append(body["request_id"])
                    return
                context.append(next_token(context))
                self.produced += 1
                is_last = number == sampling["max_tokens"] or context[-1] in sampling["stop_token_ids"]
                lie = self.lies if number >= 3 and self.lies_left > 0 else None
                if lie is not None:
                    self.lies_left -= 1
                if lie == "silent":
                    await asyncio.sleep(3_600)
                if lie == "cut":
                    return
                yield self._line(body, context, number, is_last=is_last or lie == "short", lie=lie)
                if is_last or lie == "short":
                    break
            usage = {"completion_tokens": number}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    def _line(
        self, body: dict[str, Any], context: Sequence[int], number: int, *, is_last: bool, lie: str | None
    ) -> str:
        if lie == "garbled":
            return 'data: {"choices": [{"token_ids": ["\n\n'
        token_ids = [VOCABULARY + 5 if lie == "vocabulary" else context[-1]]
        counted = number + 1 if lie == "count" else number
        usage = {"completion_tokens": counted, "prompt_tokens_details": {"cached_tokens": len(body["token_ids"]) // 2}}
        most = body["sampling_params"]["logprobs"]
        logprobs = None
        if most is not None:
            top = [{"token_id": token, "logprob": -1.0 - token} for token in range(most + 1)]
            logprobs = {"content": [{"token_id": token_ids[0], "logprob": -0.5, "top_logprobs": top}]}
        reason = ("stop" if context[-1] in body["sampling_params"]["stop_token_ids"] else "length") if is_last else None
        choice = {"index": 0, "token_ids": token_ids, "logprobs": logprobs, "finish_reason": reason}
        return f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n"

    @contextlib.asynccontextmanager
    async def _slot(self, request_id: str, priority: int) -> AsyncIterator[None]:
        if len(self._running) >= self.slots:
            turn = asyncio.Event()
            self._waiting.append((priority, len(self.asked), turn))
            self._waiting.sort(key=lambda one: one[:2])
            await turn.wait()
        self._running.add(request_id)
        self.most_running = max(self.most_running, len(self._running))
        try:
            yield
        finally:
            self._running.discard(request_id)
            if self._waiting:
                self._waiting.pop(0)[2].set()
