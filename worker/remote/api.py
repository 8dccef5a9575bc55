"""The interface to a server that computes tokens, the same for every kind of server."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fairlane.common.redacted import Redacted
from fairlane.scheduler.protocol.media import MediaForm, MediaKind, MediaSpan
from fairlane.scheduler.protocol.messages import ModelCard, PositionLogprobs, Sampling

# Minimum share of its KV blocks after a change: with fewer, the server would preempt sequences.
KEPT_BLOCKS = 0.9


class MediaItem(Redacted, frozen=True):
    """An image or a sound in a request: its place in `token_ids`, and its content."""

    span: MediaSpan
    data: bytes


class GenerationRequest(Redacted, frozen=True):
    """A request to continue one choice."""

    # Unique to this run.
    request_id: str
    # The prompt, and the output so far.
    token_ids: Sequence[int]
    max_tokens: int
    # With this run's own `min_tokens` and `seed`.
    sampling: Sampling
    # Lower is first; see `scheduler.protocol.engine_priority`.
    priority: int
    # Prompts share cached KV only with others of the same salt.
    cache_salt: str
    # Constrains the output, in Lark; empty without a constraint.
    grammar: str = ""
    # Number of last tokens in `token_ids` that the grammar starts with.
    begun: int = 0
    # Tokens that the server must repeat before new ones; they are checked, but not sent to the gateway.
    repeats: Sequence[int] = ()
    # Of models that embed or score: the lengths of the inputs in `token_ids`.
    inputs: Sequence[int] = ()
    # In the order of their places.
    media: Sequence[MediaItem] = ()


class Piece(Redacted, frozen=True):
    """The content of one chunk of a stream."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[PositionLogprobs] = ()
    # The server's own count of this run's tokens so far; None if it sends none.
    counted: int | None = None
    # Number of request tokens found in the prefix cache.
    cached_tokens: int = 0
    # The server reported the end: its length, or a stop token.
    has_ended: bool = False
    # Of all tokens of the request after the first, if it asks for them; before any token.
    prompt_logprobs: Sequence[PositionLogprobs] = ()
    # The vectors of all inputs, with a placeholder for a token: 32-bit floats, little-endian.
    vectors: bytes = b""


class Facts(NamedTuple):
    """A server's description of itself."""

    version: str
    model: str
    # Origin of the model, a directory or a hub id; empty if the server does not report it.
    root: str
    context_length: int | None
    block_size: int
    # 0 if not reported; they are then assumed to suffice.
    blocks: int
    # Origin of the adapter on the weights of `root`; empty if the model is not an adapter.
    adapter: str = ""
    # Maximum number of running sequences; None if not reported.
    sequences: int | None = None
    # The server reports the tokens that it drew; otherwise its text is tokenised here.
    is_exact: bool = True
    # Request fields, by their API names, that it refuses or ignores.
    lacks: tuple[str, ...] = ()
    takes_grammars: bool = False
    # It accepts a grammar that the last tokens of the prompt have begun.
    resumes_grammars: bool = False
    # Numbers of each input's vector; None for a model that generates text.
    vector_size: int | None = None
    # The vector is the score of a pair of texts.
    scores: bool = False
    # The kinds of media that it takes, and how they stand in its prompts.
    media: Mapping[MediaKind, MediaForm] = {}

    def change(self, now: "Facts") -> str:
        """Describe how the server has changed; empty if no change affects its worker."""
        for name, before in self._asdict().items():
            after = getattr(now, name)
            is_less = name == "blocks" and after < before * KEPT_BLOCKS
            if is_less or (name != "blocks" and after != before):
                return f"its {name.replace('_', ' ')} was {before}, and is {after}"
        return ""


class EngineUnavailable(Exception):
    """The server cannot be reached or failed; a retry may succeed. Holds no content."""


class Refused(Exception):
    """The server refuses this request permanently. Holds no content."""


class ProtocolViolation(Exception):
    """The reply violates the protocol. Holds no content."""


class Api(Protocol):
    """One kind of server. Used on one event loop."""

    async def facts(self) -> Facts:
        """Query the server. Raises EngineUnavailable, or EngineError if it is not a supported server."""

    def serving(self, card: ModelCard) -> "Api":
        """Return an instance for requests to this model, with the facts found; may be used on another event loop."""

    async def is_up(self) -> bool:
        """Return whether it accepts requests. Raises EngineError if it replies but has changed."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Yield tokens as they arrive; closing the iterator ends the request there.

        Raises EngineUnavailable, Refused, ProtocolViolation."""

    async def measure(self, kind: MediaKind, data: bytes) -> int:
        """Return the number of tokens that an item becomes in a prompt; 0 if the server cannot read it.

        Raises EngineUnavailable, ProtocolViolation."""
        return 0

    async def close(self) -> None: ...
