"""What a request's stream of tokens tells, piece by piece, and to whom."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

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
    stopped_by: str | None = None
    """The stop string that ended it, if one did."""
    embedding: bytes = b""
    """In place of a text: an embedder's vectors, as a worker tells them."""

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
