"""The gateway on one core with everything on, in front of an engine that answers at once: rates, latency, and CPU.

python -m benchmarks.gateway [--quick] [--rounds 5] [--seconds 5] [--json FILE] [--litellm URL] [--portkey URL]

Keys, quotas in the embedded store, queue, settlement and traces (10 % of requests) are all on; the load generator,
the engine and the store are processes of their own on the other cores. Loads take turns, so that what else the machine
does falls on all of them. `--quick` does it once, in about half a minute. Peers take part where they run: see
benchmarks/peers.md. Exits with 1 if a line that was measured is not met.
"""

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import rich.box
import rich.table
from rich.progress import Progress

from benchmarks.common.intervals import interval
from benchmarks.common.line import Line, at_least, at_most, unmeasured
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, open_console, summary
from benchmarks.gateway.load import LoadKind, Seen
from benchmarks.gateway.stand import Peer, Stand, StandError, stand

LINE = 8
CLIENTS = 64
PLAIN_TOKENS = 16
STREAM_TOKENS = 200
WARM_UP_S = 1.0
LITELLM, PORTKEY = "LiteLLM", "Portkey"
MOCK_PORT = 9009
"""Where `benchmarks.gateway.mock` stands behind the peers."""
PACKAGES = ("fairlane", "uvicorn", "uvloop", "httptools", "starlette", "redis", "tokenizers", "opentelemetry-sdk")


@dataclass(frozen=True)
class Load:
    """One of the loads that take turns."""

    name: str
    kind: LoadKind
    clients: int
    tokens: int
    peer: Peer | None = None
    """Whom to ask; None: ours."""

    def at(self, peer: Peer) -> "Load":
        """The same before a peer."""
        return replace(self, name=f"{peer.name}: {self.name}", peer=peer)


PLAIN = Load(f"plain, {CLIENTS} clients", "plain", CLIENTS, PLAIN_TOKENS)
STREAM = Load(f"streams, {CLIENTS} clients", "stream", CLIENTS, STREAM_TOKENS)
ALONE = Load("plain, 1 client", "plain", 1, PLAIN_TOKENS)
DIRECT = Load("engine without gateway, 1 client", "direct", 1, PLAIN_TOKENS)
LOADS = (PLAIN, STREAM, ALONE, DIRECT)
CROWDS = {load.kind: load for load in (PLAIN, STREAM)}
"""Under which its processor time is told, of a request or of a streamed token."""


@dataclass(frozen=True)
class Turn:
    """One load once."""

    seen: Seen
    cpu_s: float
    """That the gateway took."""

    @property
    def requests_per_s(self) -> float:
        """Whole answers."""
        return self.seen.requests / self.seen.seconds

    @property
    def tokens_per_s(self) -> float:
        """Output tokens, as clients read them."""
        return self.seen.tokens / self.seen.seconds

    @property
    def cpu_us_per_request(self) -> float:
        """All of the gateway's processor time, its background work included."""
        return self.cpu_s / self.seen.requests * 1e6

    @property
    def cpu_us_per_token(self) -> float:
        """The same: what a request costs besides its tokens is in it."""
        return self.cpu_s / self.seen.tokens * 1e6

    def latency_ms(self, percent: int) -> float:
        """A percentile of the time from a request's first byte to its answer's last."""
        return statistics.quantiles(self.seen.latencies_ms, n=100, method="inclusive")[percent - 1]

    def cpu_us(self, load: Load) -> float:
        """What line 8 bounds: that of a request, or of a streamed token."""
        return self.cpu_us_per_token if load is STREAM else self.cpu_us_per_request


Turns = dict[Load, list[Turn]]


def take_turn(on: Stand, load: Load, seconds: float) -> Turn:
    """One load. Raises StandError where an answer is not as it should be."""
    before_s = on.cpu_s()
    seen = on.load(load.kind, seconds=seconds, tokens=load.tokens, clients=load.clients, peer=load.peer)
    return Turn(seen, on.cpu_s() - before_s)


def warm_up(on: Stand, load: Load) -> None:
    """The same for a moment. Raises StandError."""
    on.load(load.kind, seconds=WARM_UP_S, tokens=load.tokens, clients=min(8, load.clients), peer=load.peer)


def measure(on: Stand, loads: Sequence[Load], rounds: int, seconds: float, progress: Progress) -> Turns:
    """Let the loads take turns. Raises StandError where an answer is not as it should be."""
    for load in loads:
        warm_up(on, load)
    turns: Turns = {load: [] for load in loads}
    task = progress.add_task("measuring", total=rounds * len(loads))
    for _ in range(rounds):
        for load in loads:
            turns[load].append(take_turn(on, load, seconds))
            progress.advance(task)
    if not on.sink.batches:
        raise StandError("no trace arrived: tracing was not on")
    return turns


def lines(turns: Turns) -> list[Line]:
    """Its numbered lines."""
    alone, direct = turns[ALONE], turns[DIRECT]
    floor_ms = _median(turn.latency_ms(50) for turn in direct)
    rounds = len(alone)
    how = f"median of {rounds} rounds; client to last byte, less the median of a job put straight into the queue"
    cost = f"median of {rounds} rounds; all processor time of the gateway's process at {CLIENTS} clients"
    return [
        _ratio("plain requests/s, times LiteLLM's", 15.0, turns, PLAIN, LITELLM),
        _ratio("plain requests/s, times Portkey's", 2.0, turns, PLAIN, PORTKEY),
        _ratio("streamed tokens/s, times LiteLLM's", 30.0, turns, STREAM, LITELLM),
        at_most(LINE, "added latency p50, ms", _median(t.latency_ms(50) for t in alone) - floor_ms, 1.0, how),
        at_most(LINE, "added latency p99, ms", _median(t.latency_ms(99) for t in alone) - floor_ms, 5.0, how),
        at_most(LINE, "CPU per plain request, µs", _median(t.cpu_us_per_request for t in turns[PLAIN]), 300.0, cost),
        at_most(LINE, "CPU per streamed token, µs", _median(t.cpu_us_per_token for t in turns[STREAM]), 10.0, cost),
    ]


def _ratio(name: str, target: float, turns: Turns, load: Load, peer: str) -> Line:
    """Ours over a peer's, round by round: it counts by the lower end of its 95 % interval."""
    theirs = [turns[other] for other in turns if other.peer and other.peer.name == peer and other.kind == load.kind]
    if not theirs:
        return unmeasured(LINE, name, target, f"no {peer} ran here: see benchmarks/peers.md")
    rates = zip(turns[load], theirs[0], strict=True)
    found = interval([mine.tokens_per_s / other.tokens_per_s for mine, other in rates])
    value, how = (
        (found.low, "lower end of the 95 % interval of the rounds") if len(theirs[0]) > 1 else (found.mean, "one round")
    )
    return at_least(LINE, name, value, target, how)


def _median(figures: Iterable[float]) -> float:
    return statistics.median(figures)


def table(turns: Turns) -> rich.table.Table:
    """Every load, its median over all rounds and the rates' spread."""
    columns = ("load", "requests/s", "lowest to highest", "tokens/s", "p50 ms", "p99 ms", "CPU µs/request", "µs/token")
    found = rich.table.Table(*columns, box=rich.box.MARKDOWN)
    for load, each in turns.items():
        rates, is_ours = [turn.requests_per_s for turn in each], load.peer is None and load is not DIRECT
        figures = (
            f"{_median(rates):,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            f"{_median(turn.tokens_per_s for turn in each):,.0f}",
            f"{_median(turn.latency_ms(50) for turn in each):.2f}",
            f"{_median(turn.latency_ms(99) for turn in each):.2f}",
            f"{_median(turn.cpu_us_per_request for turn in each):,.0f}" if is_ours else "-",
            f"{_median(turn.cpu_us_per_token for turn in each):.1f}" if is_ours else "-",
        )
        found.add_row(load.name, *figures)
    return found


def peer_loads(litellm: str | None, portkey: str | None) -> list[Load]:
    """What the peers that run are measured with; Portkey's streams are part of no line."""
    loads: list[Load] = []
    if litellm:
        loads += [load.at(Peer(LITELLM, litellm)) for load in (PLAIN, STREAM)]
    if portkey:
        headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{MOCK_PORT}/v1"}
        loads.append(PLAIN.at(Peer(PORTKEY, portkey, headers=headers)))
    return loads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where a line is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, where nothing else is said")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load in each round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--litellm", metavar="URL")
    parser.add_argument("--portkey", metavar="URL")
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe(PACKAGES), soft_wrap=True)
    rounds = options.rounds or (1 if options.quick else 5)
    with stand() as on, Progress(console=console) as progress:
        turns = measure(on, (*LOADS, *peer_loads(options.litellm, options.portkey)), rounds, options.seconds, progress)
    found = lines(turns)
    console.print(table(turns), summary(found))
    return conclude(found, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
