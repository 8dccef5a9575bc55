"""vLLM's server, by its token-in-token-out interface: `--enable-scale-out` with `--scheduling-policy priority`.

Shapes: vllm/entrypoints/scale_out/token_in_token_out (0.32, 0.33). A stop token is included in the tokens."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from fairlane.scheduler.protocol import engine_priority
from fairlane.scheduler.protocol.media import MediaKind
from fairlane.scheduler.protocol.messages import ModelCard, PositionLogprobs, Sampling
from fairlane.worker.errors import EngineError
from fairlane.worker.remote import media
from fairlane.worker.remote.api import (
    Api,
    EngineUnavailable,
    Facts,
    GenerationRequest,
    Piece,
    ProtocolViolation,
    Refused,
)
from fairlane.worker.remote.http import Http
from fairlane.worker.remote.lark import HEADER
from fairlane.worker.remote.openai_wire import read
from fairlane.worker.remote.prompt_logprobs import VllmPrompt, read_vllm
from fairlane.worker.vllm.lane_policy import BEGUN, PACED

GENERATE, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
# Supported versions.
KNOWN = ("0.32", "0.33")
# vLLM takes bad words as text only, which a worker does not have.
LACKS = ("bad_words",)
_CLOSED = frozenset({403, 404})
# Token ids for the grammar probe, which every vocabulary has.
_TRIAL = (40, 41, 42)
# Time limit of the probe: the server's first grammar takes seconds.
_TRIAL_S = 60.0
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{(?P<labels>[^}]*)\}", re.MULTILINE)
_STARTED = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


class _LogProb(msgspec.Struct):
    token_id: int
    logprob: float


class _TokenLogProbs(_LogProb):
    top_logprobs: list[_LogProb] = []


class _LogProbs(msgspec.Struct):
    content: list[_TokenLogProbs] | None = None


class _Whole(media.Expansion):
    prompt_logprobs: VllmPrompt | None = None


class _ProbeResult(NamedTuple):
    started: bytes
    takes_grammars: bool
    resumes_grammars: bool
    media: Mapping[MediaKind, media.Placing]


class VllmApi(Api):
    """One model of a server: its base model, or an adapter."""

    def __init__(self, url: str, key: str | None, model: str | None = None) -> None:
        self._url, self._key, self._model = url, key, model
        self._http = Http(url, key, "vLLM")
        self._probed: _ProbeResult | None = None

    async def facts(self) -> Facts:
        version = await self._http.get("/version", _Version)
        self._http.check_version(version.version, KNOWN)
        served, models = await self._http.models(self._model)
        base = models.get(served.parent or "", served)
        metrics = await self._http.text("/metrics")
        config, probed = _cache_config(metrics), await self._probe(metrics)
        return Facts(
            version=version.version,
            model=served.id,
            root=base.root or "",
            context_length=served.max_model_len or base.max_model_len,
            block_size=int(config["block_size"]),
            blocks=int(config["num_gpu_blocks"]),
            adapter=(served.root or served.id) if served.parent else "",
            takes_grammars=probed.takes_grammars,
            resumes_grammars=probed.resumes_grammars,
            lacks=LACKS,
            media={kind: placing.form for kind, placing in probed.media.items()},
        )

    def serving(self, card: ModelCard) -> "VllmApi":
        other = VllmApi(self._url, self._key, card.model)
        other._probed = self._probed
        return other

    async def _probe(self, metrics: bytes) -> _ProbeResult:
        """Probe grammars and media once per start of the server, because a probe occupies a slot."""
        started = _started(metrics)
        if self._probed is None or self._probed.started != started:
            await self._check_interface()
            takes = await self._completes(started, begun=0)
            resumes = takes and await self._completes(started, begun=1)
            self._probed = _ProbeResult(started, takes, resumes, await self._media(started))
        return self._probed

    async def _media(self, started: bytes) -> Mapping[MediaKind, media.Placing]:
        """Return the kinds of media that the model takes. Raises EngineUnavailable as `_completes` does."""
        try:
            async with asyncio.timeout(_TRIAL_S):
                found = await media.find(self._http, self._model, self._expand)
        except TimeoutError:
            raise EngineUnavailable("it does not answer in time") from None
        if not await self._still_runs(started):
            raise EngineUnavailable("it was restarted")
        return found

    async def _expand(self, request: GenerationRequest, targets: Mapping[MediaKind, int]) -> media.Expansion:
        body = _whole(_body(request, self._model) | media.fields(request, targets))
        return await self._http.answer(GENERATE, body, media.Expansion)

    async def _still_runs(self, started: bytes) -> bool:
        return await self._http.is_healthy("/health") and _started(await self._http.text("/metrics")) == started

    async def _completes(self, started: bytes, begun: int) -> bool:
        """Return whether the server completes a grammar of which `begun` tokens are in the prompt.

        Raises EngineUnavailable if it does not reply, or was restarted since `started`."""
        first, *rest = _TRIAL
        request = GenerationRequest(
            request_id=f"trial-{begun}-{time.time_ns()}",
            token_ids=[first, *rest[:begun]],
            max_tokens=len(rest) - begun,
            sampling=Sampling(temperature=0.0),
            priority=engine_priority.encode(0, 0.0, guaranteed=True),
            cache_salt="trial",
            grammar="\n".join([HEADER, "start: " + " ".join(f"<[{token}]>" for token in rest)]),
            begun=begun,
        )
        try:
            async with asyncio.timeout(_TRIAL_S), aclosing(self.generate(request)) as pieces:
                came = [token async for piece in pieces for token in piece.token_ids]
        except TimeoutError:
            raise EngineUnavailable("it does not answer in time") from None
        except Refused:
            return False
        except (EngineUnavailable, ProtocolViolation) as error:
            if await self._still_runs(started):
                return False  # its grammar support fails
            raise EngineUnavailable(str(error)) from None
        return came == rest[begun:]

    async def is_up(self) -> bool:
        return await self._http.is_healthy("/health")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        ids, most = [request.request_id, f"generate-tokens-{request.request_id}"], request.sampling.logprobs or 0
        body = _body(request, self._model)
        if request.media:
            body |= media.fields(request, self._targets)
        if request.sampling.prompt_logprobs is not None:
            yield Piece(prompt_logprobs=await self._prompt_logprobs(request, body, request.sampling.prompt_logprobs))
        reads = media.checking(request, lambda line: _piece(line, most))
        run = self._http.pieces(GENERATE, body, reads, (ABORT, {"request_ids": ids}))
        async with aclosing(run) as pieces:
            async for piece in pieces:
                yield piece

    async def _prompt_logprobs(
        self, request: GenerationRequest, body: dict[str, Any], most: int
    ) -> list[PositionLogprobs]:
        changes = {"max_tokens": 1, "min_tokens": 0, "logprobs": None, "prompt_logprobs": most}
        params = {**body["sampling_params"], **changes, "structured_outputs": None, "extra_args": {PACED: 1}}
        asked = _whole({**body, "request_id": f"{request.request_id}-prompt", "sampling_params": params})
        found = await self._http.answer(GENERATE, asked, _Whole)
        prompt = media.check(request, found) if request.media else request.token_ids
        return read_vllm(prompt, found.prompt_logprobs, most)

    async def measure(self, kind: MediaKind, data: bytes) -> int:
        return await media.measure(self._http, self._model, kind, data)

    @property
    def _targets(self) -> Mapping[MediaKind, int]:
        return {} if self._probed is None else {kind: one.target for kind, one in self._probed.media.items()}

    async def close(self) -> None:
        await self._http.close()

    async def _check_interface(self) -> None:
        status = await self._http.post_status(ABORT, {"request_ids": []})
        if status is None:
            raise EngineUnavailable("it does not answer")
        if status in _CLOSED:
            raise EngineError("engine_url: vLLM's token interface is disabled: start it with --enable-scale-out")


def _started(metrics: bytes) -> bytes:
    found = _STARTED.search(metrics)
    return found[1] if found else b""


def _cache_config(metrics: bytes) -> dict[str, str]:
    found = _CACHE_CONFIG.search(metrics)
    labels = {name.decode(): value.decode() for name, value in _LABEL.findall(found["labels"] if found else b"")}
    if not (labels.get("block_size", "").isdigit() and labels.get("num_gpu_blocks", "").isdigit()):
        raise EngineError("engine_url: vLLM's /metrics do not report the size of its KV cache")
    return labels


class _Version(msgspec.Struct):
    version: str


def _body(request: GenerationRequest, model: str | None) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": model,
        "request_id": request.request_id,
        "token_ids": request.token_ids,
        "sampling_params": {
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            "min_tokens": 0
            if request.grammar
            else sampling.min_tokens,  # it would leave no allowed token at a grammar's end
            "stop_token_ids": [*sampling.stop_token_ids],
            "ignore_eos": True,  # only the request's stop tokens end a choice
            "logprobs": sampling.logprobs,
            "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
            "allowed_token_ids": [*sampling.allowed_token_ids] or None,
            "detokenize": False,
            "structured_outputs": {"grammar": request.grammar} if request.grammar else None,
            "extra_args": {PACED: 1, BEGUN: request.begun} if request.begun else {PACED: 1},
        },
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    """Ask for a reply in one piece."""
    return {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False}


def _piece(data: bytes, most: int) -> Piece:
    try:
        chunk = read(data)
    except Refused:  # vLLM reports its own faults with status 400 too
        raise EngineUnavailable("the engine failed mid-stream") from None
    if not chunk.choices:
        return Piece(counted=chunk.counted, cached_tokens=chunk.cached_tokens)
    choice = chunk.choices[0]
    logprobs = () if choice.logprobs is None else _logprobs(choice.logprobs, most)
    has_ended = choice.finish_reason is not None
    return Piece(choice.token_ids or (), logprobs, chunk.counted, chunk.cached_tokens, has_ended)


def _logprobs(found: object, most: int) -> list[PositionLogprobs]:
    """Convert log-probabilities. vLLM puts the drawn token first, whether or not it is among the most likely."""
    try:
        positions = msgspec.convert(found, _LogProbs).content or ()
    except msgspec.ValidationError:
        raise ProtocolViolation("log-probabilities cannot be read") from None
    logprobs = []
    for one in positions:
        ranked = sorted({(other.token_id, other.logprob) for other in one.top_logprobs}, key=lambda pair: -pair[1])
        logprobs.append(PositionLogprobs(one.logprob, tuple(ranked[:most])))
    return logprobs
