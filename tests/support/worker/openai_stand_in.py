"""A server of OpenAI's `/v1/completions` over the model of vLLM's stand-in: each token is a character of its own.

It speaks as vLLM does (`owner` vllm: token ids in and out), as llama.cpp's server (llamacpp: token ids in, text out),
or as one that knows of text alone (strict: and of no field beyond OpenAI's).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from fairlane.scheduler.protocol.messages import ModelCard
from tests.support.worker.vllm_stand_in import EOS, MODEL, VOCABULARY, VllmStandIn, of_prompt

FIRST = ord("!")
OPENAI_FIELDS = frozenset(
    (
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stream",
        "stream_options",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
    )
)


def spelled(token_ids: Sequence[int]) -> str:
    """The text of these tokens."""
    return "".join(chr(FIRST + token_id) for token_id in token_ids)


def read(text: str) -> list[int]:
    """The tokens of a text; what is none of them is left out."""
    return [ord(character) - FIRST for character in text if 0 <= ord(character) - FIRST < VOCABULARY]


def card() -> ModelCard:
    """Of this model; its end of sequence is a control token."""
    tokenizer = Tokenizer(BPE({spelled([token]): token for token in range(VOCABULARY)}, []))
    tokenizer.add_special_tokens([AddedToken(spelled([EOS]), special=True, normalized=False)])
    tokenizer.decoder = Fuse()
    return ModelCard(
        model=MODEL,
        tokenizer_json=tokenizer.to_str(),
        chat_template=None,
        context_length=256,
        vocab_size=VOCABULARY,
        eos_token_ids=(EOS,),
    )


@dataclass
class OpenAiStandIn(VllmStandIn):
    """One server."""

    owner: str = "vllm"
    open_paths: tuple[str, ...] = ("/v1/models",)
    per_chunk: int = 1
    """Tokens whose text comes together."""
    tried: list[dict[str, Any]] = field(default_factory=list)
    """Requests that were made to find out what it can: they have no seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.takes_ids = self.owner in ("vllm", "llamacpp")

    def _routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._models),
            Route("/props", lambda _: JSONResponse({"total_slots": self.slots})),
            *self._computing(Route("/v1/completions", self._generate, methods=["POST"])),
        ]

    async def _models(self, _: Request) -> Response:
        shown: dict[str, Any] = {"id": self.model, "object": "model", "owned_by": self.owner}
        if self.owner == "llamacpp":
            shown["meta"] = {"n_vocab": VOCABULARY, "n_ctx": 128}
        return JSONResponse({"object": "list", "data": [shown]})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        is_trial = "seed" not in body
        (self.tried if is_trial else self.asked).append(body)
        if self.refuses is not None and not is_trial:
            return JSONResponse({"error": {"message": "no", "code": self.refuses}}, self.refuses)
        prompt = body["prompt"]
        if not isinstance(prompt, str) and not self.takes_ids:
            return JSONResponse({"error": {"message": "prompt must be a string"}}, 400)
        if self.owner == "strict" and set(body) - OPENAI_FIELDS:
            return JSONResponse({"error": {"message": "unknown field"}}, 400)
        if not body["stream"]:
            found = None if self.lies == "unscored" else of_prompt(prompt, body["prompt_logprobs"])
            return JSONResponse({"choices": [{"index": 0, "text": "", "prompt_logprobs": found}]})
        neutral = {
            "request_id": f"{len(self.asked)} {len(self.tried)}",
            "token_ids": read(prompt) if isinstance(prompt, str) else prompt,
            "sampling_params": {
                "max_tokens": body["max_tokens"],
                "stop_token_ids": body.get("stop_token_ids") or ([] if body.get("ignore_eos") else [EOS]),
                "logprobs": body.get("logprobs"),
            },
            "priority": 0,
            "model": None,
            "returns_ids": self.owner == "vllm" and body.get("return_token_ids"),
            "is_counted": body["stream_options"].get("continuous_usage_stats"),
        }
        return StreamingResponse(self._stream(request, neutral), media_type="text/event-stream")

    def _last(self, body: dict[str, Any], number: int) -> str:
        details = {"cached_tokens": len(body["token_ids"]) // 2}  # said at the end alone
        usage = {"prompt_tokens": len(body["token_ids"]), "completion_tokens": number, "prompt_tokens_details": details}
        return f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    def _line(
        self, body: dict[str, Any], context: Sequence[int], number: int, *, is_last: bool, lie: str | None
    ) -> str:
        if lie == "garbled":
            return 'data: {"choices": [{"text": "\n\n'
        so_far = context[len(body["token_ids"]) :]
        new = so_far[-1:]
        if self.per_chunk > 1 and not body["returns_ids"]:
            if not is_last and number % self.per_chunk:
                return ": held\n\n"
            new = so_far[-((number - 1) % self.per_chunk + 1) :]
        if lie == "vocabulary":
            new = [VOCABULARY + 5]
        is_stop = context[-1] in body["sampling_params"]["stop_token_ids"]
        choice: dict[str, Any] = {"index": 0, "text": spelled([token for token in new if token != EOS])}
        choice |= {"finish_reason": ("stop" if is_stop else "length") if is_last else None, "logprobs": None}
        most = body["sampling_params"]["logprobs"]
        if most is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in new],
                "token_logprobs": [-0.5 for _ in new],
                "top_logprobs": [{f"token_id:{token}": -1.0 - token for token in range(most)} for _ in new],
            }
        if body["returns_ids"]:
            choice["token_ids"] = new
        chunk: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
        if body["is_counted"]:
            chunk["usage"] = {
                "prompt_tokens": len(body["token_ids"]),
                "completion_tokens": number + 1 if lie == "count" else number,
            }
        return f"data: {json.dumps(chunk)}\n\n"
