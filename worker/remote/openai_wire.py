"""OpenAI's `/v1/completions` as its servers speak it. vLLM and llama.cpp take fields of their own."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.scheduler.protocol.messages import PositionLogprobs, Sampling
from fairlane.worker.remote.api import Ask, Away, Lied, Refused
from fairlane.worker.remote.http import REFUSED

LEAST_TOP_P = 1e-6
_SEEDS = 2**31
"""llama.cpp's have 32 bits, of which the highest value draws one."""
_OPENAI = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})
_LLAMA = _OPENAI | {"top_k", "min_p", "repetition_penalty", "ignore_eos"}
ALL = _LLAMA | {"min_tokens", "stop_token_ids", "logprobs", "cache_salt"}
"""Fields of a request that not every server takes."""
VLLM, LLAMA = "vllm", "llamacpp"
"""Who owns a model, as `/v1/models` says."""
_TAKES: Mapping[str, frozenset[str]] = {VLLM: ALL, LLAMA: _LLAMA}
_NEED_IDS = frozenset({"min_tokens", "stop_token_ids", "logprobs"})
"""Fields that mean nothing where the server's tokens are not known."""
_ID = "token_id:"
"""What vLLM writes before an id where a token's text would stand."""


class _LogProbs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(msgspec.Struct):
    """What came since the last chunk."""

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: Any = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, what its prefix cache had."""
        details = self.prompt_tokens_details
        return (details.cached_tokens if details is not None else None) or 0


class _Error(msgspec.Struct):
    code: Any = None


class Chunk(msgspec.Struct):
    """One `data:` line of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: _Error | str | None = None

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, what its prefix cache had."""
        return self.usage.cached_tokens if self.usage is not None else 0


_chunk = msgspec.json.Decoder(Chunk)


class Ways(NamedTuple):
    """How a server is asked, and what comes back."""

    model: str
    owner: str
    takes_ids: bool
    """As prompts."""
    says_ids: bool
    trial_tokens: int | None
    """Of the text that it was tried with, as it counts them; None: it was not tried with a text."""

    @property
    def takes(self) -> frozenset[str]:
        """Fields of a request beyond those that all servers take."""
        known = _TAKES.get(self.owner, _OPENAI)
        return known | {"stop_token_ids"} if self.says_ids else known - _NEED_IDS


def trial(model: str, prompt: str | Sequence[int], *, asks_ids: bool) -> dict[str, Any]:
    """For one token."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    return body | {"return_token_ids": True} if asks_ids else body


def body_of(ways: Ways, prompt: str | Sequence[int], ask: Ask) -> dict[str, Any]:
    """What the server takes, and no more: some refuse fields that they do not know."""
    sampling = ask.sampling
    body: dict[str, Any] = {
        "model": ways.model,
        "prompt": prompt,
        "max_tokens": ask.max_tokens,
        "temperature": sampling.temperature,
        "top_p": max(sampling.top_p, LEAST_TOP_P),
        "seed": sampling.seed if ways.owner == VLLM else sampling.seed % _SEEDS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.presence_penalty:
        body["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        body["frequency_penalty"] = sampling.frequency_penalty
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if ways.owner == LLAMA:
        body |= _for_llama(sampling)
    if ways.owner == VLLM:
        body |= _for_vllm(sampling, ask.cache_salt)
    if ways.says_ids:
        body |= {"return_token_ids": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return body


def _for_llama(sampling: Sampling) -> dict[str, Any]:
    """All of them: its defaults are others."""
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
        "ignore_eos": True,  # what ends a choice are the stop tokens that it came with
        "logprobs": sampling.logprobs,
        "return_tokens_as_token_ids": sampling.logprobs is not None,
        "cache_salt": cache_salt,
    }


def read(data: bytes) -> Chunk:
    """Raises Lied, Refused, Away."""
    try:
        chunk = _chunk.decode(data)
    except msgspec.MsgspecError:
        raise Lied("a chunk cannot be read") from None
    if chunk.error is not None:
        status = chunk.error.code if isinstance(chunk.error, _Error) else None
        if status in REFUSED:
            raise Refused(f"the engine refused it with status {status}")
        raise Away("the engine failed in mid-stream")
    if any(choice.finish_reason in ("abort", "error") for choice in chunk.choices):
        raise Away("the engine ended the stream")
    return chunk


def logprobs_of(choice: Choice, most: int) -> list[PositionLogprobs]:
    """vLLM's, which names tokens by their ids where it is asked to; of a position, as many as were asked for."""
    try:
        found = msgspec.convert(choice.logprobs or {}, _LogProbs)
        found_top = found.top_logprobs or [None] * len(found.token_logprobs)
        return [
            PositionLogprobs(logprob if logprob is not None else 0.0, _ranked(top or {}, most))
            for logprob, top in zip(found.token_logprobs, found_top, strict=True)
        ]
    except (msgspec.ValidationError, ValueError):
        raise Lied("log-probabilities cannot be read") from None


def _ranked(top: Mapping[str, float], most: int) -> tuple[tuple[int, float], ...]:
    pairs = [(int(name.removeprefix(_ID)), logprob) for name, logprob in top.items()]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:most])
