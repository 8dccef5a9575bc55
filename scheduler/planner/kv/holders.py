"""The tables that hold each KV block, and how many blocks each set of tables shares.

Blocks with the same holders are counted once for the set, so the number of blocks that several tables would free
together is a sum over sets, regardless of the tables' lengths."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

Holders = frozenset["_Table"]
NOBODY: Holders = frozenset()


class _Table:
    """Keeps the list alive, so that its identity is not reused."""

    __slots__ = ("alone", "blocks", "shares")

    def __init__(self, blocks: Sequence[int]) -> None:
        self.blocks = blocks
        self.alone: Holders = frozenset({self})
        self.shares: set[Holders] = set()


class BlockHolders:
    """The holders of every block of a pool. A table is known by its identity, not by its content."""

    def __init__(self, blocks: int) -> None:
        self._holders = [NOBODY] * blocks
        self._tables: dict[int, _Table] = {}
        self._common: dict[Holders, int] = {}

    def count(self, block: int) -> int:
        return len(self._holders[block])

    def counts(self) -> list[int]:
        return [*map(len, self._holders)]

    def begin(self, table: Sequence[int], block: int) -> None:
        self._holders[block] = self._known(table).alone

    def add(self, table: Sequence[int], blocks: Sequence[int]) -> None:
        holder = self._known(table)
        changes = {
            before: before | holder.alone if before else holder.alone
            for before in map(self._holders.__getitem__, blocks)
        }
        self._change(blocks, changes)

    def remove(self, table: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """Remove a holder of these blocks, which are no longer in its table. Return those without a holder.

        Raises KeyError with the first block that the table does not hold."""
        holder = self._tables.get(id(table))
        changes: dict[Holders, Holders] = {}
        for block in blocks:
            before = self._holders[block]
            if before not in changes:
                if holder not in before:
                    raise KeyError(block)
                left = before - holder.alone
                changes[before] = next(iter(left)).alone if len(left) == 1 else left
        self._change(blocks, changes)
        if not table:
            self._tables.pop(id(table), None)
        return [block for block in blocks if not self._holders[block]]

    def freed_by(self, tables: Collection[Sequence[int]]) -> int:
        freed = sum(map(len, tables))
        if not self._common:
            return freed
        known = [self._tables[id(table)] for table in tables if id(table) in self._tables]
        for holders, among in Counter(chain.from_iterable([table.shares for table in known])).items():
            freed -= self._common[holders] * (among - (among == len(holders)))
        return freed

    def fault(self) -> str:
        common = Counter([holders for holders in self._holders if len(holders) > 1])
        if common != self._common:
            return f"{sum(self._common.values())} counted, {common.total()} shared"
        if any(table.shares != {one for one in common if table in one} for table in self._tables.values()):
            return "a table is missing from its shared blocks"
        return ""

    def _known(self, table: Sequence[int]) -> _Table:
        found = self._tables.get(id(table))
        if found is None:
            found = self._tables[id(table)] = _Table(table)
        return found

    def _change(self, blocks: Iterable[int], changes: dict[Holders, Holders]) -> None:
        numbers: Counter[Holders] = Counter()
        for block in blocks:
            before = self._holders[block]
            self._holders[block] = changes[before]
            numbers[before] += 1
        for before, number in numbers.items():
            self._recount(before, -number)
            self._recount(changes[before], number)

    def _recount(self, holders: Holders, change: int) -> None:
        if len(holders) < 2:
            return
        number = self._common.get(holders, 0) + change
        if number:
            self._common[holders] = number
            for table in holders if number == change else ():
                table.shares.add(holders)
        else:
            del self._common[holders]
            for table in holders:
                table.shares.discard(holders)
