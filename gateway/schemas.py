"""Bodies of requests, parsed once into values that can only be valid: no inner code checks a caller's input again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from gateway.bodies import (
    MAX_SEQUENCES,
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETION,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Neutral,
)
from gateway.errors import ApiError, invalid
from gateway.json_body import read_object, shown_name
from scheduler.messages import Sampling

_SEED_MASK = 2**63 - 1
Prompt = str | tuple[int, ...]
"""Text to tokenise, or token ids as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How tokens are drawn, as the caller said it; ends and seed come with `GenerationRequest.sampling`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What chat and plain completions share."""

    model: str
    n: int = 1
    max_tokens: int | None = None
    """Output tokens per choice; None: what context and limits leave."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = field(default=(), repr=False)
    stream: bool = False
    include_usage: bool = False
    service_tier: str | None = None
    deadline_ms: float | None = None
    """From arrival to the last token."""
    seed: int | None = None
    logprobs: int | None = None
    """None: no log-probabilities; k: the chosen token's and those of the k likeliest."""
    draw: Draw = Draw()

    def sampling(self, seed: int, eos: tuple[int, ...]) -> Sampling:
        """What the worker is told. `seed`: the caller's, or the one that the gateway drew; `eos`: the model's."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation, as a chat template reads it."""

    role: str
    content: str = field(repr=False)
    name: str | None = field(default=None, repr=False)
    tool_call_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(GenerationRequest):
    """A valid `POST /v1/chat/completions`."""

    messages: tuple[Turn, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """A valid `POST /v1/completions`; the choices of prompt i have the indices i·n to i·n + n - 1."""

    prompts: tuple[Prompt, ...] = field(repr=False)


def parse_chat(body: bytes) -> ChatRequest:
    """The chat request that a body holds. Raises ApiError naming the field at fault."""
    raise NotImplementedError


def parse_completion(body: bytes) -> CompletionRequest:
    """The completion request that a body holds. Raises ApiError naming the field at fault."""
    raise NotImplementedError
