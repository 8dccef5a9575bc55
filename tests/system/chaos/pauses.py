"""How long streams pause: from the death of their worker, or from the cut of their link, to the next token."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tasks import ending
from tests.system.chaos.clients import Clients, Kind
from tests.system.chaos.fleet import LEASE_S, WORKERS, Fleet

# Shorter gaps between two tokens of a stream are not the fault's.
LEAST_PAUSE_S = 0.3
WATCHED_S = 2.5 * LEASE_S
CLIENTS = 12
TOKENS = 300
EDGES_S = (0.5, 1.0, 1.5, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0)


@dataclass
class Pauses:
    """The pauses of one kind of fault, in seconds."""

    what: str
    struck: int = 0
    seconds: list[float] = field(default_factory=list)

    def quantile(self, part: float) -> float:
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(part * len(ranked)))] if ranked else 0.0

    def __str__(self) -> str:
        counts = [0] * (len(EDGES_S) + 1)
        for pause in self.seconds:
            counts[sum(pause > edge for edge in EDGES_S)] += 1
        labels = [f"<= {edge}" for edge in EDGES_S] + [f"> {EDGES_S[-1]}"]
        bars = ", ".join(f"{label}: {count}" for label, count in zip(labels, counts, strict=True) if count)
        figures = f"P50 {self.quantile(0.5):.2f} s, P99 {self.quantile(0.99):.2f} s, max {self.quantile(1.0):.2f} s"
        return f"{self.what}: {self.struck} faults, {len(self.seconds)} streams paused, {figures} ({bars})"


async def measure(directory: Path, count: int, seed: int) -> tuple[list[Pauses], list[str]]:
    """Return the pauses after so many faults of each kind that hit a stream, and the violations."""
    violations: list[str] = []
    async with Fleet(directory) as fleet:
        await fleet.ready()
        chooser = random.Random(seed)
        clients = Clients(fleet, chooser, violations.append, longest=TOKENS, keeps_times=True)
        await clients.open_tenants()
        stopped = asyncio.Event()
        asking = [asyncio.create_task(clients.ask_until(stopped, {Kind.PATIENT: 1})) for _ in range(CLIENTS)]

        async def die() -> Callable[[], Awaitable[None]]:
            worker = chooser.choice(fleet.workers)
            worker.kill()

            async def heal() -> None:
                worker.start()
                await fleet.ready()

            return heal

        async def lose_connections() -> Callable[[], Awaitable[None]]:
            chooser.choice([*fleet.links.values()]).hold_existing()
            return _nothing

        async def cut() -> Callable[[], Awaitable[None]]:
            proxy = chooser.choice([*fleet.links.values()])
            proxy.hold()

            async def heal() -> None:
                proxy.heal()

            return heal

        kinds = {
            "death of a worker": die,
            "silent loss of a link's connection": lose_connections,
            "cut of the path between a worker and a gateway": cut,
        }
        async with ending(*asking):
            found = [await _repeated(Pauses(what), clients, strike, count) for what, strike in kinds.items()]
            stopped.set()
            await asyncio.gather(*asking)
    return found, violations


async def _nothing() -> None:
    return


async def _repeated(
    pauses: Pauses, clients: Clients, strike: Callable[[], Awaitable[Callable[[], Awaitable[None]]]], count: int
) -> Pauses:
    while pauses.struck < count:
        await asyncio.sleep(clients.chooser.uniform(1.0, 1.0 + LEASE_S / 4))
        struck_s = time.monotonic()
        heal = await strike()
        await asyncio.sleep(WATCHED_S)
        await heal()
        seen = _pauses_over(clients, struck_s)
        pauses.seconds += seen
        pauses.struck += bool(seen)
    return pauses


def _pauses_over(clients: Clients, struck_s: float) -> Sequence[float]:
    found = []
    for request in clients.requests:
        times = request.token_times
        after = next((at for at in times if at > struck_s), None)
        before = max((at for at in times if at <= struck_s), default=None)
        if after is not None and before is not None and after - before > LEAST_PAUSE_S:
            found.append(after - struck_s)
    for request in clients.requests[: -2 * WORKERS * CLIENTS]:
        request.token_times.clear()
    return found
