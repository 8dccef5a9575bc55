"""The lines of a batch's input that have not ended, read ahead of the lines that run."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import Batch, Progress
from fairlane.gateway.batches.host import BatchHost
from fairlane.gateway.batches.lines import TOO_LONG, BatchLine, LineIndex, read_line
from fairlane.gateway.batches.storage import read_all
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES

# Maximum bytes and lines of one read of the input.
READ_AHEAD_BYTES, MOST_AHEAD = 2**20, 1_000
TURN_LINES = 64


class InputLines:
    """The input of one batch, and the set of its lines that have ended."""

    def __init__(self, batch: Batch, host: BatchHost, progress: Progress) -> None:
        """`index` has to be set before any line is read."""
        self._batch, self._host = batch, host
        self.progress = progress
        self.index = LineIndex(b"")

    def undone(self) -> Iterator[int]:
        return (place for place in range(len(self.index)) if not self.progress.is_done(place))

    def tokens_left(self, unstated: int) -> int:
        return sum(self.index[place].tokens(unstated) for place in self.undone())

    async def read(self) -> AsyncGenerator[tuple[int, BatchLine]]:
        """Yield the place and content of each line that has not ended. Raises NotStored."""
        ahead, start, slab = list[int](), 0, b""
        undone = await asyncio.to_thread(lambda: list(self.undone()))
        for number, place in enumerate(undone):
            if number % TURN_LINES == 0:
                await asyncio.sleep(0)  # yields even if no line waits for anything
            entry = self.index[place]
            if not ahead or place > ahead[-1]:
                ahead = self._stretch(undone, number)
                last = self.index[ahead[-1]]
                start, end = entry.start, last.start + (0 if last.flags & TOO_LONG else last.length)
                name = files.contents(self._batch.input_file_id)
                slab = await read_all(self._host.storage, name, start, end) if end > start else b""
            raw = slab[entry.start - start : entry.start - start + entry.length]
            if len(raw) <= LARGE_BODY_BYTES:
                yield place, read_line(raw, entry, self._batch.endpoint)
            else:
                read = partial(read_line, raw, entry, self._batch.endpoint)
                yield place, await self._host.room.in_thread(self._batch.tenant, len(raw), read)

    def _stretch(self, undone: Sequence[int], number: int) -> list[int]:
        first = self.index[undone[number]]
        found = [undone[number]]
        if first.flags & TOO_LONG:
            return found
        for place in undone[number + 1 : number + MOST_AHEAD]:
            entry = self.index[place]
            if entry.flags & TOO_LONG or entry.start + entry.length - first.start > READ_AHEAD_BYTES:
                break
            found.append(place)
        return found
