"""Who was served what while a simulation ran, what preemption cost, and how far apart tenants drifted.

Service is VTC's: 1 for a prompt token computed for the first time, 2 for an output token; recomputing serves nobody.
Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.cruise import Coasted
from scheduler.fairness import DECODE_WEIGHT, PREFILL_WEIGHT
from scheduler.lanes import LaneName
from scheduler.simulate import Step
from scheduler.steps import Row
from scheduler.workload import Arrival, Record


@dataclass(slots=True)
class _Asked:
    arrival: Arrival
    reached: int = 0
    """Tokens whose KV was computed at some time, from the first on."""
    worker: int | None = None
    """In whose latest step it had a row; None while it waits, for its first turn or for another."""


@dataclass
class ServiceMeter:
    """Observes a simulation. `bucket_ms`: the resolution of `curve`; `every_ms`: how often gaps are looked at (0: each
    step; the cost grows with the square of the tenants)."""

    bucket_ms: float = 10_000.0
    every_ms: float = 0.0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    run_ms: float = 0.0
    copy_ms: float = 0.0
    service: dict[str, float] = field(default_factory=dict)
    """By tenant, in all."""
    curve: dict[str, list[float]] = field(default_factory=dict)
    """By tenant, what it got in each bucket of time; a tenant's list ends with its last service."""

    def __post_init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._arriving: list[tuple[float, Arrival]] = []
        self._rows: dict[int, set[str]] = {}
        self._gaps: defaultdict[LaneName, _Gaps] = defaultdict(_Gaps)
        self._looked_ms = 0.0

    @property
    def max_gap(self) -> float:
        """Most that one tenant got beyond another, per unit of weight, in a time in which both had work waiting in the
        same lane."""
        return max((gaps.most for gaps in self._gaps.values()), default=0.0)

    @property
    def tax(self) -> float:
        """Preemption's share of the workers' time, 0 to 1: of the rows, by their part of recomputed tokens; and all
        copies, in which no row runs. Without swaps it is recomputed over computed tokens (vLLM's #54644)."""
        recomputing_ms = self.run_ms * self.recomputed_tokens / self.computed_tokens if self.computed_tokens else 0.0
        all_ms = self.run_ms + self.copy_ms
        return (recomputing_ms + self.copy_ms) / all_ms if all_ms else 0.0

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""
        self._asked[arrival.flight_id] = _Asked(arrival)
        self._arriving.append((now_ms, arrival))

    def stepped(self, step: Step) -> None:
        """A worker ran a step: who had a row in it, who did not, and what they got."""
        self.run_ms += step.run_ms
        self.copy_ms += step.copy_ms
        self._join(step.started_ms)
        self._turn(step)
        self._join(step.ended_ms)
        bucket = int(step.ended_ms / self.bucket_ms)
        for row in step.plan.rows:
            asked = self._asked[row.seq.flight_id]
            service = self._compute(asked, row)
            if service:
                self._serve(asked.arrival, service, bucket)
        for produced in step.outcome.produced:
            self._serve(self._asked[produced.seq.flight_id].arrival, DECODE_WEIGHT, bucket)
        self._look(step.ended_ms)

    def coasted(self, step: Coasted) -> None:
        """A worker went on as in its last step: tokens for all, all of them new, and nobody begins or stops waiting."""
        self.run_ms += step.run_ms
        self._join(step.ended_ms)
        self.computed_tokens += step.rows
        bucket = int(step.ended_ms / self.bucket_ms)
        for arrival, rows in step.shares:
            self._serve(arrival, DECODE_WEIGHT * rows, bucket)
        self._look(step.ended_ms)

    def landed(self, gained: Mapping[str, int]) -> None:
        """Flights gained so many tokens while they coasted."""
        for flight_id, tokens in gained.items():
            self._asked[flight_id].reached += tokens

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""
        self._join(math.inf)
        asked = self._asked.pop(record.arrival.flight_id)
        if asked.worker is None:
            self._gaps[record.arrival.lane].stop_waiting(record.arrival.tenant)

    def _look(self, now_ms: float) -> None:
        if now_ms >= self._looked_ms + self.every_ms:
            self._looked_ms = now_ms
            for gaps in self._gaps.values():
                gaps.look()

    def _join(self, until_ms: float) -> None:
        """What came until then waits. A step's rows stop waiting as it begins, and it is told of as it ends: who came
        in between has not waited with them."""
        while self._arriving and self._arriving[0][0] <= until_ms:
            arrival = self._arriving.pop(0)[1]
            self._gaps[arrival.lane].wait(arrival.tenant)

    def _turn(self, step: Step) -> None:
        """Rows run; what had one in this worker's last step and has none now waits again."""
        running = {row.seq.flight_id for row in step.plan.rows}
        for flight_id in self._rows.get(step.worker, set()) - running:
            asked = self._asked.get(flight_id)
            if asked is not None:
                asked.worker = None
                self._gaps[asked.arrival.lane].wait(asked.arrival.tenant)
        for asked in map(self._asked.__getitem__, running):
            if asked.worker is None:
                asked.worker = step.worker
                self._gaps[asked.arrival.lane].stop_waiting(asked.arrival.tenant)
        self._rows[step.worker] = running

    def _compute(self, asked: _Asked, row: Row) -> float:
        """Count a row's tokens; the service of those that are new."""
        end, prompt = row.context_length, asked.arrival.prompt_tokens
        start = min(end, max(asked.reached, row.first_position))
        self.computed_tokens += len(row.token_ids)
        self.recomputed_tokens += start - row.first_position
        asked.reached = max(asked.reached, end)
        return PREFILL_WEIGHT * (min(end, prompt) - min(start, prompt))

    def _serve(self, arrival: Arrival, service: float, bucket: int) -> None:
        tenant = arrival.tenant
        self.service[tenant] = self.service.get(tenant, 0.0) + service
        curve = self.curve.setdefault(tenant, [])
        if bucket >= len(curve):
            curve.extend([0.0] * (bucket + 1 - len(curve)))
        curve[bucket] += service
        self._gaps[arrival.lane].serve(tenant, service / arrival.weight)


class _Gaps:
    """|W_f - W_g| of every two tenants since both have had work waiting (VTC's jointly backlogged intervals)."""

    def __init__(self) -> None:
        self.most = 0.0
        self._service: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._apart: dict[str, dict[str, float]] = {}
        """By backlogged tenant, and by each that was backlogged before it: how far apart they were when it joined."""

    def wait(self, tenant: str) -> None:
        """One more request of this tenant waits."""
        if tenant not in self._waiting:
            own = self._service.setdefault(tenant, 0.0)
            self._apart[tenant] = {other: own - self._service[other] for other in self._waiting}
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def stop_waiting(self, tenant: str) -> None:
        """One fewer waits."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant], self._apart[tenant]
            for earlier in self._apart.values():
                earlier.pop(tenant, None)

    def serve(self, tenant: str, service: float) -> None:
        """Service per unit of weight."""
        self._service[tenant] = self._service.get(tenant, 0.0) + service

    def look(self) -> None:
        """Compare all who are backlogged."""
        for tenant, others in self._apart.items():
            own = self._service[tenant]
            for other, apart in others.items():
                self.most = max(self.most, abs(own - self._service[other] - apart))
