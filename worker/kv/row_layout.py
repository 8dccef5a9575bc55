"""The layout of a step's rows: their tokens' locations in the KV cache, and the array that holds their block tables."""

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from fairlane.scheduler.planner.steps import Row, SeqId

Numbers = npt.NDArray[np.int64]

# Minimum spare width of a table, in blocks, when all tables are laid out.
_SPARE_WIDTH = 16


class RowLayout:
    """Packed rows as arrays, one after another.

    `tokens` [3, tokens]: each token's id, position, and line of a layer's memory. By row: `starts`, `counts`, `firsts`
    (the first position). `ends`: the last tokens of the rows that sample. `longest`: one more than the highest
    position."""

    def __init__(self, rows: Sequence[Row], block_size: int, block_lines: int) -> None:
        """`block_lines` is the number of lines from one block's first line to the next block's."""
        _, token_ids, firsts, tables, samples, _ = zip(*rows, strict=True)
        self.block_tables: Sequence[tuple[int, ...]] = tables
        self.tokens: Numbers
        ids, counts = [*chain.from_iterable(token_ids)], [*map(len, token_ids)]
        if len(ids) == len(rows) and all(samples):  # only decodes: lists are faster here
            lines = [
                table[first // block_size] * block_lines + first % block_size
                for table, first in zip(tables, firsts, strict=True)
            ]
            found = np.array((ids, firsts, lines, [*range(len(ids))], counts), np.int64)
            self.tokens, self.starts, self.counts, self.firsts = found[:3], found[3], found[4], found[1]
            self.ends, self.longest = self.starts, max(firsts) + 1
            return
        self.counts, self.firsts = np.array((counts, firsts), np.int64)
        self.starts = np.cumsum(self.counts) - self.counts
        self.ends = (self.starts + self.counts - 1)[np.array(samples, np.bool_)]
        self.longest = int((self.firsts + self.counts).max())
        positions = np.arange(len(ids)) + np.repeat(self.firsts - self.starts, self.counts)
        self.tokens = np.array((np.array(ids, np.int64), positions, self._lines(positions, block_size, block_lines)))

    @property
    def widths(self) -> Numbers:
        return np.array([*map(len, self.block_tables)], np.int64)

    @property
    def blocks(self) -> Numbers:
        return np.fromiter(chain.from_iterable(self.block_tables), np.int64)

    def _lines(self, positions: Numbers, block_size: int, block_lines: int) -> Numbers:
        widths = self.widths
        places, offsets = np.divmod(positions, block_size)
        places += np.repeat(np.cumsum(widths) - widths, self.counts)
        lines: Numbers = self.blocks[places] * block_lines + offsets
        return lines


class BlockTables:
    """The block tables of running sequences, each in a line of one array.

    A step writes only the tables that changed. A returned value is valid until the next call."""

    def __init__(self) -> None:
        # Each sequence's offset in `flat`, and the table written there.
        self._known: dict[SeqId, tuple[int, tuple[int, ...]]] = {}
        self._lay_out(0, 0)

    def starts(self, rows: Sequence[Row]) -> list[int]:
        known = [self._known.get(row.seq) for row in rows]
        changed = [row for row, one in zip(rows, known, strict=True) if one is None or one[1] is not row.block_table]
        if changed:
            self._write(changed, rows)
        return [self._known[row.seq][0] for row in rows]

    def lines(self, rows: Sequence[Row], width: int) -> npt.NDArray[np.int32]:
        """Return each row's table, int32 [rows, width]; entries after a shorter table are undefined."""
        places, kept = np.array(self.starts(rows), np.int64) // self._width, min(width, self._width)
        found = np.zeros((len(rows), width), np.int32)
        found[:, :kept] = self._array.reshape(self._height, self._width)[places, :kept]
        return found

    def _write(self, changed: Sequence[Row], rows: Sequence[Row]) -> None:
        new = sum(row.seq not in self._known for row in changed)
        if new > len(self._free):
            self._keep_only({row.seq for row in rows})
        widest = max(len(row.block_table) for row in changed)
        if new > len(self._free) or widest > self._width:
            self._lay_out(max(2 * len(rows), self._height), max(widest + widest // 4 + _SPARE_WIDTH, self._width))
            changed = rows
        for row in changed:
            table = row.block_table
            start, old = self._known.get(row.seq) or (self._free.pop(), ())
            if table[:-1] == old:
                self._array[start + len(old)] = table[-1]
            else:
                self._array[start : start + len(table)] = table
            self._known[row.seq] = start, table

    def _keep_only(self, seqs: set[SeqId]) -> None:
        for seq in [seq for seq in self._known if seq not in seqs]:
            self._free.append(self._known.pop(seq)[0])

    def _lay_out(self, height: int, width: int) -> None:
        self._height, self._width = height, width
        self._known.clear()
        self._free = [line * width for line in range(height)]
        self._array: Numbers = np.zeros(height * width, np.int64)
        self.flat = torch.from_numpy(self._array)


def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the numbers on the device; by pinned memory, because other copies may wait for queued GPU work."""
    if device.type == "cpu":
        return numbers
    if device.type != "cuda" or numbers.numel() == 0:
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


def int32(numbers: "array[int]") -> torch.Tensor:
    """Return the numbers as a tensor without a copy; they must not change while the tensor lives."""
    return torch.frombuffer(numbers, dtype=torch.int32) if numbers else torch.empty(0, dtype=torch.int32)
