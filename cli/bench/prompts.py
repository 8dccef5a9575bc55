"""Prompts of a given length, distinct except for what a trace shares."""

import random
from collections.abc import Sequence

from fairlane.cli.bench.load import BenchRequest

# Common words, each of which is one token in most vocabularies.
WORDS = tuple(
    """
    the river carried small boats past old stone houses while people talked about weather music bread science and long
    journeys over high mountains under bright stars near quiet fields where children played every summer evening before
    dark winter came with cold wind heavy snow warm fires good books strong tea simple food new songs great plans clear
    water green leaves open doors wide streets early trains late letters slow clocks round tables
    """.split()  # noqa: SIM905 - a hundred quoted words are harder to read
)


class PromptMaker:
    """Makes prompts as token ids if the model's ids of common words are known, else as text of about that many tokens.

    The same seed makes the same prompts, which a second run would find in the prefix cache. Blocks that a trace names
    are derived from their names, so two prompts share exactly the prefix that their names share."""

    def __init__(self, seed: str, vocabulary: Sequence[int] = ()) -> None:
        """`vocabulary`: token ids to draw from; empty makes prompts of text."""
        self._seed = seed
        self._vocabulary = vocabulary

    def prompt(self, request: BenchRequest) -> list[int] | str:
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
