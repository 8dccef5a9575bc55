"""Runs of one request under one idempotency key: what they share, and from what one of them goes on."""

import msgspec


class Once(msgspec.Struct, frozen=True):
    """What all runs of one request under one idempotency key have in common. Together they are charged what the one
    came to that came furthest."""

    name: str
    until_ms: int
    """When that is forgotten, epoch ms by the store's clock: with the key's own record."""


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens that earlier runs have published, from which a request goes on. Raises ValueError where the figures
    can not be."""

    published: int
    """Of all choices."""
    ended: int
    """Of these, those of choices that are over."""
    going: int
    """Choices that go on."""
    longest: int
    """Of one of those, the most."""

    def __post_init__(self) -> None:
        running = self.published - self.ended
        if min(self.ended, self.going, self.longest, running, self.lag) < 0 or (self.longest and not self.going):
            raise ValueError("the figures of a resumption must fit each other")

    @property
    def lag(self) -> int:
        """Tokens until all choices that go on have come as far as the first of them."""
        return self.going * self.longest - (self.published - self.ended)

    def reach(self, per_choice: int) -> int:
        """Output tokens of all choices, where each that goes on comes to so many."""
        return self.ended + self.going * per_choice
