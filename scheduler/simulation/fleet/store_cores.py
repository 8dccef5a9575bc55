"""Store cores in virtual time: each runs one call at a time, in order of arrival, as a Redis or Valkey server does."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from fairlane.scheduler.planner.steps import require

MAX_US = 1e6
# Resolution of waits.
WAIT_BUCKET_US = 10.0
SECOND_MS = 1e3


class Call(StrEnum):
    """The calls of the control plane. `put`, `turn`, `renew` and `beat` load a shard of the queue, `reserve` and
    `settle` the core of the tenant's budgets."""

    RESERVE = "reserve"
    PUT = "put"
    TURN = "turn"
    SETTLE = "settle"
    # A worker's heartbeat at one shard, with the progress of its jobs.
    RENEW = "renew"
    # A gateway's heartbeat at one shard.
    BEAT = "beat"


class CallTime(NamedTuple):
    """Script time of a call: `base_us`, and `job_us` for each job that it leases, ends or renews."""

    base_us: float
    job_us: float = 0.0

    def ms(self, jobs: int) -> float:
        return (self.base_us + self.job_us * jobs) / 1e3


# Of a busy store, by `python -m benchmarks.fleet.replay` (docs/scaling.md).
MEASURED: Mapping[Call, CallTime] = {
    Call.RESERVE: CallTime(76.0),
    Call.PUT: CallTime(134.0),
    Call.TURN: CallTime(70.0, 100.0),
    Call.SETTLE: CallTime(101.0),
    Call.RENEW: CallTime(28.0, 0.4),
    Call.BEAT: CallTime(20.0),
}
_NUMBER = r"(\d+(?:\.\d+)?)"
_PART = re.compile(rf"(?:(\w+)=)?{_NUMBER}(?:\+{_NUMBER})?")


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The script time of each call."""

    times: Mapping[Call, CallTime] = field(default_factory=lambda: MEASURED)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `put=190,turn=270+50`: microseconds of a call, and of each job in it.

        A part without a name is for `put` and `turn`; calls that are not named keep the measured times. Raises
        ValueError."""
        times = dict(MEASURED)
        for part in text.split(","):
            found = _PART.fullmatch(part.strip())
            if found is None or (found[1] or Call.PUT) not in [*Call]:
                raise ValueError(f"store-us must be such as put=190,turn=270+50 ({', '.join(Call)}), not {part[:40]!r}")
            time = CallTime(float(found[2]), float(found[3] or 0.0))
            require(found[1] or "store-us", max(time), 0.0, MAX_US)
            times |= dict.fromkeys([Call(found[1])] if found[1] else (Call.PUT, Call.TURN), time)
        return cls(times)

    def chat_us(self, jobs_per_turn: float = 1.0) -> float:
        """Return the time that a chat takes of its shard: one `put`, and its part of the turns that end and lease."""
        put, turn = self.times[Call.PUT], self.times[Call.TURN]
        return put.base_us + put.job_us + turn.base_us / jobs_per_turn + 2.0 * turn.job_us


class StoreCore:
    """One serial server. Calls must be made in order of their arrival."""

    def __init__(self, times: StoreTimes) -> None:
        self.calls: Counter[Call] = Counter()
        self.busy_ms = 0.0
        self.longest_ms = 0.0
        # By second of virtual time, the time for which it was busy in calls that began then.
        self.busy_by_second: defaultdict[int, float] = defaultdict(float)
        self._times = times.times
        self._free_ms = 0.0
        self._waits: Counter[int] = Counter()

    def begin(self, arrives_ms: float) -> float:
        begins_ms = max(arrives_ms, self._free_ms)
        self._waits[int((begins_ms - arrives_ms) * 1e3 / WAIT_BUCKET_US)] += 1
        return begins_ms

    def run(self, call: Call, jobs: int, begins_ms: float) -> float:
        """Run a call from the time that `begin` returned, and return when it ends."""
        took_ms = self._times[call].ms(jobs)
        self.calls[call] += 1
        self.busy_ms += took_ms
        self.longest_ms = max(self.longest_ms, took_ms)
        self.busy_by_second[int(begins_ms / SECOND_MS)] += took_ms
        self._free_ms = begins_ms + took_ms
        return self._free_ms

    def call(self, call: Call, jobs: int, arrives_ms: float) -> float:
        return self.run(call, jobs, self.begin(arrives_ms))

    def wait_ms(self, part: float) -> float:
        """Return the time that `part` (0 to 1) of the calls waited at most."""
        count = math.ceil(part * self._waits.total())
        for bucket, found in sorted(self._waits.items()):
            count -= found
            if count <= 0:
                return bucket * WAIT_BUCKET_US / 1e3
        return 0.0
