"""What is asked of a server that computes tokens, and what it says: the same words for every kind of server."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fairlane.scheduler.protocol.messages import PositionLogprobs, Sampling


@dataclass(frozen=True, slots=True)
class Ask:
    """One choice to go on with."""

    request_id: str
    """Of this run alone."""
    token_ids: Sequence[int]
    """The prompt, and what was generated of it so far."""
    max_tokens: int
    """Further tokens."""
    sampling: Sampling
    """`min_tokens` and `seed` are those of this run."""
    priority: int
    """Lower first: see `scheduler.protocol.engine_priority`."""
    cache_salt: str
    """Prompts share cached KV with others of the same salt alone."""

    def __repr__(self) -> str:
        return f"Ask({self.request_id}, {len(self.token_ids)} tokens, {self.max_tokens} more)"


class Piece(NamedTuple):
    """What came of a stream at once."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[PositionLogprobs] = ()
    counted: int | None = None
    """Tokens of this run so far, as the server counts them; None: it does not say."""
    cached_tokens: int = 0
    """Of what was asked with, what its prefix cache had."""
    has_ended: bool = False
    """By its own word: its length or a stop token."""

    def __repr__(self) -> str:
        return f"Piece({len(self.token_ids)} tokens, ended={self.has_ended})"


class Facts(NamedTuple):
    """What a server says of itself."""

    version: str
    model: str
    """The name that it serves its model by."""
    root: str
    """Where it has the model from: a directory or a hub id; empty: it does not say."""
    context_length: int | None
    block_size: int
    """Tokens of a KV block."""
    blocks: int


class Away(Exception):
    """The server cannot be reached, or failed on its own side: another try may go well. Holds no content."""


class Refused(Exception):
    """The server takes this request never, by its status. Holds no content."""


class Lied(Exception):
    """What came is not what was asked for. Holds no content."""


class Api(Protocol):
    """One kind of server. Used on one event loop."""

    async def facts(self) -> Facts:
        """Ask what it is. Raises Away; EngineError where it is no such server, or of an unknown version."""

    async def is_up(self) -> bool:
        """It would take a request."""

    def generate(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Its tokens as they come. Closing the iterator ends the request there. Raises Away, Refused, Lied."""

    async def close(self) -> None:
        """End every connection."""
