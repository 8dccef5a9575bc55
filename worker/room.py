"""When a worker asks the queue for work, and for how much: on news, never by polling."""

import asyncio

from scheduler.steps import Capacity
from worker.report import Report

NONE = Capacity({}, {})


class Room:
    """What the engine could start next, and whether asking for it may find anything. Used from the event loop only.

    Asking is worth while after a wake-up, after a take that found something, and once there is more room than at the
    last take that found nothing. While leases are on their way into the engine its room is unknown. A full worker asks
    for those whom others would yield to, once a turn: each step begins one.
    """

    def __init__(self) -> None:
        self._capacity = NONE
        self._known = False
        self._news = True
        self._asked = NONE
        self._turned = False
        """The engine ended a turn since the last asking."""
        self._closed = False
        self._changed = asyncio.Event()

    def turned(self, report: Report, told: int) -> None:
        """The engine ended a turn, and has been told so many commands in all."""
        self._capacity = report.capacity
        self._known = report.obeyed >= told
        self._turned = True
        if _exceeds(self._capacity, self._asked):
            self._news = True
        self._changed.set()

    def woken(self) -> None:
        """There may be new work."""
        self._news = True
        self._changed.set()

    def took(self, leases: int) -> None:
        """A take found so many jobs."""
        if leases:
            self._known, self._news, self._asked = False, True, NONE

    def close(self) -> None:
        """Nothing more is to be taken, until it is opened again."""
        self._closed = True
        self._changed.set()

    def open(self) -> None:
        """Jobs may be taken again."""
        self._closed, self._news = False, True
        self._changed.set()

    async def worth_asking(self) -> Capacity | None:
        """Return once asking may find something, with what to ask for; None while closed."""
        while not (self._closed or self._is_worth_asking):
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            return None
        self._news, self._turned, self._asked = False, False, self._capacity
        return self._capacity

    @property
    def _is_worth_asking(self) -> bool:
        if not (self._known and self._news) or self._capacity.is_empty:
            return False
        return self._turned or not self._capacity.is_full


def _exceeds(capacity: Capacity, other: Capacity) -> bool:
    return any(count > other.sequences.get(lane, 0) for lane, count in capacity.sequences.items()) or any(
        tokens > other.kv_tokens.get(lane, 0) for lane, tokens in capacity.kv_tokens.items()
    )
