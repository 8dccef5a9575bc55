"""Script time of each operation in an idle store, by INFO commandstats.

python -m benchmarks.costs.times [--rounds 40]

Each round runs every operation of `scripts.py` in an emptied store, whose scripts stay loaded; the first rounds warm it
up. The table has medians and the fastest tenth, which a busy machine changes less. `fairlane simulate --store-us` takes
such times."""

import argparse
import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec

import redis
import redis.asyncio
import rich.box
from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.common.store import own_store
from benchmarks.costs.counting import CommandCounter
from benchmarks.costs.scripts import Operations
from benchmarks.fleet.readings import SCRIPTS

WARM_UP = 10
P = ParamSpec("P")


class TimedOperations(Operations):
    """Runs each operation, and notes the time that its scripts took."""

    def __init__(self, client: redis.asyncio.Redis, store: redis.Redis) -> None:
        super().__init__(client, CommandCounter(store))
        self.us: dict[str, float] = {}
        self._store = store

    async def _count(
        self, name: str, operation: Callable[P, Awaitable[object]], *args: P.args, **options: P.kwargs
    ) -> None:
        self._store.config_resetstat()
        await operation(*args, **options)
        found = self._store.info("commandstats").items()
        self.us[name] = sum(each["usec"] for command, each in found if command.removeprefix("cmdstat_") in SCRIPTS)


async def _measure(url: str, rounds: int) -> dict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    with redis.Redis.from_url(url) as store:
        async with redis.asyncio.Redis.from_url(url) as client:
            for number in range(WARM_UP + rounds):
                store.flushdb()
                operations = TimedOperations(client, store)
                await operations.all()
                if number >= WARM_UP:
                    for name, us in operations.us.items():
                        found[name].append(us)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs.times", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args(arguments)
    with own_store() as url:
        found = asyncio.run(_measure(url, options.rounds))
    shown = Table("operation", "median, µs", "fastest tenth, µs", box=rich.box.MARKDOWN)
    for name, times in found.items():
        if any(times):
            fastest = sorted(times)[len(times) // 10]
            shown.add_row(name, f"{statistics.median(times):.0f}", f"{fastest:.0f}")
    console = open_console()
    console.print(describe(("redis",)), soft_wrap=True)
    console.print(shown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
