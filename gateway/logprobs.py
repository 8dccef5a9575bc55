"""Log-probabilities in OpenAI's two shapes: a list of tokens for chat, parallel lists for plain completions."""

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.messages import TokenLogprob


class Vocabulary(Protocol):
    """What token ids stand for; `gateway.text.TextModel` is one."""

    def token_text(self, token_id: int) -> str:
        """The token alone, as text; half a character reads U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token alone, as bytes."""


def chat_logprobs(vocabulary: Vocabulary, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a chat choice or of one of its chunks. Both sequences have one entry per token."""
    raise NotImplementedError


def completion_logprobs(
    vocabulary: Vocabulary, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], text_offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice or chunk. `text_offset`: characters of the choice before these tokens."""
    raise NotImplementedError
