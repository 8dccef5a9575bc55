"""Prompts of a stated length, all different but for what a trace says is shared."""

import random
from collections.abc import Sequence

from fairlane.cli.bench.load import BenchRequest

WORDS = tuple(
    """
    the river carried small boats past old stone houses while people talked about weather music bread science and long
    journeys over high mountains under bright stars near quiet fields where children played every summer evening before
    dark winter came with cold wind heavy snow warm fires good books strong tea simple food new songs great plans clear
    water green leaves open doors wide streets early trains late letters slow clocks round tables
    """.split()  # noqa: SIM905 - a hundred quoted words are harder to read
)
"""Common words: in most vocabularies a token each."""


class PromptMaker:
    """Makes them as token ids where the model's ids of common words are known, else as text of about so many tokens.

    One seed makes the same prompts again: a second run with it would find them in the prefix cache. Blocks that a trace
    names are made from their names, so two prompts agree up to where their names part, and no further.
    """

    def __init__(self, seed: str, vocabulary: Sequence[int] = ()) -> None:
        """`vocabulary`: ids of tokens to draw from; none: prompts are text."""
        self._seed = seed
        self._vocabulary = vocabulary

    def prompt(self, request: BenchRequest) -> list[int] | str:
        """Of exactly `prompt_tokens` ids, or as many words."""
        drawn: list[int] = []
        size = request.block_tokens
        for block in request.hash_ids[: request.prompt_tokens // size]:
            drawn += self._places(f"{self._seed}/block/{block}", size)
        rest = request.prompt_tokens - len(drawn)
        drawn += self._places(f"{self._seed}/own/{request.number}", rest)
        if self._vocabulary:
            return [self._vocabulary[place] for place in drawn]
        return " ".join([WORDS[place] for place in drawn])

    def _places(self, seed: str, count: int) -> list[int]:
        draws = random.Random(seed)
        return draws.choices(range(len(self._vocabulary) or len(WORDS)), k=count)
