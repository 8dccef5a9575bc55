"""Models that embed or score, at a server of any kind: `/v1/embeddings` by token ids or text, `/v1/rerank` by text.

What the server has is probed with one small request for each form. The reply is one placeholder token with all vectors
of a job, so that lanes, retries, and the cancelling of an open request are those of generated tokens."""

import math
import sys
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlane.scheduler.protocol.messages import ModelCard, Sampling
from fairlane.worker.config import EngineKind
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.api import (
    Api,
    EngineUnavailable,
    Facts,
    GenerationRequest,
    Piece,
    ProtocolViolation,
    Refused,
)
from fairlane.worker.remote.http import BAD_KEY, UNAUTHORISED, BadStatus, Http, ServedModel
from fairlane.worker.remote.retokenise import Retokeniser

EMBED, RERANK = "/v1/embeddings", "/v1/rerank"
# Statuses of a server, or a proxy before it, that a later request may not get.
_PASSING = frozenset({429, 502, 503, 504})
# Where each kind of server reports its version or the model's directory.
_ABOUT: Mapping[EngineKind, str] = {"vllm": "/version", "sglang": "/server_info", "openai": "/props"}
_CHANGED = "engine_url: the server is not what it was when this worker began: start the worker again"
_TRIAL_IDS, _TRIAL_TEXT = (40, 41, 42), "Hello"
_PLACEHOLDER = 0
# As many as the server's KV blocks would be counted in; a pooling model's are not reported.
_BLOCK = 16


class _About(msgspec.Struct):
    version: str = ""
    model_path: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]
    usage: _Usage | None = None


class _Score(msgspec.Struct):
    index: int
    relevance_score: float | None = None
    # SGLang's name for it.
    score: float | None = None

    @property
    def value(self) -> float:
        found = self.score if self.relevance_score is None else self.relevance_score
        return math.nan if found is None else found


class _Scores(msgspec.Struct):
    results: list[_Score]


Reply = TypeVar("Reply")
_embeddings = msgspec.json.Decoder(_Embeddings)
# SGLang answers with the list alone.
_scores = msgspec.json.Decoder(_Scores | list[_Score])


class PoolingWire(NamedTuple):
    """The form of a server's requests, and the size of its vectors."""

    model: str
    path: str
    takes_ids: bool
    # It accepts vLLM's `priority`; a server without priority scheduling refuses it.
    takes_priority: bool
    size: int = 1


class PoolingApi(Api):
    """One model of a server, which embeds or scores."""

    def __init__(
        self, kind: EngineKind, url: str, key: str | None, model: str | None = None, card: ModelCard | None = None
    ) -> None:
        """`model` is its name at the server; None for the server's first. `card` is known once the facts are."""
        self._kind, self._url, self._key, self._model = kind, url, key, model
        self._http = Http(url, key, "server of embeddings or scores")
        self._wire: PoolingWire | None = None
        self._retokeniser = None if card is None else Retokeniser(card)

    async def facts(self) -> Facts:
        served, base, self._wire = await self._learn()
        about = await self._http.find(_ABOUT[self._kind], _About) or _About()
        return Facts(
            version=about.version or served.owned_by or "of unknown make",
            model=served.id,
            root=about.model_path or base.root or "",
            context_length=served.max_model_len or base.max_model_len or (served.meta.n_ctx if served.meta else None),
            block_size=_BLOCK,
            blocks=0,
            adapter=(served.root or served.id) if served.parent else "",
            is_exact=self._wire.takes_ids,
            vector_size=self._wire.size,
            scores=self._wire.path == RERANK,
        )

    def serving(self, card: ModelCard) -> "PoolingApi":
        other = PoolingApi(self._kind, self._url, self._key, card.model, card)
        other._wire = self._wire
        return other

    async def is_up(self) -> bool:
        """Raise EngineError if the server was restarted with other abilities."""
        try:
            _, _, wire = await self._learn()
        except EngineUnavailable:
            return False
        if self._wire not in (None, wire):
            raise EngineError(_CHANGED)
        return True

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        if self._wire is None:
            _, _, self._wire = await self._learn()
        wire = self._wire
        ends = [*accumulate(request.inputs)]
        parts = [request.token_ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if wire.path == RERANK:
            texts = self._texts(parts)
            vectors = [[one] for one in await self._score([*zip(texts[::2], texts[1::2], strict=True)], wire, request)]
        else:
            found = await self._embed(parts if wire.takes_ids else self._texts(parts), wire, request)
            vectors = [one.embedding for one in found.data]
        yield Piece((_PLACEHOLDER,), has_ended=True, vectors=_packed(vectors, wire.size))

    async def close(self) -> None:
        await self._http.close()

    def _texts(self, parts: Sequence[Sequence[int]]) -> list[str]:
        if self._retokeniser is None:
            raise Refused("the engine accepts only text, and the model's tokenizer is unknown")
        return [self._retokeniser.plain(part) for part in parts]

    async def _embed(
        self, inputs: Sequence[str] | Sequence[Sequence[int]], wire: PoolingWire, request: GenerationRequest
    ) -> _Embeddings:
        body = {"input": inputs, "encoding_format": "float", **self._common(wire, request)}
        found = _decoded(_embeddings, await self._http.post(EMBED, body))
        found.data.sort(key=lambda one: one.index)
        _check_indexes([one.index for one in found.data], len(inputs))
        return found

    async def _score(
        self, pairs: Sequence[tuple[str, str]], wire: PoolingWire, request: GenerationRequest
    ) -> list[float]:
        scores: list[float] = []
        for query, group in groupby(pairs, key=lambda pair: pair[0]):
            documents = [document for _, document in group]
            body = {"query": query, "documents": documents, **self._common(wire, request)}
            answer = _decoded(_scores, await self._http.post(RERANK, body))
            found = sorted(answer if isinstance(answer, list) else answer.results, key=lambda one: one.index)
            _check_indexes([one.index for one in found], len(documents))
            scores += [one.value for one in found]
        return scores

    def _common(self, wire: PoolingWire, request: GenerationRequest) -> dict[str, Any]:
        # Only vLLM takes a salt; strict servers refuse unknown fields.
        salt = {"cache_salt": request.cache_salt} if self._kind == "vllm" else {}
        priority = {"priority": request.priority} if wire.takes_priority else {}
        return {"model": wire.model, **salt, **priority}

    async def _learn(self) -> tuple[ServedModel, ServedModel, PoolingWire]:
        served, models = await self._http.models(self._model)
        for path, takes_ids in ((EMBED, True), (EMBED, False), (RERANK, False)):
            for takes_priority in (True, False) if self._kind == "vllm" else (False,):
                wire = await self._try(PoolingWire(served.id, path, takes_ids, takes_priority))
                if wire is not None:
                    return served, models.get(served.parent or "", served), wire
        raise EngineError(f"engine_url: {served.id} makes neither embeddings nor scores")

    async def _try(self, wire: PoolingWire) -> PoolingWire | None:
        """Return this form with the size of its vectors; None if the server does not have it."""
        trial = GenerationRequest("trial", _TRIAL_IDS, 1, Sampling(), priority=1, cache_salt="trial")
        try:
            if wire.path == RERANK:
                [score] = await self._score([(_TRIAL_TEXT, _TRIAL_TEXT)], wire, trial)
                return wire if math.isfinite(score) else None
            found = await self._embed([_TRIAL_IDS] if wire.takes_ids else [_TRIAL_TEXT], wire, trial)
        except BadStatus as bad:
            if bad.status in UNAUTHORISED:
                raise EngineError(BAD_KEY) from None
            if bad.status in _PASSING:
                raise
            return None
        except (Refused, ProtocolViolation):
            return None
        size, counted = len(found.data[0].embedding), found.usage.prompt_tokens if found.usage else None
        is_misread = wire.takes_ids and counted not in (None, len(_TRIAL_IDS))
        is_score = size <= 1
        return None if is_misread or is_score else wire._replace(size=size)


def _decoded(decoder: msgspec.json.Decoder[Reply], reply: bytes) -> Reply:
    try:
        return decoder.decode(reply)
    except msgspec.MsgspecError:
        raise ProtocolViolation("the reply cannot be read") from None


def _check_indexes(indexes: Sequence[int], count: int) -> None:
    if [*indexes] != [*range(count)]:
        raise ProtocolViolation("inputs have no result, or several")


def _packed(vectors: Sequence[Sequence[float]], size: int) -> bytes:
    if any(len(vector) != size for vector in vectors):
        raise ProtocolViolation("a vector has another size")
    numbers = array("f", [number for vector in vectors for number in vector])
    if not all(map(math.isfinite, numbers)):
        raise ProtocolViolation("a vector has no finite numbers")
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()
