"""Which host slots are in use, and which hold what still stands on the device.

A slot is held by a sequence, or it is free. A free one may be the copy of a device block that is full, and so will not
change while anybody holds it: who swaps that block out takes the copy, and has nothing to move. Copies are given away
last, the oldest first. What a step's copies still read, or fill with a copy, is neither held nor free until `settle`:
they have not run when the plan is made.
"""

from collections.abc import Iterable, Sequence

from fairlane.scheduler.planner.steps import Copy, require


class HostSlots:
    """The slots of one host pool. Raises ValueError for a negative count."""

    def __init__(self, count: int) -> None:
        require("host_slots", count, 0)
        self._count = count
        self._unused = list(range(count - 1, -1, -1))
        self._copies: dict[int, int] = {}
        """Slots by the device blocks that they are copies of."""
        self._arriving: dict[int, int] = {}
        """Copies from the next `settle` on."""
        self._retired: list[int] = []

    @property
    def free(self) -> int:
        """Slots that `fill` could take, copies among them."""
        return len(self._unused) + len(self._copies)

    @property
    def held(self) -> int:
        """Slots that sequences hold."""
        waiting = len(self._retired) + len(self._arriving)
        return self._count - self.free - waiting

    @property
    def unused(self) -> int:
        """Of the free ones, those that hold nothing."""
        return len(self._unused)

    def unsaved(self, blocks: Sequence[int]) -> int:
        """How many of these device blocks have no copy."""
        return len(blocks) - sum(map(self._copies.__contains__, blocks)) if self._copies else len(blocks)

    def fill(self, blocks: Sequence[int]) -> tuple[list[int], list[Copy]]:
        """A slot for each of these device blocks, and the copies to make. As many must be free."""
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
        """Copies to make of those of these full device blocks that have none; as many slots must be unused."""
        missing = [block for block in blocks if block not in self._copies and block not in self._arriving]
        copies = [Copy(block, self._unused.pop()) for block in missing]
        self._arriving.update(copies)
        return copies

    def leave(self, slots: list[int], blocks: Sequence[int]) -> None:
        """What a sequence held goes back to the device: the first slots stay as copies of these full blocks."""
        self._arriving.update(zip(blocks, slots, strict=False))
        self._retired += slots[len(blocks) :]
        slots.clear()

    def retire(self, slots: list[int]) -> None:
        """Forget what a sequence holds in slots that this step's copies may still read or write."""
        self._retired += slots
        slots.clear()

    def release(self, slots: list[int]) -> None:
        """Forget what a sequence holds."""
        self._unused += slots
        slots.clear()

    def forget(self, block: int) -> None:
        """Nobody holds this device block any more: its copy is worth nothing."""
        if block in self._copies:
            self._unused.append(self._copies.pop(block))
        elif block in self._arriving:
            self._retired.append(self._arriving.pop(block))

    def settle(self) -> None:
        """The step's copies have run."""
        self._unused += self._retired
        self._copies |= self._arriving
        self._retired, self._arriving = [], {}

    def fault(self, references: Sequence[int], held: Iterable[int], count: int) -> str:
        """What is wrong, if anything, where sequences hold these slots of so many, and so many tables each block."""
        copies = {**self._copies, **self._arriving}
        if any(references[block] == 0 for block in copies):
            return "a copy of a block that nobody holds"
        every = sorted([*self._unused, *self._retired, *self._copies.values(), *self._arriving.values(), *held])
        return "" if every == list(range(count)) else "a slot is lost or held twice"

    def _take(self) -> int:
        if not self._unused:
            self._unused.append(self._copies.pop(next(iter(self._copies))))
        return self._unused.pop()
