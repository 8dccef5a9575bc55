"""Prompts of a simulation: token ids that are alike where a trace says that prompts are, made only when asked for.

All tokens of a block that a trace names have one id, the block's; what no trace names has an id that no other prompt
has. So two prompts agree to the token up to where their blocks part, and the prefix cache, which compares token ids,
finds what it would find in the texts. A prompt of 100,000 tokens is kept as the names of its 196 blocks.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import overload

from scheduler.traces import HASHED_TOKENS


class Prompt(Sequence[int]):
    """Token ids by blocks. `rest`: the id of every token behind the blocks; more blocks than the prompt has are
    ignored."""

    __slots__ = ("_blocks", "_length", "_rest")

    def __init__(self, length: int, blocks: tuple[int, ...] = (), rest: int = 0) -> None:
        self._length, self._blocks, self._rest = length, blocks, rest

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...

    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        if isinstance(place, int):
            return self._id(range(self._length)[place] // HASHED_TOKENS)
        first, end, step = place.indices(self._length)
        ids = tuple(chain.from_iterable(self._stretches(first, end))) if step > 0 else self[:][place]
        return ids[::step] if step > 1 else ids

    def _stretches(self, first: int, end: int) -> Iterator[Iterator[int]]:
        """The ids from `first` to before `end`, a block at a time."""
        named = min(end, len(self._blocks) * HASHED_TOKENS)
        while first < named:
            block = first // HASHED_TOKENS
            behind = min(named, (block + 1) * HASHED_TOKENS)
            yield repeat(self._blocks[block], behind - first)
            first = behind
        yield repeat(self._rest, max(0, end - first))

    def _id(self, block: int) -> int:
        return self._blocks[block] if block < len(self._blocks) else self._rest
