"""Looks for flights that nobody flies any more: a store that failed over or was damaged may have lost a job, or the
news of its end, and a client would wait for either until its deadline.

A flight of which nothing was heard for a round has its record looked up; if there is none, or it says that the job has
ended, news has one more round to come.
"""

import logging
from collections.abc import Mapping

from gateway.dispatch import Dispatcher
from gateway.errors import ApiError
from gateway.flight import Flight
from gateway.store import every
from scheduler.queue_types import JobState

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
MOST_LOOKS = 100
"""A round: however many requests wait, the store is hardly asked."""


class Lookout:
    """One loop over the flights of a gateway. Nothing here is on a request's way."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._heard: Mapping[str, int] = {}
        """How much had been heard of each flight in the last round."""
        self._due: list[str] = []
        """Quiet flights that are still to be looked up."""
        self._missed: set[str] = set()
        """Flights whose jobs were not found, or had ended, in the last round."""

    async def run(self) -> None:
        """Until cancelled."""
        await every(LOOK_EVERY_S, "looking for lost jobs", self.look)

    async def look(self) -> None:
        """One round. Raises STORE_TROUBLE."""
        flights = self._dispatcher.flights
        heard = {flight.id: _heard(flight) for flight in flights.values() if _waits(flight)}
        quiet = {name for name, count in heard.items() if self._heard.get(name) == count}
        self._heard = heard
        for name in self._missed & quiet:
            log.error("the job of flight %s is lost", name)
            flights[name].fail(ApiError("The request's job was lost.", "internal_error"))
        self._missed = set()
        self._due = [name for name in self._due if name in quiet] or sorted(quiet)
        now, self._due = self._due[:MOST_LOOKS], self._due[MOST_LOOKS:]
        for name in now:
            flight = flights.get(name)
            if flight is not None and await self._is_gone(flight):
                self._missed.add(name)

    async def _is_gone(self, flight: Flight) -> bool:
        record = await self._dispatcher.queue(flight.queue).record(flight.id)
        return record is None or record.state is JobState.ENDED


def _waits(flight: Flight) -> bool:
    """Its job may be in the queue, and its end has not come."""
    return flight.job is not None and flight.finished is None and not flight.settled


def _heard(flight: Flight) -> int:
    return flight.preemptions + sum(choice.published for choice in flight.choices)
