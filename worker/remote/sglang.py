"""SGLang's server, by its own `/generate`: token ids in and out. Each `data:` line of a stream is one JSON object.

`output_ids` and log-probabilities cover the request so far, or with `--incremental-streaming-output` the time since the
previous line. With `ignore_eos` SGLang ignores `stop_token_ids` too: the reader of the stream ends it there."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from fairlane.scheduler.protocol.messages import ModelCard, PositionLogprobs
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.api import Api, EngineUnavailable, Facts, GenerationRequest, Piece, ProtocolViolation
from fairlane.worker.remote.http import Answer, Http, ServedModel, decode_chunk, stream_failure
from fairlane.worker.remote.prompt_logprobs import missing

log = logging.getLogger(__name__)

GENERATE, ABORT = "/generate", "/abort_request"
# Supported versions.
KNOWN = ("0.5",)
# Minimum block size in tokens. SGLang's pages may hold one token; the planner counts larger ones.
LEAST_BLOCK = 16
LEAST_TOP_P = 1e-6
LACKS = ("allowed_token_ids", "bad_words")

_ENDED = "the engine ended the stream"
_Logprob = tuple[float, int, str | None]


class _ServerInfo(msgspec.Struct):
    version: str
    max_total_num_tokens: int
    page_size: int | None = None
    dp_size: int | None = None
    max_running_requests: int | None = None
    incremental_streaming_output: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False


class _ModelInfo(msgspec.Struct):
    model_path: str = ""


class _End(msgspec.Struct):
    type: str
    status_code: int | None = None


class _Meta(msgspec.Struct):
    finish_reason: _End | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_Logprob] = []
    output_top_logprobs: list[list[_Logprob] | None] = []
    input_token_logprobs: list[tuple[float | None, int, str | None]] = []
    input_top_logprobs: list[list[_Logprob] | None] = []


class _Error(msgspec.Struct):
    code: int | None = None


class _Chunk(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta = msgspec.field(default_factory=_Meta)
    error: _Error | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _Behaviour(NamedTuple):
    model: str
    is_incremental: bool
    # Factor from our priorities (lower first) to the server's; 0 if it orders by none, and gets none.
    priority_sign: int


class SglangApi(Api):
    """One SGLang server."""

    def __init__(self, url: str, key: str | None, model: str | None = None) -> None:
        """`model` is the required name of the server's model; None accepts any."""
        self._url, self._key, self._model = url, key, model
        self._http = Http(url, key, "SGLang")
        self._behaviour: _Behaviour | None = None

    async def facts(self) -> Facts:
        info, served = await self._learn()
        root = await self._first("/model_info", "/get_model_info", _ModelInfo)
        if not info.enable_priority_scheduling:
            log.warning("SGLang ignores priorities: it runs without --enable-priority-scheduling")
        ranks, block_size = info.dp_size or 1, max(info.page_size or 1, LEAST_BLOCK)
        return Facts(
            version=info.version,
            model=served.id,
            root=root.model_path,
            context_length=served.max_model_len,
            block_size=block_size,
            blocks=ranks * info.max_total_num_tokens // block_size,
            sequences=ranks * info.max_running_requests if info.max_running_requests else None,
            lacks=LACKS,
        )

    def serving(self, card: ModelCard) -> "SglangApi":
        return SglangApi(self._url, self._key, card.model)

    async def is_up(self) -> bool:
        """Return whether it is healthy, and read its arguments again, which may change with a restart."""
        self._behaviour = None
        try:
            return await self._http.is_healthy("/health") and bool(await self._learn())
        except EngineUnavailable:
            return False

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        if self._behaviour is None:
            await self._learn()
        behaviour = self._behaviour
        assert behaviour is not None  # noqa: S101 - set by `_learn`
        # SGLang aborts all requests whose ids share a prefix: no id may be a prefix of another.
        rid, reader = f"{request.request_id}.", _Reader(request, is_incremental=behaviour.is_incremental)
        body = _body(request, rid, behaviour.priority_sign)
        if request.sampling.prompt_logprobs is not None:
            yield Piece(prompt_logprobs=await self._prompt_logprobs(request, body, request.sampling.prompt_logprobs))
        async with aclosing(self._http.pieces(GENERATE, body, reader.read, (ABORT, {"rid": rid}))) as pieces:
            async for piece in pieces:
                yield piece

    async def _prompt_logprobs(
        self, request: GenerationRequest, body: dict[str, Any], most: int
    ) -> list[PositionLogprobs]:
        params = {**body["sampling_params"], "max_new_tokens": 1, "min_new_tokens": 0}
        asked = {**body, "rid": f"{request.request_id}-prompt.", "sampling_params": params, "stream": False}
        asked |= {"return_logprob": True, "top_logprobs_num": most, "logprob_start_len": 0}
        meta = (await self._http.answer(GENERATE, asked, _Chunk)).meta_info
        return _of_prompt(request.token_ids, meta, most)

    async def close(self) -> None:
        await self._http.close()

    async def _learn(self) -> tuple[_ServerInfo, ServedModel]:
        info = await self._first("/server_info", "/get_server_info", _ServerInfo)
        self._http.check_version(info.version, KNOWN)
        served, _ = await self._http.models(None)
        if self._model is not None and served.id != self._model:
            raise EngineError(f"engine_model: the server has no {self._model!r}, but {served.id}")
        sign = (1 if info.schedule_low_priority_values_first else -1) if info.enable_priority_scheduling else 0
        self._behaviour = _Behaviour(served.id, info.incremental_streaming_output, sign)
        return info, served

    async def _first(self, path: str, older: str, kind: type[Answer]) -> Answer:
        return await self._http.find(path, kind) or await self._http.get(older, kind)


class _Reader:
    def __init__(self, request: GenerationRequest, *, is_incremental: bool) -> None:
        self._is_incremental = is_incremental
        self._most = request.sampling.logprobs
        self._so_far: list[int] = []

    def read(self, data: bytes) -> Piece:
        chunk = decode_chunk(_chunk, data)
        meta = chunk.meta_info
        if chunk.error is not None:
            raise stream_failure(chunk.error.code, _ENDED)
        if meta.finish_reason is not None and meta.finish_reason.type == "abort":
            raise stream_failure(meta.finish_reason.status_code, _ENDED)
        first = 0 if self._is_incremental else len(self._so_far)
        if not self._is_incremental and chunk.output_ids[:first] != self._so_far:
            raise ProtocolViolation("its earlier output has changed")
        token_ids = chunk.output_ids[first:]
        self._so_far += token_ids
        logprobs = () if self._most is None else _logprobs(meta, first, self._most)
        return Piece(token_ids, logprobs, meta.completion_tokens, meta.cached_tokens or 0, bool(meta.finish_reason))


def _logprobs(meta: _Meta, first: int, most: int) -> list[PositionLogprobs]:
    found = []
    for place, (logprob, _, _) in enumerate(meta.output_token_logprobs[first:], first):
        top: Sequence[_Logprob] = ()
        if place < len(meta.output_top_logprobs):
            top = meta.output_top_logprobs[place] or ()
        found.append(PositionLogprobs(logprob, tuple((token_id, value) for value, token_id, _ in top[:most])))
    return found


def _of_prompt(prompt: Sequence[int], meta: _Meta, most: int) -> list[PositionLogprobs]:
    if [token_id for _, token_id, _ in meta.input_token_logprobs] != [*prompt]:
        raise missing()
    tops = meta.input_top_logprobs or [None] * len(prompt)
    found = []
    for token_id, (logprob, _, _), listed in zip(prompt[1:], meta.input_token_logprobs[1:], tops[1:], strict=True):
        if logprob is None:
            raise missing()
        top = tuple((other, value) for value, other, _ in (listed or ())[:most])
        ranks = {other: rank for rank, (other, _) in enumerate(top, 1)}
        found.append(PositionLogprobs(logprob, top, ranks.get(token_id, 0)))
    return found


def _body(request: GenerationRequest, rid: str, priority_sign: int) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": request.token_ids,
        "sampling_params": {
            "max_new_tokens": request.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_p": max(sampling.top_p, LEAST_TOP_P),
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop_token_ids": [*sampling.stop_token_ids],
            "ignore_eos": True,
            "sampling_seed": sampling.seed,
            "logit_bias": {str(token): bias for token, bias in sampling.logit_bias},
        },
        "stream": True,
        "extra_key": request.cache_salt,
    }
    if priority_sign:
        body["priority"] = priority_sign * request.priority
    if sampling.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs, "logprob_start_len": -1}
    return body
