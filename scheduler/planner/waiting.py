"""Waiting work as a step comes to see it, and why work waits."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice

from fairlane.scheduler.planner.priority import Ranked, Ranking
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.sequence_index import WAITING_PER_TENANT, SequenceIndex
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName

BACKFILL = 4
"""How many of a tenant's waiting requests a step looks at behind one that found no blocks."""


class WaitReason(StrEnum):
    """Why a sequence has no row in a step."""

    SLOTS = "slots"
    """The batch is full of more urgent work."""
    TOKENS = "tokens"
    """The step's token budget is spent on more urgent work."""
    PACE = "pace"
    """With it the step would take longer than decodes of the first lane can bear."""
    BLOCKS = "blocks"
    """KV blocks are short, and nobody that may yield holds enough."""
    HOST = "host"
    """It must never be computed again, and the host pool has no room left to swap it to."""
    HEAD = "head"
    """It would fit, but would delay a more urgent request that lacks blocks."""
    GRANT = "grant"
    """Its budget allows no further token yet."""
    PREFIX = "prefix"
    """A sibling choice is computing the prompt that both share."""
    PREEMPTED = "preempted"
    """It yielded its blocks in this very step."""


class WaitingWork:
    """Waiting work as a walk comes to it: a few of each tenant, the next once one is placed or found no blocks."""

    def __init__(self, index: SequenceIndex, ranking: Ranking) -> None:
        self._index = index
        self._ranking = ranking
        self._refused: Counter[tuple[LaneName, str]] = Counter()
        self._next: dict[tuple[LaneName, str], Iterator[Sequence]] = {}
        self._seen: set[SeqId] = set()
        self._ahead: defaultdict[tuple[LaneName, str], float] = defaultdict(float)
        """Weighted tokens of a tenant's work that was seen: what comes behind it stands as if they were charged, as by
        the start tags of fair queueing. Else one tenant could have a whole step, and the next one another."""

    def heads(self, name: LaneName) -> list[Ranked]:
        """What this lane brings into a walk; nothing a second time."""
        lane, now_ms = self._index.lanes[name], self._ranking.now_ms
        tenants = lane.least_served()
        first = [*lane.promoted(now_ms), *lane.guaranteed()]
        each = max(1, WAITING_PER_TENANT // max(1, len(tenants)))
        for tenant in tenants:
            place = name, tenant
            if place not in self._next:
                self._next[place] = waiting = lane.next_up(tenant, now_ms)
                first += islice(waiting, each)
        return self._unseen(first)

    def behind(self, seq: Sequence, reason: WaitReason | None) -> list[Ranked]:
        """What comes into view once this was placed, or refused for this reason."""
        place = seq.job.lane, seq.job.tenant
        if reason is not None:
            self._refused[place] += 1
            if reason not in (WaitReason.BLOCKS, WaitReason.HEAD) or self._refused[place] > BACKFILL:
                return []
        return self._unseen(islice(self._next.get(place, iter(())), 1))

    def _unseen(self, sequences: Iterable[Sequence]) -> list[Ranked]:
        found, seen, all_ahead, stand = [], self._seen, self._ahead, self._ranking.stand
        for seq in sequences:
            if seq.id not in seen:
                seen.add(seq.id)
                job = seq.job
                place = job.lane, job.tenant
                ahead = all_ahead[place]
                found.append(stand(seq, ahead))
                all_ahead[place] = ahead + seq.length / job.weight
        return found
