"""One answer in the making: it hears a request's chunks, and is told streamed or whole; a subclass for each shape."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlane.gateway.answers.chunks import AnswerChunk, Notice, TextChunk
from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http import sse
from fairlane.gateway.http.sse import EventStream
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs

LARGE_PARTS = 4_000
"""Tokens with their log-probabilities, or numbers of vectors, that an answer may hold to be built in the event loop: a
few milliseconds."""
Json = dict[str, Any]
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
    stopped_by: str | None = None
    """The stop string that ended it, if one did."""
    frame: tuple[bytes, bytes] = (b"", b"")
    """What stands before and after a text in a frame that tells nothing else."""
    reader: OutputReader | None = None
    """Tells calls and reasoning from content, where there may be any."""
    embedding: bytes = b""
    """In place of all this: an embedder's vectors, of 32-bit floats, little-endian."""


class AnswerBuilder(ABC):
    """One answer in the making: hears the chunks of its request and makes frames of them as they come, or one object at
    their end.

    What depends on the shape of the answer is a subclass's: how a choice begins, what frames its chunks are, how a
    stream ends, and the whole object.
    """

    id = ""
    """Of the answer, where that does not hold the request's."""

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

    @property
    def response_id(self) -> str:
        """The id that the answer has."""
        return self.id

    def usage(self) -> Usage:
        """What the request is charged."""
        prompt, completion, cached = 0, 0, 0
        for job in self.jobs:
            prompt += job.prompt_tokens
            cached += job.cached_tokens
            for choice in job.choices:
                completion += choice.counted
        return Usage(prompt, completion, cached)

    def fault(self, body: Json) -> bytes:
        """The last frame of a stream that cannot go on. `body`: what an error's answer would hold."""
        return sse.data(body)

    @abstractmethod
    def ending(self) -> bytes:
        """The last frames of a whole stream."""

    @abstractmethod
    def whole(self) -> Json:
        """The answer of a request that does not stream."""

    @property
    def is_large(self) -> bool:
        """Whether the whole answer takes so long to build that it has to be done outside the event loop."""
        parts = sum(len(choice.token_ids) for choice in self._choices.values())
        if self._request.logprobs is not None:
            parts *= 1 + self._request.logprobs
        return parts + sum(len(choice.embedding) for choice in self._choices.values()) // 4 > LARGE_PARTS

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
                choice.stopped_by = chunk.stopped_by or choice.stopped_by

    def _reader(self) -> OutputReader | None:
        """What reads the output of a choice of a conversation; None where all of it is content."""
        message = self.jobs[0].message
        prompt = () if message is None else message.prompt
        return self._model.text.output_reader(prompt, self._request.offered_tools)

    def _limited_by(self, index: int, finish_reason: str | None) -> str | None:
        """The limit that cut a choice short of what it could have been, if one did."""
        if finish_reason != "length":
            return None
        return next(
            (f.limited_by for f in self.jobs if f.first_choice <= index < f.first_choice + len(f.choices)), None
        )
