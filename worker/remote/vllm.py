"""vLLM's server, by its token-in-token-out interface: `--enable-scale-out` with `--scheduling-policy priority`.

Shapes: vllm/entrypoints/scale_out/token_in_token_out (0.32). Each `data:` line of a stream is one JSON object with
`choices[0].token_ids`, the tokens since the previous line, and the running usage; the last line is `[DONE]`. A stop
token is included in the tokens.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from fairlane.scheduler.protocol import engine_priority
from fairlane.scheduler.protocol.messages import ModelCard, PositionLogprobs, Sampling
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.api import EngineUnavailable, Facts, GenerationRequest, Piece, ProtocolViolation, Refused
from fairlane.worker.remote.http import Http
from fairlane.worker.remote.lark import HEADER
from fairlane.worker.remote.openai_wire import Usage
from fairlane.worker.vllm.lane_policy import BEGUN, PACED

GENERATE, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
# Supported versions.
KNOWN = ("0.32",)
_CLOSED = frozenset({403, 404})
# Token ids that every vocabulary has, for the grammar probe.
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


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)


class _ProbeResult(NamedTuple):
    """The result of the grammar probe, valid for one server process."""

    started: bytes
    takes_grammars: bool
    resumes_grammars: bool


class VllmApi:
    """One model of a server: its base model, or an adapter."""

    def __init__(self, url: str, key: str | None, model: str | None = None) -> None:
        self._url, self._key, self._model = url, key, model
        self._http = Http(url, key, "vLLM")
        self._probed: _ProbeResult | None = None

    async def facts(self) -> Facts:
        version = await self._http.get("/version", _Version)
        if not version.version.startswith(tuple(f"{known}." for known in KNOWN)):
            raise EngineError(f"engine_url: vLLM {version.version} is not known here, but {' and '.join(KNOWN)}")
        served, base = _chosen((await self._http.get("/v1/models", _Models)).data, self._model)
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
        )

    def serving(self, card: ModelCard) -> "VllmApi":
        other = VllmApi(self._url, self._key, card.model)
        other._probed = self._probed
        return other

    async def _probe(self, metrics: bytes) -> _ProbeResult:
        """Probe grammars once per start of the server, because a probe occupies a slot."""
        started = _started(metrics)
        if self._probed is None or self._probed.started != started:
            await self._check_interface()
            takes = await self._completes(started, begun=0)
            self._probed = _ProbeResult(started, takes, takes and await self._completes(started, begun=1))
        return self._probed

    async def _completes(self, started: bytes, begun: int) -> bool:
        """Return whether the server completes a grammar of which `begun` tokens are in the prompt.

        Raises EngineUnavailable if it does not reply, or was restarted since `started`.
        """
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
            if await self._http.is_healthy("/health") and _started(await self._http.text("/metrics")) == started:
                return False  # its grammar support fails
            raise EngineUnavailable(str(error)) from None
        return came == rest[begun:]

    async def is_up(self) -> bool:
        """Return whether it is healthy. Its facts, which are checked with this, say what it serves."""
        return await self._http.is_healthy("/health")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        is_over = False
        try:
            async with aclosing(self._http.events(GENERATE, _body(request, self._model))) as lines:
                async for line in lines:
                    piece = _piece(line, request.sampling.logprobs or 0)
                    is_over = is_over or piece.has_ended
                    yield piece
        except (GeneratorExit, asyncio.CancelledError):
            if not is_over:
                await self._abort(request.request_id)
            raise

    async def close(self) -> None:
        await self._http.close()

    async def _check_interface(self) -> None:
        status = await self._http.post_status(ABORT, {"request_ids": []})
        if status is None:
            raise EngineUnavailable("it does not answer")
        if status in _CLOSED:
            raise EngineError("engine_url: vLLM keeps its token interface closed: start it with --enable-scale-out")

    async def _abort(self, request_id: str) -> None:
        """Abort explicitly, since a proxy may not forward the closing of the stream at once."""
        await self._http.post_status(ABORT, {"request_ids": [request_id, f"generate-tokens-{request_id}"]})


def _started(metrics: bytes) -> bytes:
    found = _STARTED.search(metrics)
    return found[1] if found else b""


def _cache_config(metrics: bytes) -> dict[str, str]:
    found = _CACHE_CONFIG.search(metrics)
    labels = {name.decode(): value.decode() for name, value in _LABEL.findall(found["labels"] if found else b"")}
    if not (labels.get("block_size", "").isdigit() and labels.get("num_gpu_blocks", "").isdigit()):
        raise EngineError("engine_url: vLLM's /metrics do not say how large its KV cache is")
    return labels


class _Version(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    # An adapter's base model.
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def _chosen(models: Sequence[_Model], name: str | None) -> tuple[_Model, _Model]:
    """Return the named model, or the first, and its base model. Raises EngineError if the server does not have it."""
    if not models:
        raise EngineError("engine_url: the server names no model")
    by_name = {one.id: one for one in models}
    served = models[0] if name is None else by_name.get(name)
    if served is None:
        raise EngineError(f"engine_model: the server has no {name!r}, but {', '.join(by_name)}")
    return served, by_name.get(served.parent or "", served)


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
            "detokenize": False,
            "structured_outputs": {"grammar": request.grammar} if request.grammar else None,
            "extra_args": {PACED: 1, BEGUN: request.begun} if request.begun else {PACED: 1},
        },
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _piece(data: bytes, most: int) -> Piece:
    try:
        chunk = _chunk.decode(data)
    except msgspec.MsgspecError:
        raise ProtocolViolation("a chunk cannot be read") from None
    if chunk.error is not None:
        raise EngineUnavailable("the engine failed in mid-stream")
    usage = chunk.usage
    counted = usage.completion_tokens if usage is not None else None
    cached = usage.cached_tokens if usage is not None else 0
    if not chunk.choices:
        return Piece(counted=counted, cached_tokens=cached)
    choice = chunk.choices[0]
    if choice.finish_reason in ("abort", "error"):
        raise EngineUnavailable("the engine ended the stream")
    logprobs = _logprobs(choice.logprobs.content if choice.logprobs is not None else None, most)
    return Piece(choice.token_ids or (), logprobs, counted, cached, choice.finish_reason is not None)


def _logprobs(content: Sequence[_TokenLogProbs] | None, most: int) -> list[PositionLogprobs]:
    """Convert log-probabilities. vLLM puts the drawn token first, whether it is among the likeliest or not."""
    found = []
    for one in content or ():
        ranked = sorted({(other.token_id, other.logprob) for other in one.top_logprobs}, key=lambda pair: -pair[1])
        found.append(PositionLogprobs(one.logprob, tuple(ranked[:most])))
    return found
