"""When to look whether a flight's time is over, so that no step asks all flights."""

import heapq
from collections.abc import Iterator, Mapping

from scheduler.flight import Flight

MOST_STALE = 8
"""Noted times for each flight that is here, from which on those of flights that are over are thrown out."""


class Expiries:
    """The times at which a deadline of a flight passes, or the longest wait of one that has not begun."""

    def __init__(self, flights: Mapping[str, Flight]) -> None:
        """`flights`: those that are not over, as they are at each call."""
        self._flights = flights
        self._times: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._times)

    def watch(self, flight: Flight) -> None:
        """Note a flight's times."""
        for at_ms in flight.expiries():
            heapq.heappush(self._times, (at_ms, flight.job.flight_id))
        if len(self._times) > MOST_STALE * (1 + len(self._flights)):
            self._times = [(at_ms, one.job.flight_id) for one in self._flights.values() for at_ms in one.expiries()]
            heapq.heapify(self._times)

    def any_by(self, now_ms: float) -> bool:
        """A noted time has passed; `passed` tells whether a flight's is over."""
        return bool(self._times) and self._times[0][0] < now_ms

    def passed(self, now_ms: float) -> Iterator[tuple[Flight, str]]:
        """Flights whose time is over, and why, in words; the caller ends them."""
        while self._times and self._times[0][0] < now_ms:
            flight = self._flights.get(heapq.heappop(self._times)[1])
            reason = flight.expired(now_ms) if flight else ""
            if flight and reason:
                yield flight, reason
