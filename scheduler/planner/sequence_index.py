"""Every sequence of a worker, indexed by its possible next action, so that no step scans all waiting work.

Decodes are kept by lane, tenant and class from step to step, since a step changes only a few of hundreds. Waiting work
is filed by lane, tenant and due time."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from fairlane.scheduler.planner.lane_index import LaneIndex, adjust
from fairlane.scheduler.planner.ordering import Counters
from fairlane.scheduler.planner.sequence import Kind, Sequence, State
from fairlane.scheduler.planner.steps import SeqId, WaitReason
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Job


class Decodes:
    """The decoding sequences of a worker, by kind: hundreds of sequences, of which a step changes a few."""

    def __init__(self, lanes: Mapping[LaneName, Lane]) -> None:
        self.counts: Counter[LaneName] = Counter()
        self._lanes = lanes
        self._kinds: dict[SeqId, Kind] = {}
        self._by_kind: dict[Kind, tuple[Sequence, ...]] = {}
        # A lower bound of the next promotion's time.
        self._next_ms = dict.fromkeys(lanes, math.inf)

    def add(self, seq: Sequence) -> None:
        lane = seq.job.lane
        self.counts[lane] += 1
        self._next_ms[lane] = min(self._next_ms[lane], seq.promoted_ms)
        self._put(seq, seq.kind)

    def remove(self, seq: Sequence) -> None:
        kind = self._kinds.pop(seq.id, None)
        if kind is not None:
            self.counts[kind[0]] -= 1
            self._take(seq, kind)

    def by_kind(self, now_ms: float) -> dict[Kind, tuple[Sequence, ...]]:
        for name, next_ms in self._next_ms.items():
            if next_ms <= now_ms:
                self._promote(name, now_ms)
        return self._by_kind.copy()

    def promotes(self, now_ms: float) -> bool:
        return any(next_ms <= now_ms for next_ms in self._next_ms.values())

    def alike(self) -> Iterator[tuple[LaneName, tuple[Sequence, ...]]]:
        return ((kind[0], alike) for kind, alike in self._by_kind.items())

    def _promote(self, name: LaneName, now_ms: float) -> None:
        alike = [kind for kind in self._by_kind if kind[0] is name and not kind[3]]
        staying = []
        for seq in [seq for kind in alike for seq in self._by_kind[kind]]:
            if seq.promoted_ms <= now_ms:
                self._take(seq, seq.kind)
                self._put(seq, (*seq.kind[:3], True))
            else:
                staying.append(seq.promoted_ms)
        self._next_ms[name] = min(staying, default=math.inf)

    def _put(self, seq: Sequence, kind: Kind) -> None:
        self._kinds[seq.id] = kind
        self._by_kind[kind] = (*self._by_kind.get(kind, ()), seq)

    def _take(self, seq: Sequence, kind: Kind) -> None:
        others = tuple([one for one in self._by_kind[kind] if one is not seq])
        if others:
            self._by_kind[kind] = others
        else:
            del self._by_kind[kind]


class SequenceIndex:
    """Every sequence that has not ended."""

    def __init__(self, lanes: Mapping[LaneName, Lane], *, window: float) -> None:
        self.lanes = {name: LaneIndex(lane, Counters(window)) for name, lane in lanes.items()}
        # Runnable started work: resident, or preempted and able to resume.
        self.begun: dict[SeqId, Sequence] = {}
        # Started work that does not decode: prefills in progress, and preempted sequences.
        self.others: dict[SeqId, Sequence] = {}
        self.decodes = Decodes(lanes)
        # Sequences at their grant or waiting for a sibling's prefix.
        self.idle: dict[SeqId, WaitReason] = {}
        # Idle sequences that have started: they may hold blocks or host slots.
        self.paused: dict[SeqId, Sequence] = {}
        self.idle_counts: Counter[WaitReason] = Counter()
        # Sequences that became idle since a step last read and cleared this.
        self.turned_idle: dict[SeqId, WaitReason] = {}
        # Incremented whenever a sequence is filed, removed, stopped or resumed.
        self.changes = 0
        # KV tokens that all started work can grow to.
        self.most_tokens = 0
        # Idle sequences that have not started.
        self._asleep: dict[SeqId, Sequence] = {}
        self._waiting: set[SeqId] = set()
        # Started work as counted in its lane: whether it had a token, and whether it was stopped.
        self._counted: dict[SeqId, tuple[bool, bool]] = {}

    def file(self, seq: Sequence) -> None:
        """File a sequence by its present state; must be called after every change of its state or grant."""
        lane = self.lanes[seq.job.lane]
        self.remove(seq)
        if not seq.is_runnable or seq.awaits_prefix:
            self._idle(seq)
            return
        if seq.is_new or not seq.is_resident:
            lane.lift(seq.job.tenant)
        if seq.is_new:
            self._waiting.add(seq.id)
            lane.add(seq)
        else:
            self.begun[seq.id] = seq
            if seq.state is State.DECODE:
                self.decodes.add(seq)
            else:
                self.others[seq.id] = seq
            self.most_tokens += seq.job.max_total_tokens
            counted = self._counted[seq.id] = bool(seq.output), not seq.runs
            lane.begin(seq.job.tenant, answered=counted[0], away=counted[1])

    def note_stop(self, seq: Sequence) -> None:
        self.changes += 1
        answered, away = self._counted[seq.id]
        if away == seq.runs:
            self._counted[seq.id] = answered, not away
            self.lanes[seq.job.lane].stop(seq.job.tenant, -1 if away else 1)

    @property
    def only_decode(self) -> bool:
        return not (self.others or self.idle or self._waiting)

    def only_decodes(self) -> LaneName | None:
        if not self.only_decode:
            return None
        lanes = [name for name, count in self.decodes.counts.items() if count]
        return lanes[0] if len(lanes) == 1 else None

    def not_decoding(self) -> Iterator[Sequence]:
        waiting = [lane.all_waiting() for lane in self.lanes.values() if lane.waits]
        return chain(self.others.values(), self.paused.values(), self._asleep.values(), *waiting)

    def charge(self, job: Job, tokens: float) -> None:
        self.lanes[job.lane].charge(job.tenant, tokens, job.weight)

    def remove(self, seq: Sequence) -> None:
        self.changes += 1
        lane, tenant = self.lanes[seq.job.lane], seq.job.tenant
        if self.begun.pop(seq.id, None) is not None:
            self.others.pop(seq.id, None)
            self.decodes.remove(seq)
            self.most_tokens -= seq.job.max_total_tokens
            answered, away = self._counted.pop(seq.id)
            lane.begin(tenant, answered=answered, away=away, count=-1)
        elif seq.id in self._waiting:
            self._waiting.remove(seq.id)
            lane.remove(seq)
        elif seq.id in self.idle:
            adjust(self.idle_counts, self.idle.pop(seq.id), -1)
            self.turned_idle.pop(seq.id, None)
            self.paused.pop(seq.id, None)
            self._asleep.pop(seq.id, None)

    def _idle(self, seq: Sequence) -> None:
        reason = WaitReason.PREFIX if seq.awaits_prefix and seq.is_runnable else WaitReason.GRANT
        self.idle[seq.id] = self.turned_idle[seq.id] = reason
        self.idle_counts[reason] += 1
        (self._asleep if seq.state is State.WAITING else self.paused)[seq.id] = seq
