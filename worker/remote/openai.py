"""Any server with OpenAI's `/v1/completions`: llama.cpp, Text Generation Inference, Ollama, a cloud service.

Its abilities are probed with requests for one token. llama.cpp's ids in `logprobs`, and `tokens` of its own endpoint,
are not used: for a character of several tokens they contain only the last one (2026-10)."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from fairlane.scheduler.protocol.messages import ModelCard, PositionLogprobs
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
from fairlane.worker.remote.http import BAD_KEY, UNAUTHORISED, UNKNOWN, BadStatus, Http, ModelMeta, ServedModel
from fairlane.worker.remote.openai_wire import (
    ALL,
    LLAMA,
    VLLM,
    Choice,
    Chunk,
    WireFormat,
    body_of,
    logprobs_of,
    read,
    trial,
)
from fairlane.worker.remote.prompt_logprobs import VllmPrompt, read_vllm
from fairlane.worker.remote.retokenise import Retokeniser

log = logging.getLogger(__name__)

GENERATE = "/v1/completions"
# Tokens per block; servers do not report their KV layout.
BLOCK = 16
_CHANGED = "engine_url: the server is not what it was when this worker began: start the worker again"
# Token ids that every vocabulary has.
_TRIAL_IDS = (40, 41, 42)
_TRIAL_TEXT = "Hello"
# llama.cpp's status for completions of a model that only embeds or scores.
NOT_IMPLEMENTED = 501


class _Props(msgspec.Struct):
    total_slots: int | None = None
    model_path: str | None = None


class _WholeChoice(msgspec.Struct):
    prompt_logprobs: VllmPrompt | None = None


class _Whole(msgspec.Struct):
    choices: list[_WholeChoice] = []


class OpenAiApi(Api):
    """One model of a server."""

    def __init__(self, url: str, key: str | None, model: str | None = None, card: ModelCard | None = None) -> None:
        """`model` is its name at the server; None for the server's first. `card` is known once the facts are."""
        self._url, self._key, self._model = url, key, model
        self._http = Http(url, key, "OpenAI-compatible server")
        self._wire: WireFormat | None = None
        self._retokeniser = None if card is None else Retokeniser(card)

    async def facts(self) -> Facts:
        served, wire = await self._learn()
        self._wire = wire
        props = await self._http.find("/props", _Props) if wire.owner == LLAMA else None
        meta = served.meta or ModelMeta()
        forms = ("text", "token ids")
        log.info("the server accepts %s and returns %s", forms[wire.takes_ids], forms[wire.returns_ids])
        return Facts(
            version=wire.owner or "of unknown make",
            model=served.id,
            root=(props.model_path if props is not None else served.root) or "",
            context_length=served.max_model_len or meta.n_ctx,
            block_size=BLOCK,
            blocks=0,
            sequences=props.total_slots if props is not None else None,
            is_exact=wire.returns_ids,
            lacks=tuple(sorted(ALL - wire.takes)),
        )

    def serving(self, card: ModelCard) -> "OpenAiApi":
        other = OpenAiApi(self._url, self._key, card.model, card)
        other._wire = self._wire
        return other

    async def is_up(self) -> bool:
        """Raise EngineError if the server was restarted with other abilities."""
        try:
            _, wire = await self._learn()
        except EngineUnavailable:
            return False
        if self._wire not in (None, wire):
            raise EngineError(_CHANGED)
        return True

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        wire = self._wire
        if wire is None:
            _, wire = await self._learn()
            self._wire = wire
        run = self._run_by_ids(request, wire) if wire.returns_ids else self._run_by_text(request, wire)
        async with aclosing(run) as pieces:
            async for piece in pieces:
                yield piece

    async def close(self) -> None:
        await self._http.close()

    async def _run_by_ids(self, request: GenerationRequest, wire: WireFormat) -> AsyncGenerator[Piece, None]:
        most, stops = request.sampling.logprobs, request.sampling.stop_token_ids
        if request.sampling.prompt_logprobs is not None:
            yield Piece(prompt_logprobs=await self._prompt_logprobs(request, wire, request.sampling.prompt_logprobs))
        async with aclosing(self._chunks(request, wire)) as chunks:
            async for chunk in chunks:
                choice = chunk.choices[0] if chunk.choices else Choice()
                token_ids, end = choice.token_ids or [], choice.finish_reason
                logprobs = () if most is None else logprobs_of(choice, most)
                counted = chunk.counted
                if wire.owner != VLLM and end not in (None, "length") and not {*token_ids} & {*stops}:
                    token_ids, counted = (
                        [*token_ids, *stops[:1]],
                        None,
                    )  # the server counts the stop token, but does not return it
                yield Piece(token_ids, logprobs, counted, chunk.cached_tokens, end is not None)

    async def _prompt_logprobs(self, request: GenerationRequest, wire: WireFormat, most: int) -> list[PositionLogprobs]:
        body = body_of(wire, request.token_ids, request)
        body |= {"max_tokens": 1, "min_tokens": 0, "logprobs": None, "prompt_logprobs": most, "stream": False}
        del body["stream_options"]
        found = await self._http.answer(GENERATE, body, _Whole)
        return read_vllm(request.token_ids, found.choices[0].prompt_logprobs if found.choices else None, most)

    async def _run_by_text(self, request: GenerationRequest, wire: WireFormat) -> AsyncGenerator[Piece, None]:
        # If a text has fewer tokens than the server has drawn, request more.
        if self._retokeniser is None:
            raise Refused("the engine returns no token ids, and the model's tokenizer is unknown")
        so_far, first = [*request.token_ids], len(request.token_ids)
        while len(so_far) - first < request.max_tokens:
            end, began = None, len(so_far)
            further = msgspec.structs.replace(
                request, token_ids=so_far, max_tokens=request.max_tokens - (began - first)
            )
            async with aclosing(self._chunks(further, wire)) as chunks:
                async for chunk in chunks:
                    if not chunk.choices:
                        continue
                    token_ids = self._retokeniser.tokens(so_far, chunk.choices[0].text)
                    so_far += token_ids
                    end = chunk.choices[0].finish_reason or end
                    if token_ids:
                        yield Piece(token_ids, cached_tokens=chunk.cached_tokens)
            if end is None:
                raise ProtocolViolation("the stream ended without a reason")
            if end != "length":
                # The server does not report which stop token ended the choice: any of them is acceptable.
                yield Piece(request.sampling.stop_token_ids[:1], has_ended=True)
                return
            if len(so_far) == began:
                raise ProtocolViolation("none of its tokens has text")
        yield Piece(has_ended=True)

    async def _chunks(self, request: GenerationRequest, wire: WireFormat) -> AsyncGenerator[Chunk, None]:
        prompt: str | Sequence[int] = request.token_ids
        if not wire.takes_ids and self._retokeniser is not None:
            plain = len(self._retokeniser.encode(_TRIAL_TEXT))
            prompt = self._retokeniser.prompt(request.token_ids, server_adds_mark=(wire.trial_tokens or 0) > plain)
        async with aclosing(self._http.events(GENERATE, body_of(wire, prompt, request))) as lines:
            async for line in lines:
                yield read(line)

    async def _learn(self) -> tuple[ServedModel, WireFormat]:
        served, _ = await self._http.models(self._model)
        return served, await self._probe(served)

    async def _probe(self, served: ServedModel) -> WireFormat:
        reason = ""
        for prompt in (_TRIAL_IDS, _TRIAL_TEXT):
            for asks_ids in (True, False):
                try:
                    returns_ids, prompt_tokens = await self._send_probe(trial(served.id, prompt, asks_ids=asks_ids))
                except Refused as refusal:
                    reason = str(refusal)
                    continue
                if prompt is _TRIAL_IDS and prompt_tokens != len(_TRIAL_IDS):
                    continue  # the prompt was read differently
                takes_ids = prompt is _TRIAL_IDS
                trial_tokens = None if takes_ids else prompt_tokens
                return WireFormat(served.id, served.owned_by or "", takes_ids, takes_ids and returns_ids, trial_tokens)
        raise EngineError(f"engine_url: no OpenAI-compatible server of completions: {reason or 'nothing fits'}")

    async def _send_probe(self, body: Mapping[str, Any]) -> tuple[bool, int | None]:
        """Return whether the reply has token ids, and the server's count of the prompt's tokens."""
        returns_ids, prompt_tokens = False, None
        try:
            async with aclosing(self._http.events(GENERATE, body)) as lines:
                async for line in lines:
                    chunk = read(line)
                    returns_ids = returns_ids or any(choice.token_ids for choice in chunk.choices)
                    if chunk.usage is not None:
                        prompt_tokens = chunk.usage.prompt_tokens
        except ProtocolViolation as violation:
            raise EngineError(f"engine_url: no OpenAI-compatible server: {violation}") from None
        except BadStatus as bad:
            if bad.status in UNAUTHORISED:  # some servers list their models without a key
                raise EngineError(BAD_KEY) from None
            if bad.status in UNKNOWN or bad.status == NOT_IMPLEMENTED:
                raise EngineError(f"engine_url: no completions: {GENERATE} has status {bad.status}") from None
            raise
        return returns_ids, prompt_tokens
