"""What a worker decodes, by what sequences that stand together in the order have in common; kept from step to step."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product

from scheduler.lanes import Lane, LaneName
from scheduler.sequence import Kind, Sequence
from scheduler.steps import SeqId


class Decodes:
    """Hundreds of sequences, of which a step changes a few."""

    def __init__(self, lanes: Mapping[LaneName, Lane]) -> None:
        self.counts: Counter[LaneName] = Counter()
        self._lanes = lanes
        self._kinds: dict[SeqId, Kind] = {}
        self._by_kind: dict[Kind, tuple[Sequence, ...]] = {}
        self._eldest_ms = dict.fromkeys(lanes, math.inf)
        """When the first of those that are not promoted arrived, or earlier."""

    def add(self, seq: Sequence) -> None:
        """It decodes from now on."""
        lane = seq.job.lane
        self.counts[lane] += 1
        self._eldest_ms[lane] = min(self._eldest_ms[lane], seq.arrived_ms)
        self._put(seq, seq.kind)

    def remove(self, seq: Sequence) -> None:
        """It does no longer; one that did not is fine."""
        kind = self._kinds.pop(seq.id, None)
        if kind is not None:
            self.counts[kind[0]] -= 1
            self._take(seq, kind)

    def by_kind(self, now_ms: float) -> dict[Kind, tuple[Sequence, ...]]:
        """All of them as they stand now: what happens later does not change it."""
        for name, lane in self._lanes.items():
            if self._eldest_ms[name] <= now_ms - lane.long_wait_ms:
                self._promote(name, now_ms - lane.long_wait_ms)
        return self._by_kind.copy()

    def promotes(self, now_ms: float) -> bool:
        """Some may stand higher now than when `by_kind` was last asked."""
        return any(self._eldest_ms[name] <= now_ms - lane.long_wait_ms for name, lane in self._lanes.items())

    def alike(self) -> Iterator[tuple[LaneName, tuple[Sequence, ...]]]:
        """All of them, in lots of one lane each."""
        return ((kind[0], alike) for kind, alike in self._by_kind.items())

    def _promote(self, name: LaneName, arrived_before_ms: float) -> None:
        """Those of a lane that have waited long stand one lane higher."""
        alike = [kind for kind in self._by_kind if kind[0] is name and not kind[3]]
        staying = []
        for seq in [seq for kind in alike for seq in self._by_kind[kind]]:
            if seq.arrived_ms <= arrived_before_ms:
                self._take(seq, seq.kind)
                self._put(seq, (*seq.kind[:3], True))
            else:
                staying.append(seq.arrived_ms)
        self._eldest_ms[name] = min(staying, default=math.inf)

    def _put(self, seq: Sequence, kind: Kind) -> None:
        self._kinds[seq.id] = kind
        self._by_kind[kind] = (*self._by_kind.get(kind, ()), seq)

    def _take(self, seq: Sequence, kind: Kind) -> None:
        others = tuple([one for one in self._by_kind[kind] if one is not seq])
        if others:
            self._by_kind[kind] = others
        else:
            del self._by_kind[kind]


def kinds_of(name: LaneName, tenant: str) -> list[Kind]:
    """Every kind that a tenant's sequences of one lane can be of."""
    return list(product((name,), (tenant,), (False, True), (False, True)))
