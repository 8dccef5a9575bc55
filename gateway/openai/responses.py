"""What a request's stream of tokens tells, and the answers that are made of it, in OpenAI's shapes.

TextChunk, Notice, Pulse    what is told, piece by piece, to a `Listener`, and how often (`Rhythm`)
AnswerBuilder               the listener that makes an answer of it, streamed or whole: a subclass for each shape
ChatAnswer                  `POST /v1/chat/completions`
CompletionAnswer            `POST /v1/completions`; both are lists of choices
"""

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import msgspec

from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http import sse
from fairlane.gateway.http.sse import EventStream
from fairlane.gateway.openai.requests import CompletionRequest, GenerationRequest
from fairlane.gateway.requests.request import LiveJob
from fairlane.gateway.text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs

LOGPROB_MIN = -9999.0
"""What stands for a token that cannot come: JSON has no infinity, and OpenAI says it so."""


class TextChunk(msgspec.Struct, frozen=True):
    """New output of one choice. Its last one has the finish reason."""

    index: int
    """Of the choice, within the whole answer."""
    text: str
    token_ids: tuple[int, ...]
    """Tokens that are new and counted; their text may still be held back."""
    logprobs: tuple[PositionLogprobs, ...]
    finish_reason: FinishReason | None

    def __repr__(self) -> str:
        return f"TextChunk({self.index}, {len(self.token_ids)} tokens, {self.finish_reason})"


class Notice(msgspec.Struct, frozen=True):
    """What a waiting client has asked to be told."""

    text: str


class Pulse(msgspec.Struct, frozen=True):
    """Nothing to tell, but the connection lives."""


AnswerChunk = TextChunk | Notice | Pulse


class Listener(Protocol):
    """Whom a generation tells what it brings forth."""

    def hear(self, chunks: Sequence[AnswerChunk]) -> bool:
        """What is ready in one go; nothing, where the answer shall only begin. False where it could not be passed on:
        nothing more comes before `catch_up`."""

    async def catch_up(self) -> None:
        """Pass it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """When a client that waits is told so; a plain answer never is."""

    first_s: float = math.inf
    """From arrival: the answer begins then."""
    every_s: float = math.inf
    """For one that asked to be told what it waits for."""
    pulse_s: float = math.inf
    """For one that did not."""


Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_ANY_TEXT = "\0text\0"
"""Stands for a text in a frame: what comes after it cannot hold the like."""


_NO_DETAILS: Json = dict.fromkeys(
    ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"), 0
)


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request, all its choices together, as they are charged."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_json(self) -> Json:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": _NO_DETAILS,
        }


@dataclass(slots=True)
class AnswerChoice:
    """What one choice has told so far. A stream keeps no more of it than its next frame needs."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    characters: int = 0
    """Of the tokens whose log-probabilities were told."""
    finish_reason: FinishReason | None = None
    frame: tuple[bytes, bytes] = (b"", b"")
    """What stands before and after a text in a frame that tells nothing else."""


class AnswerBuilder(ABC):
    """One answer in the making: hears the chunks of its request and makes frames of them as they come, or one object at
    their end.

    What depends on the shape of the answer is a subclass's: how a choice begins, what frames its chunks are, how a
    stream ends, and the whole object.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: ServedModel,
        service_tier: str,
        jobs: Sequence[LiveJob],
        out: EventStream | None,
    ) -> None:
        """`service_tier`: that was granted: `priority`, `flex` or `default`. `out`: where frames go; None: the answer
        is told whole."""
        self.jobs = jobs
        self._request = request
        self._model = model
        self._service_tier = service_tier
        self._out = out
        self._created_s = int(time.time())
        self._choices: dict[int, AnswerChoice] = {}

    def hear(self, chunks: Sequence[AnswerChunk]) -> bool:
        """What is ready in one go: kept, or sent in one write. False where it has to be waited for."""
        if self._out is None:
            self._keep(chunks)
            return True
        frames = self._frames(chunks)
        return (self._out.started and not frames) or self._out.put(frames)

    async def catch_up(self) -> None:
        """Send what was not sent yet."""
        if self._out is not None:
            await self._out.catch_up()

    def usage(self) -> Usage:
        """What the request is charged."""
        prompt, completion, cached = 0, 0, 0
        for job in self.jobs:
            prompt += job.prompt_tokens
            cached += job.cached_tokens
            for choice in job.choices:
                completion += choice.counted
        return Usage(prompt, completion, cached)

    @abstractmethod
    def ending(self) -> bytes:
        """The last frames of a whole stream."""

    @abstractmethod
    def whole(self) -> Json:
        """The answer of a request that does not stream."""

    @abstractmethod
    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        """What a choice is opened with in a stream."""

    @abstractmethod
    def _tell(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        """A chunk as frames, or parts of them."""

    def _frames(self, chunks: Iterable[AnswerChunk]) -> bytes:
        frames: list[bytes] = []
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                choice = self._choices.get(chunk.index)
                if choice is None:
                    choice = self._choices[chunk.index] = AnswerChoice()
                    frames += self._begin(chunk.index, choice)
                frames += self._tell(chunk, choice)
            else:
                frames.append(sse.comment(chunk.text) if isinstance(chunk, Notice) else sse.PULSE)
        return b"".join(frames)

    def _keep(self, chunks: Iterable[AnswerChunk]) -> None:
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                choice = self._choices.setdefault(chunk.index, AnswerChoice())
                choice.text.append(chunk.text)
                choice.token_ids += chunk.token_ids
                choice.logprobs += chunk.logprobs
                choice.finish_reason = chunk.finish_reason or choice.finish_reason

    def _limited_by(self, index: int, finish_reason: FinishReason | None) -> str | None:
        """The limit that cut a choice short of what it could have been, if one did."""
        if finish_reason != "length":
            return None
        return next(
            (f.limited_by for f in self.jobs if f.first_choice <= index < f.first_choice + len(f.choices)), None
        )


class ChoicesAnswer(AnswerBuilder):
    """A list of choices, each with its index, text, log-probabilities and finish reason. All objects of one answer have
    the same id, model, time and tier."""

    ID_PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    """`object` of a whole answer."""
    CHUNK: ClassVar[str]
    """`object` of a stream's."""

    @abstractmethod
    def _opening(self) -> Json | None:
        """What the first chunk of a choice says, where it has no text yet; None: there is no such chunk."""

    @abstractmethod
    def _new(self, text: str) -> Json:
        """New text in a chunk."""

    @abstractmethod
    def _all(self, text: str) -> Json:
        """The text of a whole choice."""

    def _echo(self, index: int) -> str:
        """What a choice begins with before the model says anything."""
        return ""

    @abstractmethod
    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], before: int) -> Json:
        """The `logprobs` object of tokens with so many characters of the choice before them."""

    def ending(self) -> bytes:
        """The usage, where `stream_options.include_usage` asked for it, and `[DONE]`."""
        if not self._request.include_usage:
            return sse.DONE
        return sse.data(self._chunk([]) | {"usage": self.usage().as_json()}) + sse.DONE

    def whole(self) -> Json:
        """The answer of a request that does not stream."""
        choices, limited_by = [], None
        for index, choice in sorted(self._choices.items()):
            logprobs = None
            if self._request.logprobs is not None:
                logprobs = self._logprobs(choice.token_ids, choice.logprobs, 0)
            choices.append(
                _choice(
                    index, self._all(self._echo(index) + "".join(choice.text)), logprobs, choice.finish_reason or "stop"
                )
            )
            limited_by = limited_by or self._limited_by(index, choice.finish_reason)
        return self._object(self.WHOLE, choices) | {"usage": self.usage().as_json()} | _limited(limited_by)

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        frame = sse.data(self._chunk([_choice(index, self._new(_ANY_TEXT), None, None)]))
        before, _, after = frame.rpartition(_encode(_ANY_TEXT))
        choice.frame = before, after
        opening, echo = self._opening(), self._echo(index)
        frames = [] if opening is None else [sse.data(self._chunk([_choice(index, opening, None, None)]))]
        return [*frames, before, _encode(echo), after] if echo else frames

    def _tell(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        logprobs = None
        if self._request.logprobs is not None and chunk.token_ids:
            logprobs = self._logprobs(chunk.token_ids, chunk.logprobs, choice.characters)
            choice.characters += sum([len(self._model.text.token_text(token_id)) for token_id in chunk.token_ids])
        if logprobs is None and chunk.finish_reason is None and not self._request.continuous_usage:
            before, after = choice.frame
            return [before, _encode(chunk.text), after] if chunk.text else []
        told = _choice(chunk.index, self._new(chunk.text), logprobs, chunk.finish_reason)
        return [sse.data(self._chunk([told]) | _limited(self._limited_by(chunk.index, chunk.finish_reason)))]

    def _chunk(self, choices: list[Json]) -> Json:
        usage: Json = {"usage": None} if self._request.include_usage else {}
        if self._request.continuous_usage:
            usage = {"usage": self.usage().as_json()}
        return self._object(self.CHUNK, choices) | usage

    def _object(self, name: str, choices: list[Json]) -> Json:
        return {
            "id": f"{self.ID_PREFIX}{self.jobs[0].id}",
            "object": name,
            "created": self._created_s,
            "model": self._model.name,
            "system_fingerprint": self._model.text.card.system_fingerprint,
            "service_tier": self._service_tier,
            "choices": choices,
        }


def _choice(index: int, said: Json, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": finish_reason}


def _limited(limited_by: str | None) -> Json:
    return {} if limited_by is None else {"fairlane": {"limited_by": limited_by}}


class ChatAnswer(ChoicesAnswer):
    """Choices are messages of the assistant; the first chunk of each names its role."""

    ID_PREFIX, WHOLE, CHUNK = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def _opening(self) -> Json:
        return {"delta": {"role": "assistant", "content": "", "refusal": None}}

    def _new(self, text: str) -> Json:
        return {"delta": {"content": text} if text else {}}

    def _all(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], before: int) -> Json:
        return chat_logprobs(self._model.text, token_ids, logprobs)  # chat tells no offsets


class CompletionAnswer(ChoicesAnswer):
    """Choices are plain text; those of several prompts stand one after the other."""

    ID_PREFIX, WHOLE, CHUNK = "cmpl-", "text_completion", "text_completion"

    def _opening(self) -> None:
        return None

    def _echo(self, index: int) -> str:
        request = self._request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return ""
        prompt = request.prompts[index // request.n]
        return prompt if isinstance(prompt, str) else self._model.text.decode(prompt)

    def _new(self, text: str) -> Json:
        return {"text": text}

    def _all(self, text: str) -> Json:
        return {"text": text}

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], before: int) -> Json:
        return completion_logprobs(self._model.text, token_ids, logprobs, before)


def chat_logprobs(text: TextModel, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """`logprobs` of a chat choice or of one of its chunks. Both sequences have one entry per token."""
    content = []
    for token_id, drawn in zip(token_ids, logprobs, strict=True):
        top = [_named(text, other, logprob) for other, logprob in drawn.top]
        content.append({**_named(text, token_id, drawn.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    text: TextModel, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], text_offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice or chunk. `text_offset`: characters of the choice before these tokens."""
    tokens = [text.token_text(token_id) for token_id in token_ids]
    lengths = [len(token) for token in tokens]
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(drawn.logprob) for drawn in logprobs],
        "top_logprobs": [
            {text.token_text(other): _finite(logprob) for other, logprob in drawn.top} for drawn in logprobs
        ],
        "text_offset": list(itertools.accumulate(lengths, initial=text_offset))[: len(tokens)],
    }


def _named(text: TextModel, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": text.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(text.token_bytes(token_id)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
