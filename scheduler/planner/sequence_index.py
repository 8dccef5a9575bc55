"""Every sequence of a worker, filed by what it could do next, so that no step looks at all that waits.

Begun work is held one by one: the KV pools bound it. What decodes is kept by lane, tenant and class, from step to step,
since a step changes a few of hundreds. Waiting work is filed by lane, tenant and due time; a step looks at the first of
the tenants served least, and at the eldest of what has waited long enough to be promoted.
"""

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
    """What a worker decodes, by kind: hundreds of sequences, of which a step changes a few."""

    def __init__(self, lanes: Mapping[LaneName, Lane]) -> None:
        self.counts: Counter[LaneName] = Counter()
        self._lanes = lanes
        self._kinds: dict[SeqId, Kind] = {}
        self._by_kind: dict[Kind, tuple[Sequence, ...]] = {}
        self._next_ms = dict.fromkeys(lanes, math.inf)
        """When the first of those that are not promoted will be, or earlier."""

    def add(self, seq: Sequence) -> None:
        """Add a sequence that begins to decode."""
        lane = seq.job.lane
        self.counts[lane] += 1
        self._next_ms[lane] = min(self._next_ms[lane], seq.promoted_ms)
        self._put(seq, seq.kind)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence that decodes no longer; one that did not is fine."""
        kind = self._kinds.pop(seq.id, None)
        if kind is not None:
            self.counts[kind[0]] -= 1
            self._take(seq, kind)

    def by_kind(self, now_ms: float) -> dict[Kind, tuple[Sequence, ...]]:
        """A snapshot of all decodes, with promotions up to now."""
        for name, next_ms in self._next_ms.items():
            if next_ms <= now_ms:
                self._promote(name, now_ms)
        return self._by_kind.copy()

    def promotes(self, now_ms: float) -> bool:
        """Some may stand higher now than when `by_kind` was last asked."""
        return any(next_ms <= now_ms for next_ms in self._next_ms.values())

    def alike(self) -> Iterator[tuple[LaneName, tuple[Sequence, ...]]]:
        """All decodes, grouped by kind, with the lane of each group."""
        return ((kind[0], alike) for kind, alike in self._by_kind.items())

    def _promote(self, name: LaneName, now_ms: float) -> None:
        """Those of a lane whose time has come stand one lane higher."""
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
    """Every sequence that is not over."""

    def __init__(self, lanes: Mapping[LaneName, Lane], *, window: float) -> None:
        self.lanes = {name: LaneIndex(lane, Counters(window)) for name, lane in lanes.items()}
        self.begun: dict[SeqId, Sequence] = {}
        """Runnable work that has begun: resident, or preempted and able to come back."""
        self.others: dict[SeqId, Sequence] = {}
        """Of that, what does not decode: prefills in progress, and what is to be resumed."""
        self.decodes = Decodes(lanes)
        self.idle: dict[SeqId, WaitReason] = {}
        """What is at its grant, or waits for a sibling's prefix, and which of both."""
        self.paused: dict[SeqId, Sequence] = {}
        """Of that, what has begun: it may hold blocks or host slots."""
        self.idle_counts: Counter[WaitReason] = Counter()
        """How many are idle, by reason."""
        self.turned_idle: dict[SeqId, WaitReason] = {}
        """Of these, what was filed since a step last asked; it empties this."""
        self.changes = 0
        """Grows whenever a sequence is filed or forgotten, or stops or goes on where it is."""
        self.most_tokens = 0
        """KV tokens that all that has begun can grow to."""
        self._asleep: dict[SeqId, Sequence] = {}
        """The others that are idle."""
        self._waiting: set[SeqId] = set()
        self._counted: dict[SeqId, tuple[bool, bool]] = {}
        """Begun work as it was counted in its lane: whether it had a token, and whether it was stopped."""

    def file(self, seq: Sequence) -> None:
        """Put a sequence where it belongs now: after every change of its state or grant."""
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
        """To call once a sequence was stopped where it is, or goes on."""
        self.changes += 1
        answered, away = self._counted[seq.id]
        if away == seq.runs:
            self._counted[seq.id] = answered, not away
            self.lanes[seq.job.lane].stop(seq.job.tenant, -1 if away else 1)

    @property
    def only_decode(self) -> bool:
        """All that is here decodes, if anything is."""
        return not (self.others or self.idle or self._waiting)

    def only_decodes(self) -> LaneName | None:
        """The lane of all that is here if that decodes; None where anything else is here, or several lanes."""
        if not self.only_decode:
            return None
        lanes = [name for name, count in self.decodes.counts.items() if count]
        return lanes[0] if len(lanes) == 1 else None

    def not_decoding(self) -> Iterator[Sequence]:
        """All the others that are not over."""
        waiting = [lane.all_waiting() for lane in self.lanes.values() if lane.waits]
        return chain(self.others.values(), self.paused.values(), self._asleep.values(), *waiting)

    def charge(self, job: Job, tokens: float) -> None:
        self.lanes[job.lane].charge(job.tenant, tokens, job.weight)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence; one that is unknown is fine."""
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
