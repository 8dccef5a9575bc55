"""The metrics of all gateways in the store: recent slots, and the rings of history."""

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from redis.asyncio import Redis

from fairlane.gateway.insight.fleet_metrics.sums import OTHERS, Sums, merged
from fairlane.store.scripts import Scripts, call

PREFIX = "fl:{figures}:"
SLOT_S = 10
# Slots that are kept; older ones are merged or lost.
SLOTS_KEPT = 60
MERGER_MS = 15_000
ERASED_AT_ONCE = 64
# A slot is merged when this many have begun after it: by then every gateway has reported its counts.
LATE_SLOTS = 2

_SCRIPTS = Scripts(Path(__file__).parent / "lua")


@dataclass(frozen=True, slots=True)
class Ring:
    """One resolution of the history: `steps` steps of `step_s` seconds each."""

    step_s: int
    steps: int

    @property
    def key(self) -> str:
        return f"{PREFIX}ring:{self.step_s}"


# A day, a month, and the month at a lower resolution; each is computed from the one before.
RINGS = (Ring(SLOT_S, 8_640), Ring(300, 8_640), Ring(7_200, 372))


class ReportedState(msgspec.Struct, array_like=True):
    """A gateway's report of a slot so far."""

    # By the gateway's estimate of the store's clock.
    at_ms: int
    sums: Sums
    # Running and waiting requests at that moment, by tenant.
    now: dict[str, tuple[int, int]] = {}


class GatewayReport(NamedTuple):
    """One gateway's report of one slot."""

    slot: int
    gateway: str
    state: ReportedState


class Step(NamedTuple):
    """One step of a ring."""

    number: int
    sums: Sums


_encode = msgspec.msgpack.Encoder().encode
_report_decoder: msgspec.msgpack.Decoder[ReportedState] = msgspec.msgpack.Decoder(ReportedState)
_step: msgspec.msgpack.Decoder[tuple[int, Sums]] = msgspec.msgpack.Decoder(tuple[int, Sums])


class FleetMetricsStore:
    """The store of fleet metrics. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def report(self, slot: int, gateway: str, state: ReportedState) -> tuple[int, bool]:
        """Replace this gateway's report of a slot; return the store's clock in ms, and whether to merge."""
        kept_ms = SLOTS_KEPT * SLOT_S * 1_000
        reply = await _SCRIPTS.run(
            self._client, "metrics_report", PREFIX, slot, gateway, _encode(state), kept_ms, MERGER_MS
        )
        return int(reply[0]), bool(reply[1])

    async def recent(self, slots: Iterable[int]) -> list[GatewayReport]:
        reply = await _SCRIPTS.run(self._client, "metrics_recent", PREFIX, *slots)
        parts = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [
            GatewayReport(int(slot), gateway.decode(), _report_decoder.decode(blob)) for slot, gateway, blob in parts
        ]

    async def read(self, ring: Ring, first: int, last: int) -> list[Step]:
        wanted = range(max(first, last - ring.steps + 1), last + 1)
        if not wanted:
            return []
        blobs = await call(self._client, "HMGET", ring.key, *(number % ring.steps for number in wanted))
        found = [_decoded(blob) for blob in blobs if blob is not None]
        return [step for step in found if step.number in wanted]

    async def merge(self, slot: int) -> None:
        """Merge what is complete while `slot` is the current one into the rings. It may be repeated."""
        marks = {
            int(step_s): int(mark) for step_s, mark in (await call(self._client, "HGETALL", f"{PREFIX}merged")).items()
        }
        last = slot - LATE_SLOTS
        first = max(marks.get(SLOT_S, last - 1) + 1, last - SLOTS_KEPT + LATE_SLOTS)
        reported: dict[int, list[Sums]] = {number: [] for number in range(first, last + 1)}
        for report in await self.recent(reported):
            reported[report.slot].append(report.state.sums)
        await self._write(RINGS[0], [(number, parts) for number, parts in reported.items() if parts], last)
        for finer, ring in pairwise(RINGS):
            last = await self._coarsen(finer, ring, last, marks.get(ring.step_s))

    async def erase(self, tenant: str, first_s: float, last_s: float) -> int:
        """Count a deleted tenant under OTHERS in these steps; return the number of changed steps."""
        erased = 0
        for ring in RINGS:
            last = int(last_s // ring.step_s)
            first = max(int(first_s // ring.step_s), last - ring.steps + 1)
            for start in range(first, last + 1, ERASED_AT_ONCE):
                wanted = range(start, min(start + ERASED_AT_ONCE, last + 1))
                blobs = await call(self._client, "HMGET", ring.key, *(number % ring.steps for number in wanted))
                fields = await asyncio.to_thread(_renamed, blobs, tenant, ring, wanted)
                if fields:
                    await call(self._client, "HSET", ring.key, *fields)
                erased += len(fields) // 2
        return erased

    async def _coarsen(self, finer: Ring, ring: Ring, finer_last: int, mark: int | None) -> int:
        ratio = ring.step_s // finer.step_s
        last = (finer_last + 1) // ratio - 1
        first = max(last if mark is None else mark + 1, last - finer.steps // ratio + 2)
        for number in range(first, last + 1):
            parts = await self.read(finer, number * ratio, (number + 1) * ratio - 1)
            await self._write(ring, [(number, [step.sums for step in parts])] if parts else [], number)
        return last

    async def _write(self, ring: Ring, steps: Sequence[tuple[int, Sequence[Sums]]], mark: int) -> None:
        fields: list[bytes | int] = []
        for number, parts in steps:
            fields += [number % ring.steps, zlib.compress(_encode((number, merged(parts))), 1)]
        if fields:
            await call(self._client, "HSET", ring.key, *fields)
        await call(self._client, "HSET", f"{PREFIX}merged", ring.step_s, mark)


def _renamed(blobs: Sequence[bytes | None], tenant: str, ring: Ring, wanted: range) -> list[bytes | int]:
    fields: list[bytes | int] = []
    for blob in blobs:
        step = None if blob is None else _decoded(blob)
        if step is None or step.number not in wanted or tenant not in step.sums.tenants:
            continue
        others = Sums(tenants={OTHERS: step.sums.tenants.pop(tenant)})
        fields += [step.number % ring.steps, zlib.compress(_encode((step.number, merged([step.sums, others]))), 1)]
    return fields


def _decoded(blob: bytes) -> Step:
    return Step(*_step.decode(zlib.decompress(blob)))
