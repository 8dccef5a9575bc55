"""Pieces of a request's output, and the interface of their consumer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec

from fairlane.common.redacted import Redacted
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs


class TextChunk(Redacted, frozen=True):
    """New output of one choice. The last one has the finish reason."""

    # Index of the choice in the whole response.
    index: int
    text: str
    # New, counted tokens; their text may still be held back.
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    finish_reason: FinishReason | None
    # The stop string that ended the choice, if any.
    stopped_by: str | None = None
    # An embedder's vectors instead of text, as the worker sends them.
    embedding: bytes = b""
    # Where the text of each token but the last ends in `text`, of models that reason; empty for a single token.
    cuts: tuple[int, ...] = ()

    @property
    def texts(self) -> Sequence[str]:
        """The text by tokens, where they are known."""
        if not self.cuts:
            return (self.text,)
        return [self.text[start:end] for start, end in pairwise((0, *self.cuts, len(self.text)))]


class Progress(msgspec.Struct, frozen=True):
    """Progress that a waiting client requested."""

    text: str


class KeepAlive(msgspec.Struct, frozen=True):
    """Makes the consumer keep a silent connection alive."""


AnswerChunk = TextChunk | Progress | KeepAlive


class ChunkConsumer(Protocol):
    """A consumer of a generation's output."""

    def feed(self, chunks: Sequence[AnswerChunk]) -> bool:
        """Accept chunks that arrived together; an empty sequence starts the response. Return False if they could not be
        sent; then call `catch_up` before sending more."""

    async def catch_up(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAliveSchedule:
    """The schedule of keep-alives and progress comments for a waiting client; whole responses get neither."""

    # Time from arrival by which the response headers are sent.
    first_s: float = math.inf
    # Interval for clients that asked for progress.
    every_s: float = math.inf
    # Interval for other clients.
    keep_alive_s: float = math.inf
