"""Line 5: reservations and settlements per second, what they cost each side, and the same of the least scripts."""

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import rich.box
from rich.table import Table

from benchmarks.common.line import Line, at_least, at_most
from benchmarks.common.turns import Answer, Contender
from benchmarks.gateway.stand import cpu_s
from benchmarks.quotas.drive import ASKED
from benchmarks.quotas.kinds import COUNTER, GCRA, MOVING, SLIDING
from fairlane.cli.embedded_store import EmbeddedStore

LINE = 5
CONCURRENCIES = (1, 64, 256)
FEW, SOME, MANY = 10, 10_000, 100_000
"""Tenants."""
BUDGET, LEAST = "budget", "least"
FLAT_CONCURRENCY = 64
NAMES = {BUDGET: "Fairlane: reserve + settle", LEAST: "two scripts that read and write one hash field"}
PEERS = (MOVING, COUNTER, SLIDING, GCRA)
WARM_UP_S = 3.0
"""So that each has been asked once: at a tenant's first request in an hour, a gateway notes where reapers look."""
SHARE, FLAT = 0.5, 1.1
"""Targets."""


@dataclass(frozen=True, order=True)
class Load:
    """What takes turns."""

    kind: str
    tenants: int
    concurrency: int


@dataclass(frozen=True)
class Turn:
    """One load once. An operation of ours is two calls; of a peer it is one hit of each limit."""

    answer: Answer
    store_s: float
    """Processor time that the store took."""

    @property
    def per_s(self) -> float:
        """Operations per second."""
        return float(self.answer["operations"]) / float(self.answer["seconds"])

    @property
    def client_us(self) -> float:
        """Of the client's core, for one operation."""
        return float(self.answer["client_s"]) / float(self.answer["operations"]) * 1e6

    @property
    def store_us(self) -> float:
        """Of the store's core, for one operation."""
        return self.store_s / float(self.answer["operations"]) * 1e6


Turns = dict[Load, list[Turn]]


@dataclass
class Bench:
    """A store on one core, and its clients on another."""

    store: EmbeddedStore
    ours: Contender
    peers: Contender | None

    def set_up(self, tenants: int) -> None:
        """Make so many, and have the few and the many asked once."""
        self.ours.ask(set_up=tenants)
        for asked, seconds in ((FEW, 0.1), (tenants, WARM_UP_S)):
            self.turn(Load(BUDGET, asked, max(CONCURRENCIES)), seconds)

    def turn(self, load: Load, seconds: float) -> Turn:
        """One load once."""
        asked = self.ours if load.kind in NAMES else self.peers
        assert asked is not None  # noqa: S101 - loads of peers are made where they are
        before_s = cpu_s(self.store.process.pid)
        order = {"kind": load.kind, "tenants": load.tenants, "concurrency": load.concurrency, "seconds": seconds}
        answer = asked.ask(**order)
        return Turn(answer, cpu_s(self.store.process.pid) - before_s)

    @property
    def versions(self) -> dict[str, str]:
        """Of what the peers are made of."""
        return self.peers.versions if self.peers else {}


@contextlib.contextmanager
def bench(peers: str | None) -> Iterator[Bench]:
    """Until the block ends. `peers`: the Python that they are installed in."""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-bench-")))
        store = EmbeddedStore(directory / "store")
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[1:2] or cores)  # the store's, by inheritance
        stack.callback(store.stop)
        store.start()
        options = {"url": store.url, "cores": cores[:1]}
        ours = Contender("ours", "benchmarks.quotas.ours", options, directory / "ours.log")
        theirs = Contender("peers", "benchmarks.quotas.peers", options, directory / "peers.log", peers or "")
        yield Bench(store, stack.enter_context(ours), stack.enter_context(theirs) if peers else None)


def loads(*, has_peers: bool) -> list[Load]:
    """All that take turns, but for those before many tenants."""
    kinds = (*NAMES, *PEERS) if has_peers else tuple(NAMES)
    return [Load(*each) for each in product(kinds, (FEW, SOME), CONCURRENCIES)]


def measure(on: Bench, rounds: int, seconds: float, advance: Callable[[str], None]) -> Turns:
    """Let the loads take turns, twice: with some tenants there, then few and many in turn with many there. What is
    measured in both is told of the latter."""
    on.set_up(SOME)
    taken = _take_turns(on, loads(has_peers=on.peers is not None), rounds, seconds, advance)
    advance(f"line 5: making {MANY:,} tenants")
    on.set_up(MANY)
    pairs = [Load(kind, tenants, FLAT_CONCURRENCY) for kind in NAMES for tenants in (FEW, MANY)]
    return taken | _take_turns(on, pairs, max(2, rounds), seconds, advance)


def _take_turns(on: Bench, todo: Sequence[Load], rounds: int, seconds: float, advance: Callable[[str], None]) -> Turns:
    turns: Turns = {load: [] for load in todo}
    for number in range(rounds):
        for load in todo if number % 2 == 0 else reversed(todo):
            advance(f"line 5: {NAMES.get(load.kind, load.kind)}, {load.concurrency} at once")
            turns[load].append(on.turn(load, seconds))
    return turns


def lines(turns: Turns, rounds: int) -> list[Line]:
    """Line 5."""
    shares = {
        load: store_us(turns, Load(LEAST, load.tenants, load.concurrency)) / store_us(turns, load)
        for load in turns
        if load.kind == BUDGET and load.tenants != MANY
    }
    worst = min(shares, key=lambda load: shares[load])
    how = (
        f"store's processor time, median of {rounds} rounds: two scripts that read and write one hash field over "
        f"reserve + settle; the lowest of all loads, {worst.concurrency} at once over {worst.tenants:,} tenants; "
        f"the highest is {max(shares.values()):.3f}"
    )
    flat = (
        f"store's time for reserve + settle, {FLAT_CONCURRENCY} at once: {ASKED:,} of {MANY:,} tenants in turn "
        f"over {FEW} in turn; of the least scripts, one key for each tenant, {_growth(turns, LEAST):.2f}"
    )
    return [
        at_least(LINE, "reserve and settle, share of the least script's rate", shares[worst], SHARE, how),
        at_most(LINE, f"cost over {MANY:,} tenants, times that over {FEW}", _growth(turns, BUDGET), FLAT, flat),
    ]


def _growth(turns: Turns, kind: str) -> float:
    """The store's time with many tenants, times that with few right beside it: the median of all rounds."""
    few, many = (turns[Load(kind, tenants, FLAT_CONCURRENCY)] for tenants in (FEW, MANY))
    return statistics.median(one.store_us / other.store_us for one, other in zip(many, few, strict=True))


def store_us(turns: Turns, load: Load) -> float:
    """The store's processor time for one operation, the median of all turns."""
    return statistics.median(turn.store_us for turn in turns[load])


def table(turns: Turns) -> Table:
    """Every load. Peers do less: no levels, nothing held and settled, no ledger."""
    columns = ("operation", "tenants", "at once", "per s", "p50 ms", "p99 ms", "client µs", "store µs")
    cores = ("per client core", "per store core")
    found = Table(*columns, *cores, box=rich.box.MARKDOWN)
    for load, each in turns.items():
        per_s, client_us, of_store_us = (
            statistics.median(getattr(turn, name) for turn in each) for name in ("per_s", "client_us", "store_us")
        )
        p50, p99 = (statistics.median(float(turn.answer[name]) for turn in each) for name in ("p50_ms", "p99_ms"))
        found.add_row(
            NAMES.get(load.kind, f"{load.kind}, 3 limits (does less)"),
            f"{load.tenants:,}",
            str(load.concurrency),
            f"{per_s:,.0f}",
            f"{p50:.2f}",
            f"{p99:.2f}",
            f"{client_us:.0f}",
            f"{of_store_us:.1f}",
            f"{1e6 / client_us:,.0f}",
            f"{1e6 / of_store_us:,.0f}",
        )
    return found
