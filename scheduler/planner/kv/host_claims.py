"""Who may keep KV in the host pool, beyond what happens to be free.

Two promises. `exact` work is never recomputed while its worker lives: before its first row the slots are counted that
it would fill at its longest, and from then on nobody else takes them, so it can always be swapped. What the host can
never hold stays on the device until it ends, as much as may stay there, but for what of it finds room in the host just
then. Nothing else of exact work begins.

And paused work, which runs again when its tenant's budget allows, keeps at most the tenant's share of the host pool:
what is more is dropped, to be computed again. Shares go by weight among the tenants of which anything is here, so a
tenant alone has all. Exact work that is paused does not count: its slots were counted when it began, and are nobody
else's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Job

STAYING_PART = 2
"""Exact work that cannot leave may fill half of the device, or as much as the first of it needs. The other half is for
tenants that have nothing here yet: else one tenant's could keep another's waiting until it ends."""


class HostClaims:
    """Claims on one worker's host pool. `idle`: a live view of the sequences at their grant, among others."""

    def __init__(self, pool: BlockPool, idle: Mapping[SeqId, Sequence]) -> None:
        self._pool = pool
        self._idle = idle
        self._groups: Counter[str] = Counter()
        """Of each tenant that has any here."""
        self._weights: dict[str, float] = {}
        self._leaving: dict[SeqId, Sequence] = {}
        """Exact work whose slots are counted."""
        self._staying: dict[SeqId, Sequence] = {}
        """Exact work that yields only what the host has room for just then."""

    def came(self, job: Job) -> None:
        """Count a job's tenant for the shares."""
        self._groups[job.tenant] += 1
        self._weights[job.tenant] = job.weight

    def left(self, job: Job) -> None:
        """Uncount a job that has ended or left."""
        self._groups[job.tenant] -= 1
        if not self._groups[job.tenant]:
            del self._groups[job.tenant], self._weights[job.tenant]

    def share(self, tenant: str) -> int:
        """Host slots that a tenant's paused work may keep."""
        weight = self._weights.get(tenant, 1.0)
        return int(self._pool.host_slots * weight / sum(self._weights.values())) if self._weights else 0

    def may_begin(self, seq: Sequence) -> bool:
        """Count it if it has to be counted; False: it cannot be now."""
        return self.covers(seq) or self.count(seq) is not None

    def covers(self, seq: Sequence) -> bool:
        """It is not exact, or was counted."""
        return not seq.job.exact or seq.id in self._leaving or seq.id in self._staying

    def may_leave(self, seq: Sequence) -> bool:
        """It is exact, and its slots are counted."""
        return seq.id in self._leaving

    def stays(self, seq: Sequence) -> bool:
        """It is exact, and its slots are not counted."""
        return seq.id in self._staying

    @property
    def unclaimed(self) -> int:
        """Host slots that are neither held nor counted for exact work."""
        return self._pool.host_slots - self._pool.slots.held - self.owed

    @property
    def owed(self) -> int:
        """Slots that exact work was promised and does not hold."""
        return sum([self._most(seq) - len(seq.slots) for seq in self._leaving.values()])

    def count(
        self, seq: Sequence, below: Iterable[Sequence] = (), *, may_stay: bool = False, alone: bool = False
    ) -> list[Sequence] | None:
        """Count a sequence before it begins: the work that is to be dropped from the host for it, of that which stands
        `below` it, the least urgent first; None: it cannot begin now. `may_stay`: on any part of the device, where only
        claims of others are in the way of its own; `alone`: so too, nothing else could run."""
        most = self._most(seq)
        if sum(map(self._most, self._leaving.values())) + most <= self._pool.host_slots:
            dropped, room = list[Sequence](), self.unclaimed
            for other in below:
                if room >= most:
                    break
                if other.slots and not other.job.exact:
                    dropped.append(other)
                    room += len(other.slots)
            if room >= most:
                self._leaving[seq.id] = seq
                return dropped
        staying = sum(map(self._most, self._staying.values()))
        fills_all = may_stay or alone  # what is not a tenant's first leaves the other half to those that are
        if not fills_all and most <= self._pool.host_slots:
            return None
        if not staying or staying + most <= self._pool.blocks // (1 if fills_all else STAYING_PART):
            self._staying[seq.id] = seq
            return []
        return None

    def release(self, seq: Sequence) -> None:
        """Give up the claim of a sequence that is over, or did not begin after all."""
        self._leaving.pop(seq.id, None)
        self._staying.pop(seq.id, None)

    def beyond_share(self) -> list[Sequence]:
        """Paused work that its tenant's share does not hold any more, what was paused last first."""
        held, beyond = Counter(self.paused_slots()), list[Sequence]()
        for seq in sorted(filter(_keeps_slots, self._idle.values()), key=_paused_since, reverse=True):
            if held[seq.job.tenant] > self.share(seq.job.tenant):
                held[seq.job.tenant] -= len(seq.slots)
                beyond.append(seq)
        return beyond

    def paused_slots(self) -> dict[str, int]:
        """Host slots that paused work holds, by tenant; exact work's are its own."""
        held: Counter[str] = Counter()
        for seq in filter(_keeps_slots, self._idle.values()):
            held[seq.job.tenant] += len(seq.slots)
        return held

    def room(self) -> "HostRoom":
        """The slots that sequences which yield now may fill."""
        return HostRoom(self, self._pool.slots.free)

    def _most(self, seq: Sequence) -> int:
        return self._pool.blocks_for(seq.job.max_total_tokens)


class HostRoom:
    """Slots that are left while victims are chosen, for each by what it is."""

    def __init__(self, claims: HostClaims, free: int) -> None:
        self._claims = claims
        self._free = free
        self._owed = claims.owed
        self._paused: Counter[str] | None = None
        """Slots that paused work has, by tenant; looked up for the first victim that is paused."""

    def of(self, seq: Sequence) -> int:
        if self._claims.may_leave(seq):
            return self._free
        room = self._free - self._owed
        if not seq.is_runnable and seq.job.exact:
            return 0  # it could not be dropped again
        if not seq.is_runnable:
            room = min(room, self._claims.share(seq.job.tenant) - self._paused_slots[seq.job.tenant])
        return max(0, room)

    def take(self, seq: Sequence, slots: int) -> None:
        self._free -= slots
        if self._claims.may_leave(seq):
            self._owed -= slots
        elif not seq.is_runnable:
            self._paused_slots[seq.job.tenant] += slots

    @property
    def _paused_slots(self) -> Counter[str]:
        if self._paused is None:
            self._paused = Counter(self._claims.paused_slots())
        return self._paused


def _keeps_slots(seq: Sequence) -> bool:
    return bool(seq.slots) and not seq.job.exact and not seq.is_runnable


def _paused_since(seq: Sequence) -> tuple[float, SeqId]:
    return seq.stalled_since_ms or 0.0, seq.id
