"""The protocol of OpenAI's `/v1/completions`, with the additional fields of vLLM and llama.cpp."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.scheduler.protocol.messages import PositionLogprobs, Sampling
from fairlane.worker.remote.api import EngineUnavailable, GenerationRequest, ProtocolViolation
from fairlane.worker.remote.http import decode_chunk, stream_failure

LEAST_TOP_P = 1e-6
# llama.cpp's seeds have 32 bits, of which the highest value means random.
_SEEDS = 2**31
_OPENAI = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})
_LLAMA = _OPENAI | {"top_k", "min_p", "repetition_penalty", "ignore_eos"}
# Request fields that not every server accepts.
ALL = _LLAMA | {"min_tokens", "stop_token_ids", "logprobs", "cache_salt"}
ALL |= {"allowed_token_ids", "bad_words", "prompt_logprobs"}
# Owners of a model, as reported by `/v1/models`.
VLLM, LLAMA = "vllm", "llamacpp"
_TAKES: Mapping[str, frozenset[str]] = {VLLM: ALL - {"bad_words"}, LLAMA: _LLAMA}
# Fields that require a server which reports token ids.
_NEED_IDS = frozenset({"min_tokens", "stop_token_ids", "logprobs", "allowed_token_ids", "prompt_logprobs"})
# vLLM's prefix of an id in place of a token's text.
_ID = "token_id:"


class _LogProbs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(msgspec.Struct):
    """The content since the previous chunk."""

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: Any = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The token counts so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct):
    code: Any = None


class Chunk(msgspec.Struct):
    """One `data:` line of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: _Error | str | None = None

    @property
    def counted(self) -> int | None:
        return self.usage.completion_tokens if self.usage is not None else None

    @property
    def cached_tokens(self) -> int:
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return (details.cached_tokens if details is not None else None) or 0


_chunk = msgspec.json.Decoder(Chunk)


class WireFormat(NamedTuple):
    """The form of a server's requests and replies."""

    model: str
    owner: str
    # As prompts.
    takes_ids: bool
    returns_ids: bool
    # The server's token count of the probe's text; None if it was probed with ids.
    trial_tokens: int | None

    @property
    def takes(self) -> frozenset[str]:
        known = _TAKES.get(self.owner, _OPENAI)
        return known | {"stop_token_ids"} if self.returns_ids else known - _NEED_IDS


def trial(model: str, prompt: str | Sequence[int], *, asks_ids: bool) -> dict[str, Any]:
    """Return the body of a probe that requests one token."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    return body | {"return_token_ids": True} if asks_ids else body


def body_of(wire: WireFormat, prompt: str | Sequence[int], request: GenerationRequest) -> dict[str, Any]:
    """Return a body with only the fields that the server accepts, since some servers reject unknown ones."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": wire.model,
        "prompt": prompt,
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": max(sampling.top_p, LEAST_TOP_P),
        "seed": sampling.seed if wire.owner == VLLM else sampling.seed % _SEEDS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.presence_penalty:
        body["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        body["frequency_penalty"] = sampling.frequency_penalty
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if wire.owner == LLAMA:
        body |= _for_llama(sampling)
    if wire.owner == VLLM:
        body |= _for_vllm(sampling, request.cache_salt)
    if wire.returns_ids:
        body |= {"return_token_ids": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return body


def _for_llama(sampling: Sampling) -> dict[str, Any]:
    # Set every field, because llama.cpp's defaults differ.
    return {
        "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "ignore_eos": not sampling.stop_token_ids,
    }


def _for_vllm(sampling: Sampling, cache_salt: str) -> dict[str, Any]:
    return {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "min_tokens": sampling.min_tokens,
        "stop_token_ids": [*sampling.stop_token_ids],
        "ignore_eos": True,  # only the request's stop tokens end a choice
        "logprobs": sampling.logprobs,
        "allowed_token_ids": [*sampling.allowed_token_ids] or None,
        "return_tokens_as_token_ids": sampling.logprobs is not None,
        "cache_salt": cache_salt,
    }


def read(data: bytes) -> Chunk:
    """Decode a chunk. Raises ProtocolViolation, Refused, EngineUnavailable."""
    chunk = decode_chunk(_chunk, data)
    if chunk.error is not None:
        status = chunk.error.code if isinstance(chunk.error, _Error) else None
        raise stream_failure(status, "the engine failed mid-stream")
    if any(choice.finish_reason in ("abort", "error") for choice in chunk.choices):
        raise EngineUnavailable("the engine ended the stream")
    return chunk


def logprobs_of(choice: Choice, most: int) -> list[PositionLogprobs]:
    """Parse vLLM's log-probabilities, which name tokens by id on request; at most `most` per position."""
    try:
        found = msgspec.convert(choice.logprobs or {}, _LogProbs)
        found_top = found.top_logprobs or [None] * len(found.token_logprobs)
        return [
            PositionLogprobs(logprob if logprob is not None else 0.0, _ranked(top or {}, most))
            for logprob, top in zip(found.token_logprobs, found_top, strict=True)
        ]
    except (msgspec.ValidationError, ValueError):
        raise ProtocolViolation("log-probabilities cannot be read") from None


def _ranked(top: Mapping[str, float], most: int) -> tuple[tuple[int, float], ...]:
    pairs = [(int(name.removeprefix(_ID)), logprob) for name, logprob in top.items()]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:most])
