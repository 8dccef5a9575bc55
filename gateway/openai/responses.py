"""Pieces of a generation in the words of one answer: frames of a stream, or the parts of one whole object.

What a generation says, piece by piece, to whom, and how often it says that nothing comes.

The objects that answer a request, in OpenAI's shapes: whole answers, stream chunks, usage.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from fairlane.gateway.http import sse
from fairlane.gateway.requests.prepare import Tokens, ToldLogprobs
from fairlane.gateway.requests.request import LiveJob
from fairlane.gateway.text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs


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

    def hear(self, pieces: Sequence[AnswerChunk]) -> bool:
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
_ANY_TEXT = "\0text\0"
"""Stands for a text in a frame: what comes after it cannot hold the like."""


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
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class AnswerChoice(msgspec.Struct, frozen=True):
    """One finished choice. `logprobs`: as `gateway.api.completions` shapes it for the endpoint, None where not asked
    for.
    """

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: Mapping[str, Any] | None = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Makes every object that answers one request: all carry the same id, model, time and tier."""

    kind: Literal["chat", "completion"]
    id: str
    model: str
    created_s: int
    service_tier: str
    """The tier that was granted: `priority`, `flex` or `default`."""
    include_usage: bool = False
    """Chunks say `usage: null` until the last one tells it."""

    def opening(self, index: int) -> Json | None:
        """The chunk that names the role of a chat choice; a plain completion has none."""
        if self.kind == "completion":
            return None
        delta = {"role": "assistant", "content": "", "refusal": None}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(
        self,
        index: int,
        text: str,
        *,
        finish_reason: FinishReason | None = None,
        logprobs: Mapping[str, Any] | None = None,
        limited_by: str | None = None,
    ) -> Json:
        """New text of one choice; its last chunk has the finish reason, and the limit that cut it short if one did."""
        said: Json = {"text": text}
        if self.kind == "chat":
            said = {"delta": {"content": text} if text else {}}
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk([choice]) | _limited(limited_by)

    def text_frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text, as JSON, in a frame of `chunk` that says nothing else."""
        frame = sse.data(self.chunk(index, _ANY_TEXT))
        before, _, after = frame.rpartition(msgspec.json.encode(_ANY_TEXT))
        return before, after

    def usage_chunk(self, usage: Usage) -> Json:
        """The chunk before `[DONE]` where `stream_options.include_usage` asked for it."""
        return self._chunk([]) | {"usage": usage.as_json()}

    def whole(self, choices: Sequence[AnswerChoice], usage: Usage, *, limited_by: str | None = None) -> Json:
        """The answer of a request that does not stream."""
        told = [self._told(choice) for choice in choices]
        kind = "chat.completion" if self.kind == "chat" else "text_completion"
        return self._object(kind, told) | {"usage": usage.as_json()} | _limited(limited_by)

    def _told(self, choice: AnswerChoice) -> Json:
        said: Json = {"text": choice.text}
        if self.kind == "chat":
            said = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        ends = {"logprobs": choice.logprobs, "finish_reason": choice.finish_reason}
        return {"index": choice.index, **said, **ends}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        usage = {"usage": None} if self.include_usage else {}
        return self._object(kind, choices) | usage

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "service_tier": self.service_tier,
            "choices": choices,
        }


def _limited(limited_by: str | None) -> Json:
    return {} if limited_by is None else {"fairlane": {"limited_by": limited_by}}


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How log-probabilities are told to a request that asked for them."""

    text: TextModel
    shape: ToldLogprobs

    def told(self, token_ids: Tokens, logprobs: tuple[PositionLogprobs, ...], before: int = 0) -> Mapping[str, Any]:
        """The `logprobs` object of tokens with so many characters of the choice before them."""
        return self.shape(self.text, token_ids, logprobs, before)

    def characters(self, token_ids: Tokens) -> int:
        """How many it counts in them, whatever of their text was held back or never said."""
        return sum([len(self.text.token_text(token_id)) for token_id in token_ids])


@dataclass(slots=True)
class _Told:
    """What one choice has said so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    characters: int = 0
    """Of the tokens whose log-probabilities were told."""
    finish_reason: FinishReason | None = None
    frame: tuple[bytes, bytes] = (b"", b"")
    """What stands around a text in a frame of the stream that tells nothing else."""


class AnswerBuilder:
    """One answer in the making."""

    def __init__(self, answers: Answers, jobs: Sequence[LiveJob], logprobs: Logprobs | None) -> None:
        """`logprobs`: None where the request did not ask for them."""
        self._answers = answers
        self._jobs = jobs
        self._logprobs = logprobs
        self._choices: dict[int, _Told] = {}

    def frames(self, pieces: Iterable[AnswerChunk]) -> bytes:
        """Their part of the stream."""
        frames: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, TextChunk):
                told = self._choices.get(piece.index) or self._begun(piece.index, frames)
                frames += self._news(piece, told)
            else:
                frames.append(sse.comment(piece.text) if isinstance(piece, Notice) else sse.PULSE)
        return b"".join(frames)

    def ending(self) -> bytes:
        """The last frames of a whole stream."""
        usage = sse.data(self._answers.usage_chunk(self.usage())) if self._answers.include_usage else b""
        return usage + sse.DONE

    def collect(self, pieces: Iterable[AnswerChunk]) -> None:
        """Keep what they say for `whole`."""
        for piece in pieces:
            if isinstance(piece, TextChunk):
                told = self._choices.setdefault(piece.index, _Told())
                told.text.append(piece.text)
                told.token_ids += piece.token_ids
                told.logprobs += piece.logprobs
                told.finish_reason = piece.finish_reason or told.finish_reason

    def whole(self) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        choices = [
            AnswerChoice(index, "".join(told.text), told.finish_reason or "stop", self._whole_logprobs(told))
            for index, told in sorted(self._choices.items())
        ]
        cut = (self._limited_by(index, told.finish_reason) for index, told in sorted(self._choices.items()))
        return self._answers.whole(choices, self.usage(), limited_by=next(filter(None, cut), None))

    def usage(self) -> Usage:
        """What the request is charged."""
        prompt, completion, cached = 0, 0, 0
        for job in self._jobs:
            prompt += job.prompt_tokens
            cached += job.cached_tokens
            for choice in job.choices:
                completion += choice.counted
        return Usage(prompt, completion, cached)

    def _begun(self, index: int, frames: list[bytes]) -> _Told:
        """A choice that says its first."""
        opening = self._answers.opening(index)
        if opening is not None:
            frames.append(sse.data(opening))
        told = self._choices[index] = _Told(frame=self._answers.text_frame(index))
        return told

    def _news(self, said: TextChunk, told: _Told) -> list[bytes]:
        logprobs = None
        if self._logprobs is not None and said.token_ids:
            logprobs = self._logprobs.told(said.token_ids, said.logprobs, told.characters)
            told.characters += self._logprobs.characters(said.token_ids)
        if logprobs is None and said.finish_reason is None:
            before, after = told.frame
            return [before, _encode(said.text), after] if said.text else []
        chunk = self._answers.chunk(
            said.index,
            said.text,
            finish_reason=said.finish_reason,
            logprobs=logprobs,
            limited_by=self._limited_by(said.index, said.finish_reason),
        )
        return [sse.data(chunk)]

    def _whole_logprobs(self, told: _Told) -> Mapping[str, Any] | None:
        if self._logprobs is None:
            return None
        return self._logprobs.told(tuple(told.token_ids), tuple(told.logprobs))

    def _limited_by(self, index: int, finish_reason: FinishReason | None) -> str | None:
        """The limit that cut a choice short of what it could have been, if one did."""
        if finish_reason != "length":
            return None
        return next(
            (f.limited_by for f in self._jobs if f.first_choice <= index < f.first_choice + len(f.choices)), None
        )
