"""Pieces of a generation in the words of one answer: frames of a stream, or the parts of one whole object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway import sse
from gateway.answers import Answers, Choice, Usage
from gateway.flight import Flight
from gateway.pieces import Notice, Piece, Said
from gateway.prepare import Tokens, ToldLogprobs
from gateway.text import TextModel
from scheduler.messages import FinishReason, TokenLogprob

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How log-probabilities are told to a request that asked for them."""

    text: TextModel
    shape: ToldLogprobs

    def told(self, token_ids: Tokens, logprobs: tuple[TokenLogprob, ...], before: int = 0) -> Mapping[str, Any]:
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
    logprobs: list[TokenLogprob] = field(default_factory=list)
    characters: int = 0
    """Of the tokens whose log-probabilities were told."""
    finish_reason: FinishReason | None = None
    frame: tuple[bytes, bytes] = (b"", b"")
    """What stands around a text in a frame of the stream that tells nothing else."""


class Speech:
    """One answer in the making."""

    def __init__(self, answers: Answers, flights: Sequence[Flight], logprobs: Logprobs | None) -> None:
        """`logprobs`: None where the request did not ask for them."""
        self._answers = answers
        self._flights = flights
        self._logprobs = logprobs
        self._choices: dict[int, _Told] = {}

    def frames(self, pieces: Iterable[Piece]) -> bytes:
        """Their part of the stream."""
        frames: list[bytes] = []
        for piece in pieces:
            if isinstance(piece, Said):
                told = self._choices.get(piece.index) or self._begun(piece.index, frames)
                frames += self._news(piece, told)
            else:
                frames.append(sse.comment(piece.text) if isinstance(piece, Notice) else sse.PULSE)
        return b"".join(frames)

    def ending(self) -> bytes:
        """The last frames of a whole stream."""
        usage = sse.data(self._answers.usage_chunk(self.usage())) if self._answers.include_usage else b""
        return usage + sse.DONE

    def collect(self, pieces: Iterable[Piece]) -> None:
        """Keep what they say for `whole`."""
        for piece in pieces:
            if isinstance(piece, Said):
                told = self._choices.setdefault(piece.index, _Told())
                told.text.append(piece.text)
                told.token_ids += piece.token_ids
                told.logprobs += piece.logprobs
                told.finish_reason = piece.finish_reason or told.finish_reason

    def whole(self) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        choices = [
            Choice(index, "".join(told.text), told.finish_reason or "stop", self._whole_logprobs(told))
            for index, told in sorted(self._choices.items())
        ]
        cut = (self._limited_by(index, told.finish_reason) for index, told in sorted(self._choices.items()))
        return self._answers.whole(choices, self.usage(), limited_by=next(filter(None, cut), None))

    def usage(self) -> Usage:
        """What the request is charged."""
        prompt, completion, cached = 0, 0, 0
        for flight in self._flights:
            prompt += flight.prompt_tokens
            cached += flight.cached_tokens
            for choice in flight.choices:
                completion += choice.counted
        return Usage(prompt, completion, cached)

    def _begun(self, index: int, frames: list[bytes]) -> _Told:
        """A choice that says its first."""
        opening = self._answers.opening(index)
        if opening is not None:
            frames.append(sse.data(opening))
        told = self._choices[index] = _Told(frame=self._answers.text_frame(index))
        return told

    def _news(self, said: Said, told: _Told) -> list[bytes]:
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
            (f.limited_by for f in self._flights if f.first_choice <= index < f.first_choice + len(f.choices)), None
        )
