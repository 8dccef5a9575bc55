"""Accounting of KV blocks, in integers. The bytes are in the worker's KV cache.

A block table lists the device blocks of a sequence's KV, in order of position; host slots hold the KV after it if that
was swapped out. A block may be in several tables; a slot belongs to one sequence."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

from fairlane.scheduler.planner.kv.holders import BlockHolders
from fairlane.scheduler.planner.kv.prefix_cache import PrefixCache, Scope
from fairlane.scheduler.planner.steps import Copy, require


class HostSlots:
    """The slots of one host pool, each held by a sequence or free. Raises ValueError for a negative count.

    A free slot may hold a copy of a full device block, so that swapping the block out moves nothing. Slots that a
    step's copies still read or fill are neither held nor free until `settle`: the copies run after the plan is made."""

    def __init__(self, count: int) -> None:
        require("host_slots", count, 0)
        self._count = count
        self._unused = list(range(count - 1, -1, -1))
        # Device block -> slot with a copy of it.
        self._copies: dict[int, int] = {}
        # Copies from the next `settle` on.
        self._arriving: dict[int, int] = {}
        self._retired: list[int] = []

    @property
    def free(self) -> int:
        return len(self._unused) + len(self._copies)

    @property
    def held(self) -> int:
        waiting = len(self._retired) + len(self._arriving)
        return self._count - self.free - waiting

    @property
    def copies(self) -> Mapping[int, int]:
        return self._copies

    @property
    def unused(self) -> int:
        return len(self._unused)

    def unsaved(self, blocks: Sequence[int]) -> int:
        return len(blocks) - sum(map(self._copies.__contains__, blocks)) if self._copies else len(blocks)

    def fill(self, blocks: Sequence[int]) -> tuple[list[int], list[Copy]]:
        copies: list[Copy] = []
        found = [self._copies.pop(block, None) for block in blocks]
        slots: list[int] = []
        for block, slot in zip(blocks, found, strict=True):
            if slot is None:
                slot = self._take()
                copies.append(Copy(block, slot))
            slots.append(slot)
        return slots, copies

    def copy_ahead(self, blocks: Iterable[int]) -> list[Copy]:
        missing = [block for block in blocks if block not in self._copies and block not in self._arriving]
        copies = [Copy(block, self._unused.pop()) for block in missing]
        self._arriving.update(copies)
        return copies

    def leave(self, slots: list[int], blocks: Sequence[int]) -> None:
        """Release slots whose content returned to the device; the first ones stay as copies of these full blocks."""
        self._arriving.update(zip(blocks, slots, strict=False))
        self._retired += slots[len(blocks) :]
        slots.clear()

    def retire(self, slots: list[int]) -> None:
        """Release slots that this step's copies may still read or write."""
        self._retired += slots
        slots.clear()

    def release(self, slots: list[int]) -> None:
        self._unused += slots
        slots.clear()

    def forget(self, block: int) -> None:
        if block in self._copies:
            self._unused.append(self._copies.pop(block))
        elif block in self._arriving:
            self._retired.append(self._arriving.pop(block))

    def settle(self) -> None:
        self._unused += self._retired
        self._copies |= self._arriving
        self._retired, self._arriving = [], {}

    def fault(self, references: Sequence[int], held: Iterable[int], count: int) -> str:
        copies = {**self._copies, **self._arriving}
        if any(references[block] == 0 for block in copies):
            return "a copy of a block without a holder"
        every = sorted([*self._unused, *self._retired, *self._copies.values(), *self._arriving.values(), *held])
        return "" if every == list(range(count)) else "a slot is lost or held twice"

    def _take(self) -> int:
        if not self._unused:
            self._unused.append(self._copies.pop(next(iter(self._copies))))
        return self._unused.pop()


class OutOfBlocks(RuntimeError):
    """More blocks or slots were requested than are free."""


class IntegrityError(RuntimeError):
    """The accounting is inconsistent; the message starts with the name of the broken invariant."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class BlockPool:
    """Device blocks and host slots, free or held. Callers check `can_allocate` and the free slots first: an impossible
    call raises OutOfBlocks and changes nothing. Blocks that the cache knows are allocated last. Raises ValueError for
    sizes out of range."""

    def __init__(self, *, blocks: int, block_size: int, host_slots: int, cache: PrefixCache | None = None) -> None:
        require("blocks", blocks, 1)
        require("block_size", block_size, 1)
        self.blocks = blocks
        self.block_size = block_size
        self.host_slots = host_slots
        # Size of one block's KV, for reports of preemptions; 0: not known.
        self.bytes_per_block = 0
        self.cache = PrefixCache(blocks=blocks, block_size=block_size) if cache is None else cache
        self._holders = BlockHolders(blocks)
        self._free = list(range(blocks - 1, -1, -1))
        self.slots = HostSlots(host_slots)

    @property
    def free_blocks(self) -> int:
        return len(self._free) + self.cache.idle

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        return self._holders.count(block)

    def freed_by(self, tables: Collection[Sequence[int]]) -> int:
        return self._holders.freed_by(tables)

    def can_allocate(self, count: int) -> bool:
        return count <= self.free_blocks

    def next_free(self, count: int) -> int | None:
        return self._free[-count] if count <= len(self._free) else None

    def allocate(self, table: list[int], count: int) -> None:
        if not self.can_allocate(count):
            raise OutOfBlocks(f"{count} blocks requested, {self.free_blocks} free")
        for _ in range(count):
            if not self._free:
                self._free = self.cache.evict()
            block = self._free.pop()
            self._holders.begin(table, block)
            table.append(block)

    def share(self, source: Sequence[int], count: int, table: list[int]) -> None:
        self._holders.add(table, source[:count])
        table += source[:count]

    def adopt(self, blocks: Sequence[int], table: list[int], first: int) -> None:
        """Put blocks that the cache found into a table at index `first`, replacing its own; some may be the same."""
        replaced = table[first : first + len(blocks)]
        same = set(blocks).intersection(replaced)
        added = [block for block in blocks if block not in same]
        for block in added:
            if self._holders.count(block) == 0:
                self.cache.hold(block)
        self._holders.add(table, added)
        table[first : first + len(blocks)] = blocks
        self._drop(table, [block for block in replaced if block not in same])

    def publish(self, scope: Scope, table: Sequence[int], first: int, chunks: Iterable[bytes]) -> int:
        """Publish the tokens of a table's blocks after the first ones, which the cache knows. Return how many it
        knows."""
        known, freed = self.cache.publish(scope, table, first, chunks)
        self._free.extend(freed)
        return known

    def forget(self, is_gone: Callable[[Scope], bool]) -> int:
        blocks = self.cache.forget(is_gone)
        self._free.extend(blocks)
        return len(blocks)

    def release(self, table: list[int], keep: int = 0) -> None:
        """Shorten a table to its first `keep` blocks. Blocks that no other table holds become free, last first."""
        dropped = table[keep:]
        dropped.reverse()
        del table[keep:]
        self._drop(table, dropped)

    def can_swap_out(self, count: int) -> bool:
        return count <= self.slots.free

    def swap_out(self, table: list[int], count: int, slots: list[int], keep: int = 0) -> list[Copy]:
        """Move a table's blocks from `keep` to before `count` to host slots in front of `slots`, and shorten it.

        Return the copies, which must run before the blocks are written again. Blocks with a copy on the host need
        none."""
        moved = table[keep:count]
        if not self.can_swap_out(len(moved)):
            raise OutOfBlocks(f"{len(moved)} host slots requested, {self.slots.free} free")
        slots[:0], copies = self.slots.fill(moved)
        self.release(table, keep)
        return copies

    def swap_in(self, slots: list[int], table: list[int], full: int = 0) -> list[Copy]:
        """Move the content of the slots into new blocks at a table's end. The slots are free after the next `settle`.

        Slots of the table's first `full` blocks, which are no longer written, stay as copies until they are needed."""
        first = len(table)
        self.allocate(table, len(slots))
        copies = [Copy(slot, block) for slot, block in zip(slots, table[first:], strict=True)]
        self.slots.leave(slots, table[first:full])
        return copies

    def check_integrity(self, tables: Iterable[Sequence[int]], slots: Iterable[Sequence[int]]) -> None:
        held: Counter[int] = Counter()
        for table in tables:
            _require("table_unique", len(set(table)) == len(table), f"a block appears twice in {table}")
            held.update(table)
        references = self._holders.counts()
        for block, count in enumerate(references):
            _require("references", held[block] == count, f"block {block}: {count}, in {held[block]} tables")
        fault = self._holders.fault()
        _require("shared_blocks", not fault, fault)
        free = [block for block, count in enumerate(references) if count == 0 and not self.cache.knows(block)]
        _require("free_blocks", sorted(self._free) == free, f"{len(self._free)} listed, {len(free)} unreferenced")
        fault = self.cache.fault(references)
        _require("prefix_cache", not fault, fault)
        fault = self.slots.fault(references, chain.from_iterable(slots), self.host_slots)
        _require("host_slots", not fault, fault)

    def _drop(self, table: Sequence[int], blocks: Sequence[int]) -> None:
        try:
            unheld = self._holders.remove(table, blocks)
        except KeyError as error:
            raise IntegrityError("double_free", f"block {error.args[0]}") from None
        for block in unheld:
            self.slots.forget(block)
            if not self.cache.keeps(block):
                self._free.append(block)


def _require(invariant: str, holds: bool, detail: str) -> None:
    if not holds:
        raise IntegrityError(invariant, detail)
