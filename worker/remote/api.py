"""What is asked of a server that computes tokens, and what it says: the same words for every kind of server."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fairlane.scheduler.protocol.messages import ModelCard, PositionLogprobs, Sampling

KEPT_BLOCKS = 0.9
"""Of its KV blocks: with fewer it would preempt what it was given."""


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
    grammar: str = ""
    """What the choice has to be, in Lark; empty: anything."""
    begun: int = 0
    """The last tokens of `token_ids` that the grammar has to begin with."""
    repeats: Sequence[int] = ()
    """Tokens that have to come again before new ones: they are checked, and told to nobody."""

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
    """0: it does not say; then they are never short."""
    adapter: str = ""
    """Where it has the adapter from that goes over the weights of that root; empty: the model is none."""
    sequences: int | None = None
    """Most that it runs at once; None: it does not say."""
    is_exact: bool = True
    """The tokens that it says are those that it drew; else its text is read as tokens here."""
    lacks: tuple[str, ...] = ()
    """Fields of a request, by their names at the door, that it does not take or that it would leave out."""
    takes_grammars: bool = False
    resumes_grammars: bool = False
    """It takes a grammar that some of the prompt's tokens have begun."""

    def change(self, now: "Facts") -> str:
        """In what a server that was this is another now; empty: in nothing that its worker rests upon. How many blocks
        it has differs a little from start to start."""
        for name, before in self._asdict().items():
            after = getattr(now, name)
            is_less = name == "blocks" and after < before * KEPT_BLOCKS
            if is_less or (name != "blocks" and after != before):
                return f"its {name.replace('_', ' ')} was {before}, and is {after}"
        return ""


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

    def serving(self, card: ModelCard) -> "Api":
        """One for the requests of this model, whose facts were found; on another event loop."""

    async def is_up(self) -> bool:
        """It would take a request. Raises EngineError where it answers and is not what it was."""

    def generate(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """Its tokens as they come. Closing the iterator ends the request there. Raises Away, Refused, Lied."""

    async def close(self) -> None:
        """End every connection."""
