"""What a fleet's store and gateways have spent so far; two readings, less an idle time as long, are a load's."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import redis

from benchmarks.gateway.stand import cpu_s

SCRIPTS = frozenset({"evalsha", "evalsha_ro", "eval", "eval_ro", "fcall", "fcall_ro"})
NEVER_SLOW_US = 200
"""Scripts that take less are not looked at one by one."""


class Spent(NamedTuple):
    """Totals since some start, or between two. `commands` are all, including those that scripts call."""

    seconds: float = 0.0
    commands: float = 0.0
    scripts: float = 0.0
    script_us: float = 0.0
    stream_reads: float = 0.0
    core_us: float = 0.0
    """Processor time of the store's main thread, which runs the commands."""
    gateways_us: float = 0.0
    """Processor time of all gateways."""

    def since(self, earlier: "Spent") -> "Spent":
        return Spent(*(ours - theirs for ours, theirs in zip(self, earlier, strict=True)))

    def above(self, idle: "Spent", count: int) -> "Spent":
        """Return the part of each of `count`, less what an idle fleet spends in the same time."""
        share = self.seconds / idle.seconds
        return Spent(*((ours - share * theirs) / count for ours, theirs in zip(self, idle, strict=True)))


class Meter:
    """Reads the totals of one store and its gateways."""

    def __init__(self, store: redis.Redis, gateways: Sequence[int]) -> None:
        """`gateways` are their process ids."""
        self._store, self._gateways = store, gateways
        store.config_set("slowlog-log-slower-than", NEVER_SLOW_US)

    def read(self) -> Spent:
        """Return the totals so far, and look for the longest script from now on."""
        found = self._store.info("commandstats")
        scripts = [each for name, each in found.items() if name.removeprefix("cmdstat_") in SCRIPTS]
        cpu = self._store.info("cpu")
        self._store.slowlog_reset()
        return Spent(
            seconds=time.monotonic(),
            commands=sum(each["calls"] for each in found.values()),
            scripts=sum(each["calls"] for each in scripts),
            script_us=sum(each["usec"] for each in scripts),
            stream_reads=found.get("cmdstat_xread", {"calls": 0})["calls"],
            core_us=(cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]) * 1e6,
            gateways_us=sum(map(cpu_s, self._gateways)) * 1e6,
        )

    def longest_ms(self) -> float:
        """Return the duration of the longest script since the last reading, or the bound below which none is noted."""
        slow = [
            (each["command"].split(b" ")[0].decode().lower(), each["duration"]) for each in self._store.slowlog_get(-1)
        ]
        return max((us for name, us in slow if name in SCRIPTS), default=NEVER_SLOW_US) / 1e3
