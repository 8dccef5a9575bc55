"""What this gateway has let into each queue and not yet seen end: what its next word on a deadline rests upon."""

import time
from collections.abc import Callable, Mapping

from gateway.flight import Flight
from scheduler.commitments import Commitments, Request
from scheduler.lanes import Lane, LaneName


class Doors:
    """One for each queue; told of every flight as it is put, gains tokens, and is over."""

    def __init__(self, lanes: Mapping[LaneName, Lane], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lanes = lanes
        self._clock = clock
        self._doors: dict[str, Commitments] = {}

    @property
    def now_ms(self) -> float:
        """The time on the clock of all commitments."""
        return self._clock() * 1e3

    def at(self, queue: str) -> Commitments:
        """What was let into a queue."""
        if queue not in self._doors:
            self._doors[queue] = Commitments(self._lanes)
        return self._doors[queue]

    def entered(self, flight: Flight) -> None:
        """Its job is about to be put."""
        job = flight.job
        if job is not None:
            request = Request(
                lane=job.lane,
                tenant=job.tenant,
                prompt_tokens=len(job.prompt),
                max_tokens=job.max_tokens,
                choices=job.n,
                deadline_ms=job.deadline_ms,
                ttft_ms=job.hard_ttft_ms,
            )
            self.at(flight.queue).enter(flight.id, request, guaranteed=job.guaranteed, now_ms=self.now_ms)

    def heard(self, flight: Flight) -> None:
        """It has more tokens."""
        published = sum(choice.published for choice in flight.choices)
        self.at(flight.queue).produced(flight.id, published // len(flight.choices), self.now_ms)

    def left(self, flight: Flight) -> None:
        """It is over, if it ever was put."""
        self.at(flight.queue).leave(flight.id, finished=flight.told)
