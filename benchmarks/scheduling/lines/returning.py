"""Line 12 as well: who comes again and again, and who holds a stream of its own meanwhile, waits no longer than others.

Newcomers of `benchmarks.scheduling.lines.newcomers` are each of another tenant, of which nothing was ever served. Here
all are of one tenant, so that what it was charged for the last counts when the next one comes; and in half the runs a
long stream of its own runs all the time, so that something of it has always begun. The crowd has 1 or 8 tenants, and
what the tenant asks for stays below an equal share, or fairness would have it wait. The bound is that of a newcomer. It
is not held against requests to the throughput lane beside a stream of their own: those begin as tenants are evened out,
once the others are ahead by Θ. They are in the table.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.common.line import Effort, Line
from benchmarks.scheduling.lines.newcomers import CROWDS, NEWCOMER, PAIRS, Case, Seen, ask, over_bound, play_with, table
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.workload import Arrival

TENANT = "returning"
EVERY_MS = 800.0
"""Between its requests."""
STREAM_PROMPT, STREAM_TOKENS = 16, 8_000
"""Of its own stream, which outlasts a run."""


class Returning(NamedTuple):
    """One run: a case, with all its newcomers of one tenant."""

    case: Case
    streams: bool
    """The tenant holds a stream from the start, before the crowd comes."""

    def arrivals(self) -> list[Arrival]:
        """What everybody asks for."""
        return [*self._stream(), *(self._own(one) for one in self.case.arrivals())]

    def _stream(self) -> Iterator[Arrival]:
        if self.streams:
            yield ask(0.0, "stream", TENANT, self.case.lane, STREAM_PROMPT, STREAM_TOKENS, 1)

    @staticmethod
    def _own(one: Arrival) -> Arrival:
        return replace(one, tenant=TENANT) if one.job_id.startswith(NEWCOMER) else one


def play(one: Returning) -> Seen:
    """Play a run, and watch the tenant's requests; its stream is none of them."""
    return play_with(one.case, one.arrivals())


def measure(effort: Effort) -> list[Line]:
    """Two figures of the line: without a stream of its own, and with one."""
    duration_s = 20.0 if effort.quick else 45.0
    tenants, workers = ((1, 8), (1,)) if effort.quick else ((1, 8), (1, 4))
    cases = [
        Case(short, many, count, crowd, lane, seed, duration_s, EVERY_MS)
        for short in CROWDS
        for many in tenants
        for count in workers
        for crowd, lane in PAIRS
        for seed in effort.seeds[:1]
    ]
    return [_line(effort, cases, streams=streams) for streams in (False, True)]


def _line(effort: Effort, cases: list[Case], *, streams: bool) -> Line:
    who = "who comes beside a stream of its own" if streams else "who comes again and again"
    played = effort.each(who, play, [Returning(case, streams) for case in cases])
    found = list(zip(cases, played, strict=True))
    effort.show(table(f"First tokens of {who}", found))
    bounded = [one for one in found if not streams or one[0].lane is LaneName.LATENCY]
    return over_bound(f"first token of {who}, over the bound, P99", bounded)
