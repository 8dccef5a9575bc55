"""What the penalties of a choice count: its tokens, each once, in arrays that grow with the output."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

_FIRST_ROOM = 64
"""Tokens that a tally has room for at first."""


class Tally:
    """Distinct tokens in the order of their first appearance, and how often each was counted."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._places: dict[int, int] = {}
        self._tokens = np.zeros(_FIRST_ROOM, np.int64)
        self._counts = np.zeros(_FIRST_ROOM, np.float32)
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count one more."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[place] = token_id
        self._counts[place] += 1.0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The tokens; a view."""
        return self._tokens[: len(self)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of them was counted; a view."""
        return self._counts[: len(self)]


class TokenHistory:
    """The tokens of one choice. Nothing is counted before a penalty asks; then each new token takes a moment."""

    def __init__(self, prompt: Sequence[int], generated: Iterable[int] = ()) -> None:
        self._prompt = prompt
        self._generated = [*generated]
        self._tallies: list[Tally] = []
        """Those that were asked for."""

    @property
    def length(self) -> int:
        """Tokens generated so far."""
        return len(self._generated)

    @cached_property
    def generated(self) -> Tally:
        """Of the output."""
        return self._count(self._generated)

    @cached_property
    def seen(self) -> Tally:
        """Of prompt and output."""
        return self._count((*self._prompt, *self._generated))

    def append(self, token_id: int) -> None:
        """One more generated token."""
        self._generated.append(token_id)
        for tally in self._tallies:
            tally.add(token_id)

    def _count(self, token_ids: Iterable[int]) -> Tally:
        tally = Tally(token_ids)
        self._tallies.append(tally)
        return tally
