"""Heads that are still coming: how many bytes of them all connections may hold, and which goes when there are more.

A request's head mostly comes in one piece, and is not counted then. What is left waiting is a slow client's, or an
attacker's: the one that began first goes first.
"""

from typing import Protocol


class Sender(Protocol):
    """Whose head is coming."""

    def give_way(self) -> None:
        """Others need its room: close."""


class Heads:
    """All of one port."""

    def __init__(self, *, most_bytes: int = 32 * 2**20) -> None:
        """`most_bytes`: as they came; what is made of them takes half as much again."""
        self._most_bytes = most_bytes
        self._held: dict[Sender, int] = {}
        """From the one that began first on."""
        self.bytes = 0

    def hold(self, sender: Sender, count: int) -> None:
        """So much of its head has come. Senders go, itself if need be, until all is within bounds."""
        self.bytes += count - self._held.get(sender, 0)
        self._held[sender] = count
        while self.bytes > self._most_bytes:
            first = next(iter(self._held))
            self.release(first)
            first.give_way()

    def release(self, sender: Sender) -> None:
        """Its head is whole, or it is gone; nothing where none was held."""
        self.bytes -= self._held.pop(sender, 0)
