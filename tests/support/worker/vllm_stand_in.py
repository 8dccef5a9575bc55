"""A server with vLLM's token-in-token-out interface, whose model is a checksum: for tests of what stands before one.

The next token depends on all tokens before it, so whoever resumes a stream elsewhere gets the same ones. Steps take
`step_s`; `slots` requests run at a time, the lowest priority number first. An adapter begins each checksum with its
place in `adapters`. Tests set its faults.

As a process of its own: `python -m tests.support.worker.vllm_stand_in PORT [STEP_S [SLOTS [BLOCKS]]]`.
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
import threading
import time
import zlib
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

VOCABULARY = 97
EOS = 2
MODEL = "sum"
STARTED_S = 20.0
TOO_MANY = 5


WIDTH = 4


def vector(given: Sequence[int] | str) -> list[float]:
    """Of one input, by its token ids or its text."""
    whole = given.encode() if isinstance(given, str) else array("I", given).tobytes()
    return [zlib.crc32(whole, place) % 1024 / 1024 for place in range(WIDTH)]


def score(query: str, document: str) -> float:
    """Of one pair."""
    return zlib.crc32(f"{query} {document}".encode()) % 1024 / 1024


def next_token(token_ids: Sequence[int], adapter: int = 0) -> int:
    """Never an end of sequence. `adapter`: 1 for the first; 0: none."""
    return 3 + zlib.crc32(array("I", token_ids).tobytes(), adapter) % (VOCABULARY - 3)


def continuation(token_ids: Sequence[int], count: int, adapter: int = 0) -> list[int]:
    """So many tokens after these."""
    found = [*token_ids]
    for _ in range(count):
        found.append(next_token(found, adapter))
    return found[len(token_ids) :]


def of_prompt(token_ids: Sequence[int], most: int) -> list[dict[str, Any] | None]:
    """vLLM's log-probabilities of a prompt: those of other tokens are lower, the less so the smaller their ids."""
    found: list[dict[str, Any] | None] = [None]
    for token_id in token_ids[1:]:
        others = {str(token): {"logprob": -1.0 - token, "rank": token + 1} for token in range(most)}
        found.append({**others, str(token_id): {"logprob": -0.5, "rank": 7, "decoded_token": "?"}})
    return found


class _Keyed:
    """Lets nobody in without the server's key, if it has one."""

    def __init__(self, app: ASGIApp, server: "VllmStandIn") -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key, headers = self._server.key, Headers(scope=scope)
        is_let_in = key is None or scope["path"] in self._server.open_paths
        answer = JSONResponse({"error": "no"}, 401)
        app = self._app if is_let_in or headers.get("authorization") == f"Bearer {key}" else answer
        await app(scope, receive, send)


@dataclass
class VllmStandIn:
    """One server, in a thread of its own; use it as a context."""

    step_s: float = 0.001
    slots: int = 8
    version: str = "0.32.0"
    blocks: int = 64
    block_size: int = 4
    model: str = MODEL
    root: str = ""
    """Where it says that its model is."""
    adapters: list[str] = field(default_factory=list)
    """Names of those that it serves over that model."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    produced: int = 0
    """Tokens in all."""
    most_running: int = 0
    refuses: int | None = None
    """Answers requests with this status."""
    lies: str | None = None
    """What is wrong from then on: `vocabulary`, `count`, `short`, `silent`, `cut`, `garbled`,
    `missing`, `repeated`; `many`: it goes on beyond what was asked for."""
    lies_from: int = 3
    """A stream's token, counted from 1."""
    lies_left: int = 10**9
    ends_after: int | None = None
    """Its so manieth token is an end of sequence."""
    grammars: str = "none"
    """What it makes of one: `none` (400), `anew` (it begins with a stream), `resumed` (with what the prompt has of it),
    `ignored`, `failed` (in mid-stream). The only ones that it reads list tokens by their ids."""
    forgets: int = 0
    """So many streams with a grammar that come begin with another token."""
    is_healthy: bool = True
    pools: str = ""
    """What it makes instead of text: `embeddings` or `scores`."""
    takes_ids: bool = True
    """As inputs of embeddings."""
    has_priorities: bool = True
    """Started with `--scheduling-policy priority`."""
    context_length: int = 256
    key: str | None = None
    open_paths: tuple[str, ...] = ("/health",)
    """For which no key is asked."""
    is_open: bool = True
    """Started with `--enable-scale-out`."""
    port: int = 0
    started_s: float = 0.0

    def __post_init__(self) -> None:
        self._running: set[str] = set()
        self._waiting: list[tuple[int, int, asyncio.Event]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on the port of before if there was one."""
        self.started_s = time.time()
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        app = Starlette(routes=self._routes(), middleware=[Middleware(_Keyed, self)])
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

    def serve(self) -> None:
        """Until this process ends."""
        app = Starlette(routes=self._routes())
        uvicorn.run(app, host="127.0.0.1", port=self.port, log_level="error", lifespan="off")

    def _routes(self) -> list[Route]:
        return [
            Route("/version", lambda _: JSONResponse({"version": self.version})),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            *self._computing(
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
                Route("/inference/v1/abort_requests", self._abort, methods=["POST"]),
            ),
        ]

    def _computing(self, *generating: Route) -> list[Route]:
        pooling = {
            "embeddings": Route("/v1/embeddings", self._embed, methods=["POST"]),
            "scores": Route("/v1/rerank", self._rerank, methods=["POST"]),
        }
        return [pooling[self.pools]] if self.pools else [*generating]

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        inputs = body["input"]
        if not self.takes_ids and not isinstance(inputs[0], str):
            return JSONResponse({"error": {"message": "input must be text"}}, 400)
        data = [{"object": "embedding", "index": at, "embedding": vector(one)} for at, one in enumerate(inputs)]
        counted = sum(map(len, inputs))
        usage = {"prompt_tokens": counted, "total_tokens": counted, "completion_tokens": 0}
        return await self._pooled(request, body, {"id": "embd-1", "object": "list", "data": data, "usage": usage})

    async def _rerank(self, request: Request) -> Response:
        body = await request.json()
        results: list[dict[str, Any]] = [
            {
                "index": at,
                "document": {"text": text, "multi_modal": None},
                "relevance_score": score(body["query"], text),
            }
            for at, text in enumerate(body["documents"])
        ]
        results.sort(key=lambda one: one["relevance_score"], reverse=True)
        return await self._pooled(request, body, self._ranked(results))

    def _ranked(self, results: list[dict[str, Any]]) -> Any:
        return {
            "id": "score-1",
            "model": self.model,
            "usage": {"prompt_tokens": 9, "total_tokens": 9},
            "results": results,
        }

    async def _pooled(self, request: Request, body: dict[str, Any], answer: Any) -> Response:
        if body.get("priority") and not self.has_priorities:
            return JSONResponse({"error": {"message": "no priorities"}}, 400)
        if body.get("input") in ([[40, 41, 42]], ["Hello"]) or body.get("query") == "Hello":  # a worker's trial
            return JSONResponse(answer)
        self.asked.append(body)
        if self.refuses is not None:
            return JSONResponse({"error": {"message": "no"}}, self.refuses)
        lie = self.lies if self.lies_left > 0 else None
        self.lies_left -= 1
        if lie == "silent":
            while not await request.is_disconnected():  # noqa: ASYNC110 - polled: it has no event
                await asyncio.sleep(0.01)
            self.aborted.append(body["model"])
        if lie == "garbled":
            return Response(b'{"data": [', media_type="application/json")
        if lie == "short":
            (answer.get("data") or answer["results"]).pop()
        if lie == "size":
            answer["data"][-1]["embedding"].append(0.5)
        return JSONResponse(answer)

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self.is_healthy else 503)

    async def _metrics(self, _: Request) -> Response:
        labels = f'block_size="{self.block_size}",num_gpu_blocks="{self.blocks}",num_cpu_blocks="None"'
        metrics = {
            f"vllm:cache_config_info{{{labels}}}": 1.0,
            'vllm:num_requests_running{engine="0"}': float(len(self._running)),
            'vllm:num_requests_waiting{engine="0"}': float(len(self._waiting)),
            "process_start_time_seconds": self.started_s,
        }
        return PlainTextResponse("".join(f"{name} {value!r}\n" for name, value in metrics.items()))

    async def _models(self, _: Request) -> Response:
        served = {"id": self.model, "root": self.root, "parent": None, "max_model_len": self.context_length}
        over_it = [
            {"id": name, "root": f"/adapters/{name}", "parent": self.model, "max_model_len": None}
            for name in self.adapters
        ]
        return JSONResponse({"data": [served, *over_it]})

    async def _abort(self, request: Request) -> Response:
        if not self.is_open:
            return JSONResponse({"error": {"message": "Scale-out endpoints are disabled."}}, 403)
        self.aborted += (await request.json())["request_ids"]
        return Response()

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        if body["sampling_params"].get("structured_outputs") and self.grammars == "none":
            return JSONResponse({"error": {"message": "no grammars"}}, 400)
        self.asked.append(body)
        if self.refuses is not None:
            return JSONResponse({"error": {"message": "no"}}, self.refuses)
        if body["model"] not in (None, self.model, *self.adapters):
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        body = self.read(body)
        if isinstance(body, Response):
            return body
        if not body["stream"]:
            return JSONResponse(self._whole(body))
        return StreamingResponse(self._stream(request, body), media_type="text/event-stream")

    def read(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        """Return a request as it is computed."""
        return body

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        most = body["sampling_params"].get("prompt_logprobs")
        found = None if most is None or self.lies == "unscored" else of_prompt(body["token_ids"], most)
        return {"choices": [], "prompt_logprobs": found}

    async def _stream(self, request: Request, body: dict[str, Any]) -> AsyncIterator[str]:
        sampling, context = body["sampling_params"], [*body["token_ids"]]
        adapter = 1 + self.adapters.index(body["model"]) if body["model"] in self.adapters else 0
        listed = self._listed(sampling)
        async with self._slot(body["request_id"], body["priority"]):
            most = sampling["max_tokens"] + (TOO_MANY if self.lies == "many" else 0)
            for number in range(1, most + 1):
                await asyncio.sleep(self.step_s)
                if await request.is_disconnected():
                    self.aborted.append(body["request_id"])
                    return
                token = next_token(context, adapter) if listed is None else next(listed, EOS)
                context.append(EOS if number == self.ends_after else token)
                self.produced += 1
                is_last = number == most or context[-1] in sampling["stop_token_ids"]
                lie = self.lies if number >= self.lies_from and self.lies_left > 0 else None
                if lie is not None:
                    self.lies_left -= 1
                if lie == "silent":
                    await asyncio.sleep(3_600)
                if lie == "cut":
                    return
                line = self._line(body, context, number, is_last=is_last or lie == "short", lie=lie)
                for _ in range({"missing": 0, "repeated": 2}.get(lie or "", 1)):
                    yield line
                if is_last or lie == "short":
                    break
            yield self._last(body, number)

    def _last(self, body: dict[str, Any], number: int) -> str:
        cached = {"cached_tokens": len(body["token_ids"]) // 2}
        usage = {"completion_tokens": number, "prompt_tokens_details": cached}
        return f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    def _listed(self, sampling: dict[str, Any]) -> Iterator[int] | None:
        """What a grammar leaves to say; None: anything."""
        if not sampling.get("structured_outputs") or self.grammars == "ignored":
            return None
        listed = [int(token) for token in re.findall(r"<\[(\d+)\]>", sampling["structured_outputs"]["grammar"])]
        if self.forgets:
            self.forgets -= 1
            listed[0] = VOCABULARY - 1
        begun = (sampling["extra_args"] or {}).get("fairlane_begun", 0) if self.grammars == "resumed" else 0
        return iter(listed[begun:])

    def _line(
        self, body: dict[str, Any], context: Sequence[int], number: int, *, is_last: bool, lie: str | None
    ) -> str:
        if lie == "garbled":
            return 'data: {"choices": [{"token_ids": ["\n\n'
        token_ids = [VOCABULARY + 5 if lie == "vocabulary" else context[-1]]
        counted = number + 1 if lie == "count" else number
        usage = {"completion_tokens": counted}
        most = body["sampling_params"]["logprobs"]
        logprobs = None
        if most is not None:
            top = [{"token_id": token, "logprob": -1.0 - token} for token in range(most + 1)]
            logprobs = {"content": [{"token_id": token_ids[0], "logprob": -0.5, "top_logprobs": top}]}
        reason = None
        if is_last:
            reason = "stop" if context[-1] in body["sampling_params"]["stop_token_ids"] else "length"
        if self.grammars == "failed" and body["sampling_params"].get("structured_outputs"):
            reason = "error"
        choice = {"index": 0, "token_ids": token_ids, "logprobs": logprobs, "finish_reason": reason}
        return f"data: {json.dumps({'choices': [choice], 'usage': usage, **self.more(body, number)})}\n\n"

    def more(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        """Return further fields of a stream's chunk, counted from 1."""
        return {}

    @contextlib.asynccontextmanager
    async def _slot(self, request_id: str, priority: int) -> AsyncIterator[None]:
        if len(self._running) >= self.slots:
            turn = asyncio.Event()
            self._waiting.append((priority, len(self.asked), turn))
            self._waiting.sort(key=lambda one: one[:2])
            try:
                await turn.wait()
            except BaseException:
                self._waiting = [one for one in self._waiting if one[2] is not turn]
                if turn.is_set():
                    self._let_next()
                raise
        self._running.add(request_id)
        is_whole = False
        self.most_running = max(self.most_running, len(self._running))
        try:
            yield
            is_whole = True
        finally:
            if not is_whole:
                self.aborted.append(request_id)
            self._running.discard(request_id)
            self._let_next()

    def _let_next(self) -> None:
        if self._waiting:
            self._waiting.pop(0)[2].set()


def main(port: str, step_s: str = "0.01", slots: str = "8", blocks: str = "512") -> None:
    """Until killed."""
    VllmStandIn(
        port=int(port), step_s=float(step_s), slots=int(slots), blocks=int(blocks), context_length=1_024
    ).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
