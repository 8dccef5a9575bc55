"""Work that was promised and has not begun, of one model: booked where all doors meet, so that no two of them promise
the same time.

Each door tests a request against what it knows of the others, which is as old as their last reports. What it finds it
can promise claims so much time of all workers together, its margin within, until the first token is due. Here the
claims of all doors are added up: of each lane, with all that the lanes above it claim, what is due by any moment must
fit the time until then. Claims are kept by when they are due, to BUCKET_MS at best and a part in BUCKETS of the time
that is left, rounded down, so that a test looks at hundreds of sums however many promises there are. Times are whole
milliseconds of the queue's clock, claims whole microseconds: sums of them are exact. `lua/promises.lua` is the same.
"""

BUCKET_MS = 250
BUCKETS = 64
PAST_MS = 60_000
"""A sum that is overdue by this much counts no more: its jobs' records are gone."""


class Promises:
    """Sums of claims, by lane in order of rank, and by when they are due."""

    def __init__(self, lanes: int) -> None:
        self._sums: list[dict[int, int]] = [{} for _ in range(lanes)]

    def book(self, level: int, due_ms: int, claim_us: int, now_ms: int) -> int | None:
        """Claim time; the bucket to release it from, None where it does not fit beside what is promised."""
        bucket, above_us = bucket_of(due_ms, now_ms), 0
        for other, sums in enumerate(self._sums):
            for past in [due for due in sums if due < now_ms - PAST_MS]:
                del sums[past]
            wanted = dict(sums)
            if other == level:
                wanted[bucket] = wanted.get(bucket, 0) + claim_us
            sum_us = above_us
            for due, work_us in sorted(wanted.items()):
                sum_us += work_us
                is_later = other > level or (other == level and due >= bucket)
                if is_later and due >= now_ms and sum_us > 1_000 * (due - now_ms):
                    return None
            above_us = sum_us
        if bucket < now_ms:
            return None
        self._sums[level][bucket] = self._sums[level].get(bucket, 0) + claim_us
        return bucket

    def release(self, level: int, bucket: int, claim_us: int) -> None:
        """It has begun, or is over."""
        sums = self._sums[level]
        sums[bucket] = sums.get(bucket, 0) - claim_us
        if sums[bucket] <= 0:
            del sums[bucket]


def bucket_of(due_ms: int, now_ms: int) -> int:
    """When it counts as due."""
    width_ms = BUCKET_MS
    while width_ms * BUCKETS < due_ms - now_ms:
        width_ms *= 2
    return due_ms // width_ms * width_ms
