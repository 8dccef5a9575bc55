"""Text to tokens and back, for one model: everything a gateway knows of a model's language comes from its card."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.schemas import Prompt, Turn
from scheduler.messages import ModelCard


class TextModel:
    """One model's tokenizer and chat template. Immutable, and safe to use from several threads."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card

    def chat_prompt(self, messages: Sequence[Turn]) -> tuple[int, ...]:
        """The conversation as the model reads it, up to where its answer begins.

        Raises ApiError naming `messages` where the model's template refuses them or the model has no template.
        """
        raise NotImplementedError

    def prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """A plain completion's prompt. Raises ApiError naming `prompt` for ids outside the vocabulary."""
        raise NotImplementedError

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain text, with the marks the model wants around one."""
        raise NotImplementedError

    def token_text(self, token_id: int) -> str:
        """One token alone, as text; half a character reads U+FFFD, a special token its own name."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """One token alone, as bytes."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Piece:
    """What a push brought."""

    text: str
    """New text, to be sent now."""
    counted: int
    """Tokens of the choice that are charged so far: all that were pushed, or those up to the one that completed a
    stop string."""
    stopped: bool
    """A stop string was completed; nothing follows."""

    def __repr__(self) -> str:
        return f"Piece({len(self.text)} characters, counted={self.counted}, stopped={self.stopped})"


class TokenStream:
    """Text of ONE choice as its tokens arrive; the same text however they are split into pushes.

    No half of a character is ever given out, no stop string and nothing that could become the start of one.
    """

    def __init__(self, model: TextModel, stop: tuple[str, ...] = (), *, min_tokens: int = 0) -> None:
        """`min_tokens`: stop strings count only in text after that many tokens."""

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The text that these next tokens bring. After a stop: nothing more."""
        raise NotImplementedError

    def flush(self) -> Piece:
        """The text that was still held back, at the end of the choice."""
        raise NotImplementedError
