"""How much work comes, as a part of the time there is: the present weighs most, the past fades."""

import math

RECENT_MS = 2_000.0
"""Over how long a rate is taken."""


class Rate:
    """Work of late per time, 1 at most: what came in vain says nothing about later. Times in milliseconds."""

    def __init__(self) -> None:
        self._rate = self._at_ms = 0.0

    def add(self, work_ms: float, now_ms: float) -> None:
        """So much came now."""
        self._rate, self._at_ms = min(1.0, max(0.0, self.at(now_ms) + work_ms / RECENT_MS)), now_ms

    def add_late(self, work_ms: float, came_ms: float, now_ms: float) -> None:
        """So much came then, as is known only now."""
        self.add(work_ms * math.exp((came_ms - now_ms) / RECENT_MS), now_ms)

    def take_back(self, work_ms: float, came_ms: float, now_ms: float) -> None:
        """What came then is not to count after all."""
        self.add_late(-work_ms, came_ms, now_ms)

    def at(self, now_ms: float) -> float:
        """The part of the time."""
        return self._rate * math.exp((self._at_ms - now_ms) / RECENT_MS)
