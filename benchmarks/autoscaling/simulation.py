"""A simulation whose workers an autoscaler starts and stops."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.autoscaling.fleet import FleetLoad, ScaledFleet
from fairlane.scheduler.simulation.simulate import Simulation
from fairlane.scheduler.simulation.workload import Arrival


@dataclass(kw_only=True)
class ScaledSimulation(Simulation):
    """A run behind the global queue, with the workers of a fleet."""

    fleet: ScaledFleet

    def __post_init__(self) -> None:
        # No more requests arrive.
        self._is_over = False
        self.arrivals = self._watched(self.arrivals)
        super().__post_init__()
        if self.queue is None:
            raise ValueError("a scaled fleet needs a queue")
        self._at(self.fleet.every_ms, self._look)

    def _watched(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        yield from arrivals
        self._is_over = True

    def _serves(self, number: int) -> bool:
        return self.fleet.serves(number)

    def _sleep(self, number: int) -> None:
        if not self.fleet.emptied(number, self.now_ms):
            super()._sleep(number)

    def _look(self) -> None:
        """Run the autoscaler once, and schedule the next time unless everything is done."""
        if self.queue is None:
            return
        held = [len(worker.held) for worker in self._workers]
        if self._is_over and not self._waiting and not any(held):
            self.fleet.close(self.now_ms)
            return
        running = Counter(self.records[job_id].arrival.lane for worker in self._workers for job_id in worker.held)
        depths = self.queue.depths(int(self.now_ms))
        load = FleetLoad({lane: depth.queued_tokens for lane, depth in depths.items()}, running)
        started, gone = self.fleet.look(self.now_ms, load, held)
        for number in started:
            self._at(self.now_ms + self.fleet.start_ms, partial(self._begin_serving, number))
        for number in set(gone) & set(self._asleep):
            self._asleep.remove(number)
        self._at(self.now_ms + self.fleet.every_ms, self._look)

    def _begin_serving(self, number: int) -> None:
        if self.fleet.ready(number, self.now_ms):
            self._wake(number, self.now_ms)
