"""The base of response builders: consumes a request's chunks and builds the response, streamed or whole."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from fairlane.gateway.answers.chunks import AnswerChunk, Progress, TextChunk
from fairlane.gateway.answers.message import ReasoningCount
from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http import sse
from fairlane.gateway.http.sse import EventStream
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs

# Tokens with log-probabilities, or numbers of vectors, in a response that is small enough to build in the event loop
# within a few milliseconds.
LARGE_PARTS = 4_000
Json = dict[str, Any]
_NO_DETAILS: Json = dict.fromkeys(
    ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"), 0
)


class Usage(msgspec.Struct, frozen=True):
    """The tokens that a request is charged for, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def as_json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {**_NO_DETAILS, "reasoning_tokens": self.reasoning_tokens},
        }


class AnswerChoice(msgspec.Struct):
    """The output of one choice so far. A stream keeps only what its next frame needs."""

    text: list[str] = []
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] = []
    # Characters of the tokens whose log-probabilities were sent.
    characters: int = 0
    finish_reason: FinishReason | None = None
    # The stop string that ended the choice, if any.
    stopped_by: str | None = None
    # The bytes before and after the text in a frame that contains only text.
    frame: tuple[bytes, bytes] = (b"", b"")
    # Separates calls and reasoning from content, if the model produces any.
    reader: OutputReader | None = None
    # The text of a call that a limit or a stop string left incomplete.
    incomplete: str | None = None
    thought: ReasoningCount = msgspec.field(default_factory=ReasoningCount)
    # An embedder's vectors instead of text: 32-bit floats, little-endian.
    embedding: bytes = b""


class AnswerBuilder(ABC):
    """Builds one response: sends chunks as frames as they arrive, or collects them for one object. Subclasses define
    how a choice begins, the frames of its chunks, how a stream ends, and the whole object."""

    # Id of the response, unless it derives from the job's.
    id = ""
    ID_PREFIX: ClassVar[str] = ""

    def __init__(
        self,
        request: GenerationRequest,
        model: ServedModel,
        service_tier: str,
        jobs: Sequence[LiveJob],
        out: EventStream | None,
    ) -> None:
        """`service_tier`: the granted tier: `priority`, `flex` or `default`. `out`: receives frames; None builds the
        response as a whole."""
        self.jobs = jobs
        self._request = request
        self._model = model
        self._service_tier = service_tier
        self._out = out
        self._created_s = int(time.time())
        self._choices: dict[int, AnswerChoice] = {}
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027 - most shapes need nothing
        ...

    def feed(self, chunks: Sequence[AnswerChunk]) -> bool:
        """Keep chunks that arrived together, or send them in one write. Return False if the client lags behind."""
        if self._out is None:
            self._keep(chunks)
            return True
        frames = self._frames(chunks)
        return (self._out.started and not frames) or self._out.put(frames)

    async def catch_up(self) -> None:
        if self._out is not None:
            await self._out.catch_up()

    @property
    def response_id(self) -> str:
        return self.id or f"{self.ID_PREFIX}{self.jobs[0].id}"

    def usage(self) -> Usage:
        prompt, completion, cached = 0, 0, 0
        for job in self.jobs:
            prompt += job.prompt_tokens
            cached += job.cached_tokens
            for choice in job.choices:
                completion += choice.counted
        thought = 0
        for shown in self._choices.values():
            thought += shown.thought.tokens
        return Usage(prompt, completion, cached, thought)

    def fault(self, body: Json) -> bytes:
        return sse.data(body)

    @abstractmethod
    def ending(self) -> bytes: ...

    @abstractmethod
    def whole(self) -> Json: ...

    @property
    def is_large(self) -> bool:
        """True if the response takes so long to build that it must be built outside the event loop."""
        parts_of_a_token = 1 + (self._request.logprobs or 0)
        if self._model.text.output_format.may_reason:  # the output is read token by token
            parts_of_a_token += 3
        parts = 0
        if self._request.scored is not None:
            parts = (1 + self._request.scored) * self._request.n * sum([len(job.prompt_logprobs) for job in self.jobs])
        for choice in self._choices.values():
            parts += len(choice.token_ids) * parts_of_a_token + len(choice.embedding) // 4
        return parts > LARGE_PARTS

    def _begin(self, index: int, choice: AnswerChoice) -> list[bytes]:
        return []

    def _emit(self, chunk: TextChunk, choice: AnswerChoice) -> list[bytes]:
        return []

    def _frames(self, chunks: Iterable[AnswerChunk]) -> bytes:
        frames: list[bytes] = []
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                choice = self._choices.get(chunk.index)
                if choice is None:
                    choice = self._choices[chunk.index] = AnswerChoice()
                    frames += self._begin(chunk.index, choice)
                frames += self._emit(chunk, choice)
            else:
                frames.append(sse.comment(chunk.text) if isinstance(chunk, Progress) else sse.PULSE)
        return b"".join(frames)

    def _keep(self, chunks: Iterable[AnswerChunk]) -> None:
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                choice = self._choices.get(chunk.index)
                if choice is None:
                    choice = self._choices[chunk.index] = AnswerChoice()
                choice.text += chunk.texts
                choice.token_ids += chunk.token_ids
                choice.logprobs += chunk.logprobs
                choice.finish_reason = chunk.finish_reason or choice.finish_reason
                choice.stopped_by = chunk.stopped_by or choice.stopped_by
                choice.embedding = chunk.embedding or choice.embedding

    def _reader(self) -> OutputReader | None:
        message = self.jobs[0].message
        prompt = () if message is None else message.prompt
        return self._model.text.output_reader(prompt, self._request.offered_tools, self._request.continued)

    def _remarks(self, index: int, finish_reason: str | None, incomplete: str | None = None) -> Json:
        """Return what the field `fairlane` says about a choice that was cut short. `incomplete`: a call's text."""
        remarks: Json = {}
        if (limited_by := self._limited_by(index, finish_reason)) is not None:
            remarks["limited_by"] = limited_by
        if incomplete is not None:
            remarks["incomplete_tool_call"] = {"text": incomplete}
        return remarks

    def _limited_by(self, index: int, finish_reason: str | None) -> str | None:
        jobs = self.jobs if finish_reason == "length" else ()
        for job in jobs:
            if job.first_choice <= index < job.first_choice + len(job.choices):
                return job.limited_by
        return None


def as_field(remarks: Json) -> Json:
    """Return remarks as the field `fairlane` of an object, which has none without them."""
    return {"fairlane": remarks} if remarks else {}
