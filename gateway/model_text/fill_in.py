"""Prompts for models that fill in the text between a prefix and a suffix."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

# Tokens before the prefix, before the suffix, and before the text between them, by family of models.
_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
)


class FillIn(NamedTuple):
    """A vocabulary's tokens for it."""

    prefix: int
    suffix: int
    middle: int

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that the text between the two follows."""
        return (self.prefix, *prefix, self.suffix, *suffix, self.middle)


def find_fill_in(token_id: Callable[[str], int | None]) -> FillIn | None:
    """Return the tokens of the first family of which the vocabulary has all, or None."""
    for names in _NAMES:
        found = [token for token in map(token_id, names) if token is not None]
        if len(found) == len(names):
            return FillIn(*found)
    return None
