"""One run: clients, faults and the comparison at the end."""

import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tasks import end, ending
from tests.system.chaos.clients import Clients, Kind
from tests.system.chaos.faults import Faults, Strike
from tests.system.chaos.fleet import RESERVATION_LEASE_S, Fleet
from tests.system.chaos.invariants import Books, Memory, compare_ledger, settled

# Events shown with a violation.
SHOWN = 12
SAMPLE_S = 2.0
KINDS = {Kind.PATIENT: 5, Kind.ONCE: 3, Kind.LEAVER: 2, Kind.SLOW: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a run does. Everything random in it is drawn by the seed."""

    seed: int = 1
    seconds: float = 1_200.0
    clients: int = 12
    pause_s: tuple[float, float] = (1.5, 4.5)
    # Faults in this order before those drawn at random.
    first: tuple[str, ...] = ()
    longest: int = 160
    reservation_lease_s: float = RESERVATION_LEASE_S
    # After this time gateway 0 and worker 0 are not killed any more, so that their memory can be followed.
    spares_after_s: float = 240.0


@dataclass
class Report:
    """The outcome of a run."""

    case: Case
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    books: Books = field(default_factory=Books)
    memory: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        books = self.books
        lines = [
            f"seed {self.case.seed}: {len(self.violations)} violations, {self.faults.total()} faults",
            f"faults: {dict(sorted(self.faults.items()))}",
            f"ends: {dict(sorted(self.ends.items()))}",
            f"{self.tokens:,} tokens streamed and compared, {books.delivered:,} delivered, {books.charged:,} charged",
            f"{len(books.undercharged)} requests undercharged by {sum(books.undercharged)} tokens in all, at most "
            f"{max(books.undercharged, default=0)}, whose gateway and worker were lost together, and "
            f"{books.uncovered} tokens of requests that were sent again after such a loss",
            f"{len(books.lossy)} requests undercharged by {sum(books.lossy)} tokens, whose writes the store lost",
            *self.memory,
        ]
        return "\n".join(lines)


async def run(directory: Path, case: Case) -> Report:
    """Run one case in a folder of its own."""
    report, chooser, began_s = Report(case), random.Random(case.seed), time.monotonic()
    async with Fleet(directory, reservation_lease_s=case.reservation_lease_s) as fleet:
        faults = Faults(fleet, random.Random(case.seed))

        def violated(what: str) -> None:
            report.violations.append(_described(what, case.seed, faults.strikes, began_s))
            sys.stderr.write(f"{report.violations[-1]}\n")

        await fleet.ready()
        clients = Clients(fleet, chooser, violated, longest=case.longest)
        await clients.open_tenants()
        stopped, memory = asyncio.Event(), Memory()
        asking = [asyncio.create_task(clients.ask_until(stopped, KINDS)) for _ in range(case.clients)]
        sampling = asyncio.create_task(_sample(memory, fleet))
        async with ending(sampling, *asking):
            await _strike(faults, case, stopped)
            await asyncio.gather(*asking)
        if not sampling.cancelled():
            sampling.result()  # raises what ended it
        await fleet.ready()
        await settled(fleet, violated)
        report.books = await compare_ledger(fleet, clients, faults.strikes, violated)
        report.memory = memory.check(violated)
        _check_logs(fleet, violated)
    report.faults, report.ends, report.tokens = faults.counts, clients.ends, clients.tokens
    return report


async def _strike(faults: Faults, case: Case, stopped: asyncio.Event) -> None:
    chooser, began_s, running = random.Random(case.seed + 1), time.monotonic(), set[asyncio.Task[None]]()
    first = [*case.first]
    try:
        while (elapsed_s := time.monotonic() - began_s) < case.seconds:
            if elapsed_s >= case.spares_after_s:
                faults.spared = frozenset({0})
            await asyncio.sleep(chooser.uniform(*case.pause_s))
            task = asyncio.create_task(faults.apply(first.pop(0)) if first else faults.strike())
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
    finally:
        await end(*running)
    stopped.set()
    await faults.heal()


async def _sample(memory: Memory, fleet: Fleet) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        await memory.sample(fleet)


def _check_logs(fleet: Fleet, violated: object) -> None:
    assert callable(violated)
    for member in fleet.members:
        lines = member.log.read_text(errors="replace").splitlines()
        bad = [line for line in lines if "Traceback" in line or ("ERROR" in line and "is lost" not in line)]
        if bad:
            violated(f"{len(bad)} errors in the log of {member.name}: {bad[:3]}")


def _described(what: str, seed: int, strikes: list[Strike], began_s: float) -> str:
    now_s = time.monotonic()
    events = [f"    {strike.began_s - began_s:7.2f} s  {strike.what}" for strike in strikes[-SHOWN:]]
    return "\n".join([f"seed {seed}, {now_s - began_s:.2f} s: {what}", *events])
