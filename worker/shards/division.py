"""A worker's free capacity, divided over the shards of its queue, so that each leases into its own part at once.

    1. The parts are equal at first. What a shard may lease into is not offered to another one, from the question that
       offers it until the answer to a question that offers less: no room is given twice.
    2. Room that becomes free goes to one shard, the target: where a job ended, or another one that is behind
       (`scheduler.queue.shards.Rivals`).
    3. If jobs wait in the target for want of room, parts of others are moved to it: half of one in which no job of that
       lane or of a higher one waits or, if there is none, what is left to one whose jobs do not fit into it.
    4. Only the target is offered work that would yield.
    5. A shard has enough if jobs wait in it although each of their lanes has room, and more room would not help: they
       can only run in other workers.

With one shard, its part is all, and nothing is moved."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.shards import LaneFloor, Rivals
from fairlane.scheduler.queue.types import Turn
from fairlane.worker.leases import NO_CAPACITY, Asked, Intake, exceeds
from fairlane.worker.reports import Report


class Division:
    """The free capacity of one worker, and the questions to each shard."""

    def __init__(
        self,
        lanes: Sequence[str],
        share_floors: Sequence[float],
        shards: int,
        shard_of: Callable[[str], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        draws: random.Random | None = None,
    ) -> None:
        """`lanes`: most urgent first. `shard_of` returns the shard of a held job."""
        self.capacity = NO_CAPACITY
        self.intakes = [Intake(lanes) for _ in range(shards)]
        self.are_several = shards > 1
        self._lanes = lanes
        self._shard_of = shard_of
        self._clock = clock
        self._draws = draws or random.Random()
        self._rivals = Rivals(QUEUE_WINDOW, share_floors)
        # The capacity includes all leases that were given to the engine.
        self._is_known = False
        self._target: int | None = None
        # By shard, the rank of the first lane in which jobs wait for room of this worker, as of its last answer.
        self._hungry: dict[int, int] = {}
        # What shards knew before the question that is on its way.
        self._before: dict[int, Capacity] = {}
        # By shard, the sequences of each lane that could be moved to it, as it knows them.
        self._movable: dict[int, list[int]] = {}
        # Parts that shards are being reduced to.
        self._reduced: dict[int, Capacity] = {}

    def turned(self, report: Report, commands_sent: int) -> None:
        self.capacity = report.capacity
        if not self.are_several:
            self.intakes[0].turned(report, commands_sent)
            return
        ended = [each.job_id for each in report.publications if each.ends is not None]
        if ended:
            self._target = self._next(self._shard_of(ended[-1]))
        self._is_known = report.applied >= commands_sent
        self._announce()
        self._gather()
        for intake, part in zip(self.intakes, self._parts(), strict=True):
            intake.turned(replace(report, capacity=part), commands_sent)

    def given(self, shard: int, leases: Sequence[Lease]) -> None:
        if self.are_several:
            self._is_known = False
            for intake in self.intakes:
                intake.hold()
        self.intakes[shard].given(leases)

    def called(self, shard: int, job_ids: Iterable[str]) -> None:
        self.intakes[shard].called(job_ids)
        if self.are_several and shard not in self._hungry:
            self._target = shard
            self._offer()

    def woken(self, shard: int) -> None:
        """Ask a shard again. With several, it is asked even without free capacity, for news of it."""
        if self.are_several:
            self.intakes[shard].called(())
        else:
            self.intakes[shard].woken()

    def ask(self, shard: int) -> Asked | None:
        """Return what to ask a shard with; None if there is nothing new."""
        intake = self.intakes[shard]
        before, asked = intake.asked, intake.ask()
        if asked is None or not self.are_several:
            return asked
        self._before[shard] = before
        self._offer()
        return asked

    def elsewhere(self, shard: int) -> tuple[Sequence[LaneFloor], Sequence[int]]:
        """Return what a shard needs to know of the others, if there are several: what waits there, and the sequences of
        each lane that could be moved from there."""
        if not self.are_several:
            return (), ()
        self._movable[shard] = [self._spare(shard, lane) for lane in self._lanes]
        return self._rivals.floors(shard, self._now_ms), self._movable[shard]

    def answered(self, shard: int, turn: Turn) -> None:
        intake, news = self.intakes[shard], turn.shard
        intake.answered(turn)
        if news is None:
            return
        before = self._before.pop(shard, NO_CAPACITY)
        if news.is_unread:
            intake.unread(before)
        else:
            self._reduced.pop(shard, None)
        self._rivals.receive(shard, news.head, self._now_ms)
        waits = [rank for rank, lane in enumerate(news.head) if lane.waits]
        may_fit = news.lacks_room or turn.has_more or news.is_unread
        has_enough = not may_fit and all(self._is_open(shard, rank) for rank in waits)
        self._hungry.pop(shard, None)
        if waits and not has_enough:
            self._hungry[shard] = waits[0]
        self._gather()
        self._offer()

    def close(self) -> None:
        for intake in self.intakes:
            intake.close()

    def open(self) -> None:
        self._target = None
        for intake in self.intakes:
            if self.are_several:
                intake.asked = NO_CAPACITY
            intake.open()
        self._offer()

    def _next(self, home: int) -> int:
        """Return the shard to offer room to that a job of `home` has left."""
        other = self._draws.choice([shard for shard in range(len(self.intakes)) if shard != home])
        if home not in self._hungry and other not in self._hungry:
            return home
        found = self._rivals.choose(home, other, self._now_ms)
        return found if found in self._hungry else home if home in self._hungry else other

    def _gather(self) -> None:
        """Let a shard be the target in which the most urgent jobs wait. If it needs more room, reduce another one."""
        now_ms = self._now_ms
        hungry = {shard: rank for shard, rank in self._hungry.items() if self._rivals.waits(shard, now_ms)}
        if not hungry or self._reduced or not self._is_known:
            return
        first = min(hungry.values())
        if hungry.get(self._target if self._target is not None else -1) != first:
            self._target = self._draws.choice([shard for shard, rank in hungry.items() if rank == first])
        target = self._target
        if target is None or exceeds(self._parts()[target], self.intakes[target].asked):
            return  # it is offered more without that
        lane = self._lanes[first]
        holders = [
            shard
            for shard, intake in enumerate(self.intakes)
            if shard not in self._before and shard != target and _holds_room(intake.asked, lane)
        ]
        idle = [shard for shard in holders if hungry.get(shard, first + 1) > first]
        if holders:
            most = max(idle or holders, key=lambda shard: self.intakes[shard].asked.sequences.get(lane, 0))
            self._reduced[most] = _each(self.intakes[most].asked, lambda count: count // 2 if idle else 0)
            self.intakes[most].called(())

    def _announce(self) -> None:
        """Ask shards that do not know that room could be moved to them. A job that finds none then calls the worker."""
        for shard, movable in self._movable.items():
            if self._is_known and shard not in self._hungry:
                lanes = zip(self._lanes, movable, strict=True)
                if any(not known and self._spare(shard, lane) > 0 for lane, known in lanes):
                    self.intakes[shard].called(())

    def _spare(self, shard: int, lane: str) -> int:
        asked = self.intakes[shard].asked.sequences.get(lane, 0)
        return max(0, self.capacity.sequences.get(lane, 0) - max(0, asked))

    def _is_open(self, shard: int, rank: int) -> bool:
        asked, lane = self.intakes[shard].asked, self._lanes[rank]
        return asked.sequences.get(lane, 0) > 0 and asked.kv_tokens.get(lane, 0) > 0

    def _offer(self) -> None:
        if self._is_known and self.are_several:
            for intake, part in zip(self.intakes, self._parts(), strict=True):
                intake.offer(part)

    def _parts(self) -> list[Capacity]:
        bounds = [self._bound(shard) for shard in range(len(self.intakes))]
        left = reduce(lambda rest, bound: _join(rest, bound, int.__sub__), bounds, self.capacity)
        return [self._part(shard, _join(left, bound, int.__add__)) for shard, bound in enumerate(bounds)]

    def _part(self, shard: int, most: Capacity) -> Capacity:
        """Return what a shard may lease into, at most `most`: the capacity less what the others may."""
        most = _each(most, lambda count: max(0, count))
        if shard == self._target:
            return most
        asked = self._reduced.get(shard, self.intakes[shard].asked)
        if self._target is None:
            place, shards = shard, len(self.intakes)
            asked = _each(self.capacity, lambda count: count * (place + 1) // shards - count * place // shards)
        return replace(_join(most, asked, min), yielding={})

    def _bound(self, shard: int) -> Capacity:
        asked = _each(self.intakes[shard].asked, lambda count: max(0, count))
        before = self._before.get(shard)
        return asked if before is None else _join(asked, before, max)

    @property
    def _now_ms(self) -> float:
        return self._clock() * 1e3


def _holds_room(capacity: Capacity, lane: str) -> bool:
    return capacity.sequences.get(lane, 0) > 0 or capacity.kv_tokens.get(lane, 0) > 0


def _each(capacity: Capacity, change: Callable[[int], int]) -> Capacity:
    sequences = {lane: change(count) for lane, count in capacity.sequences.items()}
    return replace(capacity, sequences=sequences, kv_tokens={lane: change(n) for lane, n in capacity.kv_tokens.items()})


def _join(one: Capacity, other: Capacity, join: Callable[[int, int], int]) -> Capacity:
    """Join the sequences and KV tokens of each lane."""
    sequences = {lane: join(count, other.sequences.get(lane, 0)) for lane, count in one.sequences.items()}
    kv_tokens = {lane: join(count, other.kv_tokens.get(lane, 0)) for lane, count in one.kv_tokens.items()}
    return replace(one, sequences=sequences, kv_tokens=kv_tokens)
