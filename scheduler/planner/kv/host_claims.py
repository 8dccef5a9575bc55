"""Reservations in the host pool.

`exact` work is never recomputed while its worker lives: the slots of its full length are reserved before its first row.
Paused work keeps at most its tenant's share of the pool, by weight among the tenants with work here."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Job

# Exact work that cannot be swapped may fill half of the device, or as much as its first sequence needs. The other half
# is for tenants without work here, which would otherwise wait until one tenant's work ends.
STAYING_PART = 2


class HostClaims:
    """Reservations in one worker's host pool. `idle` is a live view that includes the sequences at their grant."""

    def __init__(self, pool: BlockPool, idle: Mapping[SeqId, Sequence]) -> None:
        self._pool = pool
        self._idle = idle
        self._groups: Counter[str] = Counter()
        self._weights: dict[str, float] = {}
        # Exact work with reserved slots.
        self._leaving: dict[SeqId, Sequence] = {}
        # Exact work without reserved slots; it yields only as much as the host currently has room for.
        self._staying: dict[SeqId, Sequence] = {}

    def came(self, job: Job) -> None:
        self._groups[job.tenant] += 1
        self._weights[job.tenant] = job.weight

    def left(self, job: Job) -> None:
        self._groups[job.tenant] -= 1
        if not self._groups[job.tenant]:
            del self._groups[job.tenant], self._weights[job.tenant]

    def share(self, tenant: str) -> int:
        weight = self._weights.get(tenant, 1.0)
        return int(self._pool.host_slots * weight / sum(self._weights.values())) if self._weights else 0

    def may_begin(self, seq: Sequence) -> bool:
        return self.covers(seq) or self.count(seq) is not None

    def covers(self, seq: Sequence) -> bool:
        return not seq.job.exact or seq.id in self._leaving or seq.id in self._staying

    def may_leave(self, seq: Sequence) -> bool:
        return seq.id in self._leaving

    def stays(self, seq: Sequence) -> bool:
        return seq.id in self._staying

    @property
    def outstanding(self) -> int:
        return sum([self._most(seq) - len(seq.slots) for seq in self._leaving.values()])

    def count(
        self, seq: Sequence, below: Iterable[Sequence] = (), *, may_stay: bool = False, alone: bool = False
    ) -> list[Sequence] | None:
        """Reserve host slots for a sequence before it starts. Return the sequences to drop from the host for it, chosen
        from `below`, least urgent first; None: it cannot start now.

        `may_stay`: it may use any part of the device if only other reservations are in the way; `alone`: likewise,
        because nothing else could run."""
        most = self._most(seq)
        if sum(map(self._most, self._leaving.values())) + most <= self._pool.host_slots:
            dropped, room = list[Sequence](), self._pool.host_slots - self._pool.slots.held - self.outstanding
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
        fills_all = may_stay or alone  # only a tenant's first work may use the other half
        if not fills_all and most <= self._pool.host_slots:
            return None
        if not staying or staying + most <= self._pool.blocks // (1 if fills_all else STAYING_PART):
            self._staying[seq.id] = seq
            return []
        return None

    def release(self, seq: Sequence) -> None:
        self._leaving.pop(seq.id, None)
        self._staying.pop(seq.id, None)

    def beyond_share(self) -> list[Sequence]:
        held, beyond = self.paused_slots(), list[Sequence]()
        for seq in sorted(
            filter(_keeps_slots, self._idle.values()),
            key=lambda seq: (seq.stalled_since_ms or 0.0, seq.id),
            reverse=True,
        ):
            if held[seq.job.tenant] > self.share(seq.job.tenant):
                held[seq.job.tenant] -= len(seq.slots)
                beyond.append(seq)
        return beyond

    def paused_slots(self) -> Counter[str]:
        held: Counter[str] = Counter()
        for seq in filter(_keeps_slots, self._idle.values()):
            held[seq.job.tenant] += len(seq.slots)
        return held

    def room(self) -> "HostRoom":
        return HostRoom(self, self._pool.slots.free)

    def _most(self, seq: Sequence) -> int:
        return self._pool.blocks_for(seq.job.max_total_tokens)


class HostRoom:
    """Slots that are left while victims are chosen; the limit depends on the sequence."""

    def __init__(self, claims: HostClaims, free: int) -> None:
        self._claims = claims
        self._free = free
        self._outstanding = claims.outstanding

    def of(self, seq: Sequence) -> int:
        if self._claims.may_leave(seq):
            return self._free
        room = self._free - self._outstanding
        if not seq.is_runnable and seq.job.exact:
            return 0  # exact work cannot be dropped later
        if not seq.is_runnable:
            room = min(room, self._claims.share(seq.job.tenant) - self._paused_slots[seq.job.tenant])
        return max(0, room)

    def take(self, seq: Sequence, slots: int) -> None:
        self._free -= slots
        if self._claims.may_leave(seq):
            self._outstanding -= slots
        elif not seq.is_runnable:
            self._paused_slots[seq.job.tenant] += slots

    @cached_property
    def _paused_slots(self) -> Counter[str]:
        return self._claims.paused_slots()


def _keeps_slots(seq: Sequence) -> bool:
    return bool(seq.slots) and not seq.job.exact and not seq.is_runnable
