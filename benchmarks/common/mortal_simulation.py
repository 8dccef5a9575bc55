"""A simulation in which workers die."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.simulation.simulate import Simulation


class Death(NamedTuple):
    """A worker stops in the middle of a step; its jobs are given back after its lease has expired."""

    at_ms: float
    worker: int
    lapses_ms: float


@dataclass
class MortalSimulation(Simulation):
    """A run whose queue gets the jobs of dead workers back."""

    deaths: Sequence[Death] = ()

    def __post_init__(self) -> None:
        self._dead: set[int] = set()
        self._outputs: dict[str, tuple[tuple[int, ...], ...]] = {}
        super().__post_init__()
        if self.queue is None and self.deaths:
            raise ValueError("deaths need a queue, which gets the jobs of dead workers")
        for death in self.deaths:
            self._at(death.at_ms, partial(self._kill, death.worker))
            self._at(death.lapses_ms, partial(self._give_back, death.worker))

    def _serves(self, number: int) -> bool:
        return number not in self._dead

    def _turn(self, number: int) -> None:
        if number not in self._dead:
            super()._turn(number)

    def _kill(self, number: int) -> None:
        self._land(number)
        planner = self._workers[number].policy
        assert isinstance(planner, Planner)  # noqa: S101 - no other policy runs on workers that die
        for job_id in planner.job_ids():  # gateways have all tokens of the steps that ended
            self._outputs[job_id] = tuple(tuple(seq.output) for seq in planner._groups[job_id].choices)
        self._dead.add(number)
        self._ends.pop(number, None)
        if number in self._asleep:
            self._asleep.remove(number)

    def _with_output(self, lease: Lease) -> Lease:
        return msgspec.structs.replace(lease, generated=self._outputs.get(lease.job.job_id, ()))

    def _give_back(self, number: int) -> None:
        held = self._workers[number].held
        if self.queue is not None:
            self.queue.release(int(self.now_ms), str(number), held)
        held.clear()
        while self._asleep:
            self._wake(self._draw_sleeper(), self.now_ms)
