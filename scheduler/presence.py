"""How many requests of a lane are this door's own, so that those of others can be told from what is reported.

Reports are old, and count jobs in the queue but choices at the workers.
"""

import math

STALE_MS = 3_000.0
"""Workers may report for this long what has ended: two heartbeats, and the reading of them."""


class _Peak:
    """The most that was open within the last STALE_MS, or up to twice that."""

    def __init__(self) -> None:
        self._before = self._most = 0
        self._since_ms = -math.inf

    def see(self, count: int, now_ms: float) -> int:
        """So many have been open until now, since it was told last; the most."""
        age_ms = now_ms - self._since_ms
        if age_ms >= STALE_MS:
            self._before = self._most if age_ms < 2.0 * STALE_MS else count
            self._most, self._since_ms = count, now_ms
        self._most = max(self._most, count)
        return max(self._before, self._most)


class Presence:
    """What one door has of one lane, in one queue and its workers."""

    def __init__(self) -> None:
        self._open = self._begun = self._fresh = 0
        """Choices that are open, those of them that have begun, and jobs that have not."""
        self._peak = _Peak()

    def enter(self, choices: int, now_ms: float) -> None:
        """A job is let in."""
        self._peak.see(self._open, now_ms)
        self._open += choices
        self._fresh += 1

    def begin(self, choices: int) -> None:
        """It has its first tokens."""
        self._begun += choices
        self._fresh -= 1

    def leave(self, choices: int, now_ms: float, *, begun: bool) -> None:
        """It is over."""
        self._peak.see(self._open, now_ms)
        self._open -= choices
        if begun:
            self._begun -= choices
        else:
            self._fresh -= 1

    def reported(self, now_ms: float) -> int:
        """Choices that workers report as theirs: what has begun, and what has ended too lately for them to say so."""
        return self._begun + self._peak.see(self._open, now_ms) - self._open

    def elsewhere(self, taken: int, queued: int, now_ms: float) -> int:
        """Choices of other doors, of those that workers have taken and the jobs that are queued.

        Nobody tells where a job waits that has not begun: those of this door are spread evenly over what may be
        theirs. A queued job of another door is taken for one choice.
        """
        at_workers = max(0, taken - self.reported(now_ms))
        choices = (self._open - self._begun) / max(1, self._fresh)
        jobs = queued + at_workers / max(1.0, choices)
        return round((at_workers + queued) * max(0.0, 1.0 - self._fresh / jobs)) if jobs else 0
