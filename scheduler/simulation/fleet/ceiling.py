"""What a shard of the queue carries, by arithmetic: the time that chats and heartbeats take of its core."""

import math
from dataclasses import dataclass

from fairlane.scheduler.simulation.fleet.store_cores import Call, StoreTimes

# Part of a core that may be busy. Above it, waits at the store grow fast, and a burst takes seconds to work off.
USABLE = 0.7
MOST_SHARDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLoad:
    """A model's load on its queue."""

    chats_per_s: float
    workers: int
    gateways: int = 1
    # Sequences that a worker runs at once; its heartbeats report their progress.
    rows: int = 64
    times: StoreTimes
    # Heartbeats of each worker and each gateway at each shard, per second.
    worker_beats_per_s: float = 0.5
    gateway_beats_per_s: float = 2.0

    def busy(self, shards: int) -> float:
        times = self.times.times
        renewals_ms = self.workers * self.worker_beats_per_s * times[Call.RENEW].ms(math.ceil(self.rows / shards))
        beats_ms = self.gateways * self.gateway_beats_per_s * times[Call.BEAT].ms(self.gateways)
        chats_ms = self.chats_per_s / shards * self.times.chat_us() / 1e3
        return (chats_ms + renewals_ms + beats_ms) / 1e3

    @property
    def shards(self) -> int | None:
        return next((count for count in range(1, MOST_SHARDS + 1) if self.busy(count) <= USABLE), None)
