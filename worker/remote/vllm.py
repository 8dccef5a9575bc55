"""vLLM's server, by its token-in-token-out interface: `--enable-scale-out` with `--scheduling-policy priority`.

Shapes: vllm/entrypoints/scale_out/token_in_token_out (0.32). Each `data:` line of a stream is one JSON object with
`choices[0].token_ids`, the tokens since the last one, and the running usage; the last is `[DONE]`. A stop token is
among the tokens that it returns.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import httpx
import msgspec

from fairlane.scheduler.protocol.messages import PositionLogprobs
from fairlane.worker.engine.engine import EngineError
from fairlane.worker.remote.api import Ask, Away, Facts, Lied, Piece, Refused

GENERATE, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
KNOWN = ("0.32",)
"""Versions whose interface this is."""
_ANSWER_S = 10.0
_SERVER_ERROR = 500
_REFUSED = frozenset({400, 404, 413, 422})
"""Statuses that would come again."""
_MOST_LINE_BYTES = 8 * 2**20
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{(?P<labels>[^}]*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


Answer = TypeVar("Answer", bound=msgspec.Struct)


class _LogProb(msgspec.Struct):
    token_id: int
    logprob: float


class _TokenLogProbs(_LogProb):
    top_logprobs: list[_LogProb] = []


class _LogProbs(msgspec.Struct):
    content: list[_TokenLogProbs] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)


class VllmApi:
    """One server."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(_ANSWER_S, read=None)  # how long a token may take is for `streams` to say
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=timeout, trust_env=False
        )

    async def facts(self) -> Facts:
        version = await self._get("/version", _Version)
        if not version.version.startswith(tuple(f"{known}." for known in KNOWN)):
            raise EngineError(f"engine_url: vLLM {version.version} is not known here, but {' and '.join(KNOWN)}")
        models = await self._get("/v1/models", _Models)
        if not models.data:
            raise EngineError("engine_url: the server names no model")
        served = models.data[0]
        config = await self._cache_config()
        return Facts(
            version=version.version,
            model=served.id,
            root=served.root or "",
            context_length=served.max_model_len,
            block_size=int(config["block_size"]),
            blocks=int(config["num_gpu_blocks"]),
        )

    async def is_up(self) -> bool:
        try:
            answer = await self._client.get("/health", timeout=_ANSWER_S)
        except httpx.HTTPError:
            return False
        return answer.is_success

    async def generate(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        is_over = False
        try:
            async with self._client.stream("POST", GENERATE, json=_body(ask)) as answer:
                if answer.status_code in _REFUSED:
                    raise Refused(f"the engine refused it with status {answer.status_code}")
                if not answer.is_success:
                    raise Away(f"the engine answered with status {answer.status_code}")
                async with aclosing(_lines(answer)) as lines:
                    async for line in lines:
                        piece = _piece(line, ask.sampling.logprobs or 0)
                        is_over = is_over or piece.has_ended
                        yield piece
        except httpx.HTTPError as error:
            raise Away(type(error).__name__) from None
        except (GeneratorExit, asyncio.CancelledError):
            if not is_over:
                await self._abort(ask.request_id)
            raise

    async def close(self) -> None:
        await self._client.aclose()

    async def _abort(self, request_id: str) -> None:
        """Beside closing the stream, which a proxy between us may not pass on at once."""
        with suppress(httpx.HTTPError):
            ids = [request_id, f"generate-tokens-{request_id}"]
            await self._client.post(ABORT, json={"request_ids": ids}, timeout=_ANSWER_S)

    async def _get(self, path: str, kind: type[Answer]) -> Answer:
        try:
            answer = await self._client.get(path, timeout=_ANSWER_S)
            if answer.status_code in (401, 403):
                raise EngineError("engine_key: the server does not take it")
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=kind)
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= _SERVER_ERROR:
                raise Away(f"the engine answered {path} with status {error.response.status_code}") from None
            raise EngineError(f"engine_url: no vLLM: {path} has status {error.response.status_code}") from None
        except httpx.HTTPError as error:
            raise Away(type(error).__name__) from None
        except msgspec.MsgspecError:
            raise EngineError(f"engine_url: no vLLM: {path} is not as vLLM's") from None

    async def _cache_config(self) -> dict[str, str]:
        """The labels of vLLM's metric of that name."""
        try:
            found = _CACHE_CONFIG.search((await self._client.get("/metrics", timeout=_ANSWER_S)).content)
        except httpx.HTTPError as error:
            raise Away(type(error).__name__) from None
        labels = {name.decode(): value.decode() for name, value in _LABEL.findall(found["labels"] if found else b"")}
        if not (labels.get("block_size", "").isdigit() and labels.get("num_gpu_blocks", "").isdigit()):
            raise EngineError("engine_url: vLLM's /metrics do not say how large its KV cache is")
        return labels


class _Version(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def _body(ask: Ask) -> dict[str, Any]:
    sampling = ask.sampling
    return {
        "request_id": ask.request_id,
        "token_ids": ask.token_ids,
        "sampling_params": {
            "max_tokens": ask.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            "min_tokens": sampling.min_tokens,
            "stop_token_ids": [*sampling.stop_token_ids],
            "ignore_eos": True,  # what ends a choice are the stop tokens that it came with
            "logprobs": sampling.logprobs,
            "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
            "detokenize": False,
        },
        "priority": ask.priority,
        "cache_salt": ask.cache_salt,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The data of a stream of server-sent events, to its `[DONE]`. Raises Lied, and Away where it ends before."""
    rest = b""
    async for part in answer.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MOST_LINE_BYTES:
            raise Lied("a line of the stream is too long")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data
    raise Away("the stream ended before its end")


def _piece(data: bytes, most: int) -> Piece:
    """What one chunk says. `most`: log-probabilities asked for at each position."""
    try:
        chunk = _chunk.decode(data)
    except msgspec.MsgspecError:
        raise Lied("a chunk cannot be read") from None
    if chunk.error is not None:
        raise Away("the engine failed in mid-stream")
    usage = chunk.usage
    counted = usage.completion_tokens if usage is not None else None
    details = usage.prompt_tokens_details if usage is not None else None
    cached = (details.cached_tokens if details is not None else None) or 0
    if not chunk.choices:
        return Piece(counted=counted, cached_tokens=cached)
    choice = chunk.choices[0]
    if choice.finish_reason in ("abort", "error"):
        raise Away("the engine ended the stream")
    logprobs = _logprobs(choice.logprobs.content if choice.logprobs is not None else None, most)
    return Piece(choice.token_ids or (), logprobs, counted, cached, choice.finish_reason is not None)


def _logprobs(content: Sequence[_TokenLogProbs] | None, most: int) -> list[PositionLogprobs]:
    """vLLM puts the drawn token first, whether it is among the likeliest or not."""
    found = []
    for one in content or ():
        ranked = sorted({(other.token_id, other.logprob) for other in one.top_logprobs}, key=lambda pair: -pair[1])
        found.append(PositionLogprobs(one.logprob, tuple(ranked[:most])))
    return found
