"""What must hold once the faults have ended and all requests have."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import redis.exceptions

from tests.system.chaos.clients import Clients, Kind, Request, Try
from tests.system.chaos.faults import LOST_S, Strike
from tests.system.chaos.fleet import LEASE_S, QUANTUM, Fleet, Member

SETTLED_S = 60.0
# Each extension charges what was received. If gateway and worker die together, the tokens since then are not charged: a
# quantum at most. Quanta double from QUANTUM; this is the largest that the longest answers reach.
LARGEST_QUANTUM = 4 * QUANTUM
# A request is affected by a fault up to this long before it begins.
BEFORE_S = 3.0 * LEASE_S
GROWTH, SLACK_BYTES, WARM_S = 1.10, 8 * 2**20, 45.0


@dataclass
class Books:
    """The comparison of the ledger with what clients received."""

    compared: int = 0
    delivered: int = 0
    charged: int = 0
    # Requests whose gateway and worker were lost together, with the tokens that were not charged.
    undercharged: list[int] = field(default_factory=list)
    # Requests that the store lost acknowledged writes of.
    lossy: list[int] = field(default_factory=list)
    # Tokens missing from requests with attempts whose reservation the client does not know, and those of them that may
    # be uncharged because a gateway and a worker were lost together.
    nameless: int = 0
    excused: int = 0
    # Tokens of such requests that no charge covers.
    uncovered: int = 0


def _violates(sink: Callable[[str], None], is_held: bool, what: str) -> None:
    if not is_held:
        sink(what)


async def settled(fleet: Fleet, violated: Callable[[str], None]) -> None:
    """Wait until nothing is reserved, leased or open any more; report what is left."""
    left: dict[str, Any] = {}
    until_s = time.monotonic() + SETTLED_S
    while time.monotonic() < until_s:
        with suppress(httpx.HTTPError, redis.exceptions.RedisError, TimeoutError, OSError):
            left = await _left(fleet)
            if not left:
                return
        await asyncio.sleep(0.2)
    violated(f"left after {SETTLED_S:.0f} s: {left}")


async def _left(fleet: Fleet) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for tenant in Kind:
        limits = (await fleet.admin("GET", f"/tenants/{tenant}/quota"))["limits"]
        left |= {f"reserved {tenant} {name}": each["reserved"] for name, each in limits.items() if each.get("reserved")}
    for kind in ("held", "queue", "jobs"):
        for key in await fleet.store.ask(fleet.store.master, "KEYS", f"fl:*:{kind}:*"):
            if count := await fleet.store.ask(fleet.store.master, "ZCARD", key):
                left[key.decode()] = count
    for member in fleet.members:
        left |= {f"{member.name} {name}": size for name, size in (await member.state()).items() if size}
    return left


async def compare_ledger(
    fleet: Fleet, clients: Clients, strikes: Sequence[Strike], violated: Callable[[str], None]
) -> Books:
    """Compare each request's charge with what its client received."""
    books, requests = Books(), defaultdict[Kind, list[Request]](list)
    for request in clients.requests:
        requests[request.kind].append(request)
    for kind in Kind:
        lines = (await fleet.admin_call("GET", f"/tenants/{kind}/ledger")).text.splitlines()
        charged: dict[str, int] = {}
        for line in map(json.loads, lines):
            _violates(violated, line["flight_id"] not in charged, f"{kind}: {line['flight_id']} is charged twice")
            charged[line["flight_id"]] = line["output_tokens"]
        usage = (await fleet.admin("GET", f"/tenants/{kind}/usage"))["total"]["output_tokens"]
        total = sum(charged.values())
        _violates(violated, usage == total, f"{kind}: usage of {usage} tokens, {total} in the ledger")
        known, books.nameless, books.excused = set[str](), 0, 0
        for request in requests[kind]:
            known |= {each.booking for each in request.tries}
            compare(request, charged, strikes, books, violated)
        unknown = {booking: count for booking, count in charged.items() if booking not in known and count}
        nameless = [each for request in requests[kind] for each in request.tries if not each.booking]
        _violates(
            violated,
            len(unknown) <= len(nameless),
            f"{kind}: {len(unknown)} charges, but {len(nameless)} attempts without an answer: {unknown}",
        )
        owed = sum(unknown.values())
        uncovered = max(0, books.nameless - owed)
        books.uncovered += uncovered
        _violates(
            violated,
            uncovered <= books.excused,
            f"{kind}: {books.nameless} tokens are not charged, {owed} unknown, {books.excused} excused",
        )
        books.charged += total
    return books


def compare(
    request: Request,
    charged: dict[str, int],
    strikes: Sequence[Strike],
    books: Books,
    violated: Callable[[str], None],
) -> None:
    """Compare one request with the ledger's output tokens by reservation."""
    bookings = {each.booking for each in request.tries if each.booking}
    total = sum(charged.get(booking, 0) for booking in bookings)
    delivered = max(each.received for each in request.tries)
    books.compared += 1
    books.delivered += delivered
    hits = _hits(request.tries, strikes)
    lossy = any(strike.loses_writes for strike in hits)
    failed = [each for each in request.tries if "internal_error" in each.ended]
    if failed and not lossy:
        violated(f"an internal error: {request}")
    killed = {name for strike in hits if strike.what.startswith("kill") for name in strike.hurt}
    gateway_lost = any(f"gateway{each.gateway}" in killed for each in request.tries)
    worker_lost = any(name.startswith("worker") for strike in hits for name in strike.hurt)
    if total < delivered:
        missing = delivered - total
        nameless = sum(not each.booking for each in request.tries)
        # While the store is away, half a quantum more is used before the next one is missing.
        most = request.n * LARGEST_QUANTUM * (1.5 if any(map(_is_at_store, hits)) else 1.0)
        if lossy:
            books.lossy.append(missing)
        elif nameless:
            books.nameless += missing
            books.excused += int(nameless * most) if gateway_lost and worker_lost else 0
        elif gateway_lost and worker_lost and missing <= most:
            books.undercharged.append(missing)
        else:
            violated(f"charged {total} of {delivered} tokens: {request}")
        return
    # What was computed under the grant when the gateway or the client left is charged as well: a request never reserves
    # more in advance than it has received.
    left = [each.received + 2 * request.n * QUANTUM for each in request.tries if each.ended != "whole"]
    most = delivered + sum(left)
    if len(request.tries) == 1:
        most = min(most, request.total)
    if total > most and not lossy:
        violated(f"charged {total} tokens, but {delivered} were received: {request}")


def _is_at_store(strike: Strike) -> bool:
    return "store" in strike.what or "fail over" in strike.what


def _hits(tries: Sequence[Try], strikes: Sequence[Strike]) -> list[Strike]:
    first, last = tries[0].began_s - BEFORE_S, tries[-1].ended_s
    return [strike for strike in strikes if first <= strike.began_s <= last + LOST_S]


@dataclass
class Memory:
    """Memory of each process over its life: resident, or a store's data."""

    samples: dict[tuple[str, float], list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    async def sample(self, fleet: Fleet) -> None:
        for member in fleet.members:
            self._add(member, member.started_s, member.rss())
        for number, server in enumerate(fleet.store.servers):
            started_s = server.started_s
            self._add(server, started_s, await fleet.store.data_bytes(number))

    def _add(self, member: Member, started_s: float, found_bytes: int) -> None:
        if found_bytes and started_s == member.started_s:
            self.samples[member.name, started_s].append((time.monotonic() - started_s, found_bytes))

    def check(self, violated: Callable[[str], None]) -> list[str]:
        """Compare the end of each long life with its beginning after the warm-up. Return a line for each."""
        lines = []
        for (name, _), samples in self.samples.items():
            warm = [found_bytes for age_s, found_bytes in samples if age_s >= WARM_S]
            if len(warm) < 12:
                continue
            quarter = len(warm) // 4
            first, last = sum(warm[:quarter]) / quarter, sum(warm[-quarter:]) / quarter
            line = f"{name}: {first / 2**20:.1f} to {last / 2**20:.1f} MiB in {samples[-1][0]:.0f} s"
            lines.append(line)
            _violates(violated, last <= first * GROWTH + SLACK_BYTES, f"memory grew, {line}")
        return lines
