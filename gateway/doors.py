"""What this gateway has let into each queue and not yet seen end: what its next word on a deadline rests upon."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from gateway.flight import Flight
from scheduler.commitments import Commitments
from scheduler.lanes import Lane, LaneName


class Doors:
    """One for each queue; told of every flight as it is let in, put, gains tokens, and is over."""

    def __init__(self, lanes: Mapping[LaneName, Lane], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lanes = lanes
        self._clock = clock
        self._doors: dict[str, Commitments] = {}
        self._held: set[str] = set()
        """Flights on their way to the queue."""
        self._flying: set[str] = set()
        """Those that were put, and are not over."""
        self.idle = asyncio.Event()
        """Nothing that was let in is on its way or in the air."""
        self.idle.set()

    @property
    def now_ms(self) -> float:
        """The time on the clock of all commitments."""
        return self._clock() * 1e3

    def at(self, queue: str) -> Commitments:
        """What was let into a queue."""
        door = self._doors.get(queue)
        if door is None:
            door = self._doors[queue] = Commitments(self._lanes)
        return door

    def held(self, queue: str, flight_ids: Sequence[str]) -> "Hold":
        """A block in which these flights may be let in; at its end those are withdrawn that were never put."""
        self._held.update(flight_ids)
        self.idle.clear()
        return Hold(self, queue, flight_ids)

    def let_go(self, queue: str, flight_ids: Sequence[str]) -> None:
        """Withdraw those of these flights that are on their way no more."""
        for flight_id in self._held.intersection(flight_ids):
            self._held.discard(flight_id)
            self.at(queue).withdraw(flight_id, self.now_ms)
        self._rest()

    def entered(self, flight: Flight) -> None:
        """Its job is about to be put: from now on it stays until it has `left`."""
        self._held.discard(flight.id)
        self._flying.add(flight.id)
        self.idle.clear()

    def demoted(self, flight: Flight) -> None:
        """It was put as best effort after all."""
        self.at(flight.queue).demote(flight.id, self.now_ms)

    def placed(self, flight: Flight, place: int) -> None:
        """Its job waits as the `place`-th of its tenant's in its lane, by the queue's word."""
        self.at(flight.queue).placed(flight.id, place, self.now_ms)

    def still_waits_ms(self, flight: Flight, place: int) -> float | None:
        """The same, and how long it still waits, by how fast places moved of late; None where that is not known."""
        self.placed(flight, place)
        ask = flight.booking.ask
        return self.at(flight.queue).still_waits_ms(LaneName(ask.lane), ask.tenant, place)

    def heard(self, flight: Flight, *, ends: bool = False) -> None:
        """It has more tokens; `ends`: a choice has its last."""
        choices = flight.choices
        published = choices[0].published if len(choices) == 1 else sum(choice.published for choice in choices)
        are_last = ends and len(choices) == 1
        door = self._doors[flight.queue]  # by which it came in
        door.produced(flight.id, published // len(choices), self._clock() * 1e3, are_last=are_last)

    def left(self, flight: Flight) -> None:
        """It is over, if it ever was put."""
        if flight.job is None:
            self.at(flight.queue).withdraw(flight.id, self.now_ms)
        else:
            self.at(flight.queue).leave(flight.id, finished=flight.told)
        self._flying.discard(flight.id)
        self._rest()

    def _rest(self) -> None:
        if not (self._held or self._flying):
            self.idle.set()


class Hold:
    """Flights on their way to a queue, as a context that holds them from when it is made until it ends."""

    __slots__ = ("_doors", "_flight_ids", "_queue")

    def __init__(self, doors: Doors, queue: str, flight_ids: Sequence[str]) -> None:
        self._doors = doors
        self._queue = queue
        self._flight_ids = flight_ids

    def __enter__(self) -> None:
        """They are held already."""

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """What was never put is withdrawn."""
        self._doors.let_go(self._queue, self._flight_ids)
