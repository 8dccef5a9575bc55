"""A server with SGLang's `/generate`, as its sources (0.5) define it, over the model of vLLM's stand-in."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.worker.vllm_stand_in import MODEL, VOCABULARY, VllmStandIn

CONTRACT = frozenset(
    (
        "max_new_tokens",
        "min_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "stop_token_ids",
        "ignore_eos",
        "sampling_seed",
        "logit_bias",
    )
)
"""Of its `sampling_params`, those that are used here; one that it does not know is an error."""


@dataclass
class SglangStandIn(VllmStandIn):
    """One server. `aborted` are the ids of requests, with what begins like them."""

    version: str = "0.5.23"
    is_incremental: bool = False
    orders: str | None = "high"
    """Which priority it runs first: `high` or `low`; None: it orders by none."""
    fails_in_stream: int | None = None
    """Refuses requests with this code in the stream, whose status is 200 by then."""
    has_old_paths: bool = False

    def _routes(self) -> list[Route]:
        before = "/get_" if self.has_old_paths else "/"
        return [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route(f"{before}model_info", lambda _: JSONResponse({"model_path": "", "is_generation": True})),
            Route(f"{before}server_info", self._server_info),
            *self._computing(
                Route("/generate", self._generate, methods=["POST"]),
                Route("/abort_request", self._abort, methods=["POST"]),
            ),
        ]

    def _ranked(self, results: list[dict[str, Any]]) -> Any:
        return [
            {"score": one["relevance_score"], "document": one["document"]["text"], "index": one["index"]}
            for one in results
        ]

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self.model, "root": MODEL, "max_model_len": 256}]})

    async def _server_info(self, _: Request) -> Response:
        return JSONResponse(
            {
                "model_path": "",
                "page_size": 1,
                "dp_size": 1,
                "max_running_requests": self.slots,
                "incremental_streaming_output": self.is_incremental,
                "enable_priority_scheduling": self.orders is not None,
                "schedule_low_priority_values_first": self.orders == "low",
                "max_total_num_tokens": self.blocks * self.block_size,
                "max_req_input_len": 250,
                "internal_states": [{}],
                "version": self.version,
            }
        )

    async def _abort(self, request: Request) -> Response:
        self.aborted.append((await request.json())["rid"])
        return Response()

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        sampling = body["sampling_params"]
        if self.refuses is not None or set(sampling) - CONTRACT:
            return JSONResponse({"error": "no"}, self.refuses or 400)
        if self.fails_in_stream is not None:
            return StreamingResponse(self._failure(), media_type="text/event-stream")
        stops = [] if sampling["ignore_eos"] else sampling["stop_token_ids"]
        sign = -1 if self.orders == "high" else 1
        if not body["stream"]:
            most, meta = body["top_logprobs_num"], dict[str, Any]()
            if self.lies != "unscored" and body["logprob_start_len"] == 0:
                first, *rest = body["input_ids"]
                meta["input_token_logprobs"] = [[None, first, None], *([-0.5, token, None] for token in rest)]
                tops = [[-0.5, token, None] for token in rest]
                others = [[-1.0 - token, token, None] for token in range(most)]
                meta["input_top_logprobs"] = [None, *([top, *others][:most] for top in tops)]
            return JSONResponse({"text": "", "output_ids": [3], "meta_info": meta})
        neutral = {
            "request_id": body["rid"],
            "token_ids": body["input_ids"],
            "sampling_params": {
                "max_tokens": sampling["max_new_tokens"],
                "stop_token_ids": stops,
                "logprobs": body["top_logprobs_num"] if body.get("return_logprob") else None,
            },
            "priority": sign * body.get("priority", 0),
            "model": None,
        }
        return StreamingResponse(self._stream(request, neutral), media_type="text/event-stream")

    async def _failure(self) -> AsyncIterator[str]:
        error = {"message": "no", "type": "invalid_request_error", "code": self.fails_in_stream, "retryable": False}
        yield f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"

    def _last(self, _: dict[str, Any], __: int) -> str:
        return "data: [DONE]\n\n"

    def _line(
        self, body: dict[str, Any], context: Sequence[int], number: int, *, is_last: bool, lie: str | None
    ) -> str:
        if lie == "garbled":
            return 'data: {"output_ids": ["\n\n'
        output_ids = [*context[len(body["token_ids"]) :]]
        if lie == "vocabulary":
            output_ids[-1] = VOCABULARY + 5
        meta: dict[str, Any] = {
            "id": body["request_id"],
            "finish_reason": {"type": "length", "length": number} if is_last else None,
            "prompt_tokens": len(body["token_ids"]),
            "completion_tokens": number + 1 if lie == "count" else number,
            "cached_tokens": len(body["token_ids"]) // 2,
        }
        most = body["sampling_params"]["logprobs"]
        if most is not None:
            meta["output_token_logprobs"] = [[-0.5, token, None] for token in output_ids]
            meta["output_top_logprobs"] = [[[-1.0 - token, token, None] for token in range(most)] for _ in output_ids]
        if self.is_incremental:
            output_ids = output_ids[-1:]
            meta |= {name: value[-1:] for name, value in meta.items() if name.endswith("logprobs")}
        return f"data: {json.dumps({'text': '', 'output_ids': output_ids, 'meta_info': meta})}\n\n"
