"""Guaranteed work of one model that has not started. The queue records it, so that no two gateways promise the same
time.

A gateway tests a request against the other gateways' last reports, which are slightly old. If it can guarantee the
deadline, it claims time of all workers together, including the margin, until the first token is due. The claims of all
gateways are added up here. For each lane and every moment, the claims due by then, with those of the lanes above, must
fit the time until then, less the fraction that the lanes above have requested recently (`Asked`).

Claims are stored by due time, rounded down to BUCKET_MS at best and otherwise to 1 / BUCKETS of the remaining time, so
that a test visits hundreds of sums, however many guarantees there are. Times are whole milliseconds of the queue's
clock, claims whole microseconds, fractions whole millionths: sums are exact. `lua/lib/promises.lua` is the same."""

import math
from collections.abc import Sequence

BUCKET_MS = 250
BUCKETS = 64
# A sum that is overdue by this much no longer counts: its jobs' records are gone.
PAST_MS = 60_000
# A guarantee holds if everything takes this many times as long as expected.
MARGIN = 1.5
# Upper bound on the fraction of the time that others are assumed to need.
MAX_TAKEN = 0.95
# Requested work counts for this long, with linearly decreasing weight.
RECENT_MS = 4_000
# Shorter window, used if it gives a higher value: a flood is detected within a quarter of a second. Guarantees that
# lower lanes get before that would not be kept.
SURGE_MS = 1_000
# The whole time, in millionths.
WHOLE = 1_000_000


class Asked:
    """Recent work of one lane, over all gateways."""

    def __init__(self) -> None:
        self._work_us: dict[int, int] = {}

    def add(self, work_us: int, now_ms: int) -> None:
        bucket = now_ms // BUCKET_MS * BUCKET_MS
        self._work_us[bucket] = self._work_us.get(bucket, 0) + work_us

    def part(self, now_ms: int) -> int:
        """Return the fraction of all workers' time that recent work requests, in millionths; above WHOLE if it is too
        much."""
        for old in [at_ms for at_ms in self._work_us if not 0 <= now_ms - at_ms < RECENT_MS]:
            del self._work_us[old]
        return max(self._part_over(RECENT_MS, now_ms), self._part_over(SURGE_MS, now_ms))

    def _part_over(self, span_ms: int, now_ms: int) -> int:
        left = ((span_ms - now_ms + at_ms, work_us) for at_ms, work_us in self._work_us.items())
        return sum(max(0, left_ms) * work_us for left_ms, work_us in left) * 2_000 // span_ms**2


class Promises:
    """Sums of claims, by lane in rank order, and by due time."""

    def __init__(self, share_floors: Sequence[float]) -> None:
        self._floors = share_floors
        self._sums: list[dict[int, int]] = [{} for _ in share_floors]
        self.asked = [Asked() for _ in share_floors]

    def book(self, level: int, due_ms: int, claim_us: int, now_ms: int) -> int | None:
        """Claim time. Return the bucket to release it from, or None if it does not fit next to earlier claims."""
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
        """Return how late best effort would miss its first token's hard deadline if nothing took longer than expected.

        At most 0 if it might be in time. All claims are served first, whenever they are due."""
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
        free, asked = [], 0
        for level, own in enumerate(self.asked):
            free.append(max(WHOLE - asked, self._least_free(level)))
            asked += own.part(now_ms)
        return free

    def _least_free(self, level: int) -> int:
        return WHOLE - min(int(MAX_TAKEN * WHOLE), int((1.0 - self._floors[level]) * WHOLE)) if level else 0


def bucket_of(due_ms: int, now_ms: int) -> int:
    """Return the bucket of a due time, rounded down."""
    width_ms = BUCKET_MS
    while width_ms * BUCKETS < due_ms - now_ms:
        width_ms *= 2
    return due_ms // width_ms * width_ms
