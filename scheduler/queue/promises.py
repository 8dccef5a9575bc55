"""Work that was promised and has not begun, of one model: booked where all gateways meet, so that no two of them
promise the same time.

Each gateway tests a request against what it knows of the others, which is as old as their last reports. What it finds
it can promise claims so much time of all workers together, its margin within, until the first token is due. Here the
claims of all gateways are added up: of each lane, with all that the lanes above it claim, what is due by any moment
must fit the time until then, less the part that the lanes above have asked for of late, promised or not (`Asked`).
Claims are kept by when they are due, to BUCKET_MS at best and a part in BUCKETS of the time that is left, rounded
down, so that a test looks at hundreds of sums however many promises there are. Times are whole milliseconds of the
queue's clock, claims whole microseconds, parts of the time whole millionths: sums of them are exact.
`lua/promises.lua` is the same.
"""

import math
from collections.abc import Sequence

BUCKET_MS = 250
BUCKETS = 64
PAST_MS = 60_000
"""A sum that is overdue by this much counts no more: its jobs' records are gone."""
MARGIN = 1.5
"""A guarantee holds if everything takes this much longer than expected."""
MOST_TAKEN = 0.95
"""Part of the time that others may be taken to need at most: a little always becomes free."""
RECENT_MS = 4_000
"""How long what was asked for counts, less and less: half of it at the mean."""
SURGE_MS = 1_000
"""And so long where that finds more: a flood counts as one from its first quarter of a second on. What lower lanes are
promised until it is known for one would not be kept."""
WHOLE = 1_000_000
"""All of the time, in millionths."""


class Asked:
    """Recent work of one lane, over all gateways."""

    def __init__(self) -> None:
        self._work_us: dict[int, int] = {}

    def add(self, work_us: int, now_ms: int) -> None:
        bucket = now_ms // BUCKET_MS * BUCKET_MS
        self._work_us[bucket] = self._work_us.get(bucket, 0) + work_us

    def part(self, now_ms: int) -> int:
        """The part of all workers' time that recent work asks for, in millionths; above WHOLE where it is too much."""
        for old in [at_ms for at_ms in self._work_us if not 0 <= now_ms - at_ms < RECENT_MS]:
            del self._work_us[old]
        return max(self._part_over(RECENT_MS, now_ms), self._part_over(SURGE_MS, now_ms))

    def _part_over(self, span_ms: int, now_ms: int) -> int:
        left = ((span_ms - now_ms + at_ms, work_us) for at_ms, work_us in self._work_us.items())
        return sum(max(0, left_ms) * work_us for left_ms, work_us in left) * 2_000 // span_ms**2


class Promises:
    """Sums of claims, by lane in order of rank, and by when they are due."""

    def __init__(self, share_floors: Sequence[float]) -> None:
        """`share_floors`: of the lanes, which those above do not take."""
        self._floors = share_floors
        self._sums: list[dict[int, int]] = [{} for _ in share_floors]
        self.asked = [Asked() for _ in share_floors]

    def book(self, level: int, due_ms: int, claim_us: int, now_ms: int) -> int | None:
        """Claim time. Returns the bucket to release it from; None where it does not fit beside what is promised."""
        bucket, above_us = bucket_of(due_ms, now_ms), 0
        free = self._free(now_ms)
        if bucket < now_ms or free[level] <= self._least_free(level):
            return None
        for other in range(len(self._sums)):
            wanted = dict(self._sums_of(other, now_ms))
            if other == level:
                wanted[bucket] = wanted.get(bucket, 0) + claim_us
            sum_us = above_us
            for due, work_us in sorted(wanted.items()):
                sum_us += work_us
                is_later = other > level or (other == level and due >= bucket)
                if is_later and due >= now_ms and sum_us * 1_000 > (due - now_ms) * free[other]:
                    return None
            above_us = sum_us
        self._sums[level][bucket] = self._sums[level].get(bucket, 0) + claim_us
        return bucket

    def late_ms(self, level: int, hard_ms: int, claim_us: int, now_ms: int) -> int:
        """By how much best effort would miss its first token's hard deadline even if all took no longer than expected:
        what is promised goes before it, whenever that is due. Not above 0 where it might be in time."""
        sum_us = claim_us + sum(sum(self._sums_of(other, now_ms).values()) for other in range(level + 1))
        return math.ceil(sum_us * 1_000 / MARGIN / self._free(now_ms)[level]) - (hard_ms - now_ms)

    def release(self, level: int, bucket: int, claim_us: int) -> None:
        sums = self._sums[level]
        sums[bucket] = sums.get(bucket, 0) - claim_us
        if sums[bucket] <= 0:
            del sums[bucket]

    def _sums_of(self, level: int, now_ms: int) -> dict[int, int]:
        sums = self._sums[level]
        for past in [due for due in sums if due < now_ms - PAST_MS]:
            del sums[past]
        return sums

    def _free(self, now_ms: int) -> list[int]:
        """Of each lane, the part of the time that those above leave it, in millionths."""
        free, asked = [], 0
        for level, own in enumerate(self.asked):
            free.append(max(WHOLE - asked, self._least_free(level)))
            asked += own.part(now_ms)
        return free

    def _least_free(self, level: int) -> int:
        """What a lane has however much those above ask for: too little to promise anything."""
        return WHOLE - min(int(MOST_TAKEN * WHOLE), int((1.0 - self._floors[level]) * WHOLE)) if level else 0


def bucket_of(due_ms: int, now_ms: int) -> int:
    """The bucket of a due time, rounded down."""
    width_ms = BUCKET_MS
    while width_ms * BUCKETS < due_ms - now_ms:
        width_ms *= 2
    return due_ms // width_ms * width_ms
