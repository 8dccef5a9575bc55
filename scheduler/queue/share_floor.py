"""What a lane's share floor is behind by: an account of the tokens that were computed, and of those in workers' hands.

    debt = owed + share * due - lent

| | weighted tokens |
| --- | --- |
| `owed` | the lane's share of what was computed while somebody waited in it, less its own; bounded |
| `due` | charged for jobs of all lanes that workers hold, taken while somebody waited here, and not computed yet |
| `lent` | charged for the lane's own jobs that workers hold, and not computed yet |

A job is charged in advance when it is taken. What it computes moves from `due` and `lent` to `owed`, which leaves the
debt as it was; what it never computes only leaves `due` and `lent`. So the debt counts each token once, whoever waited
when the job was taken and when it ended.

A wait of a lane begins when a job is queued and no other waits there. A lane that is ahead of its floor at that moment
begins with no debt: nobody's wait pays for what the lane had while nobody waited, when the others had what they asked
for. Jobs that were taken in an earlier wait change nothing of the new account, neither by what they compute of their
charge nor by what they do not: each job knows the wait that it was taken in.

The twin of this account in Redis is in `lua/lib/jobs.lua`.
"""

from dataclasses import dataclass

from fairlane.scheduler.queue.types import OWED_LIMIT


@dataclass(slots=True)
class ShareFloor:
    """One lane's account."""

    share: float
    """The lane's floor; 0.0: it has none, and no account."""
    owed: float = 0.0
    due: float = 0.0
    lent: float = 0.0
    wait: int = 1
    """Number of the wait, and of the account."""

    @property
    def debt(self) -> float:
        """Weighted tokens by which the lane is behind its floor (negative: ahead)."""
        return self.owed + self.share * self.due - self.lent

    def begin_wait(self) -> None:
        """Note that somebody waits here from now on, where nobody did. A lane that is ahead gets a new account."""
        if self.share and self.debt < 0:
            self.owed = self.due = self.lent = 0.0
            self.wait += 1

    def lend(self, tokens: float, *, is_due: bool, is_own: bool) -> int:
        """Charge a job in advance. `is_due`: somebody waits here; `is_own`: it is a job of this lane. Return the mark
        by which `take_back` knows the charge; 0: it is none."""
        if not self.share or not (is_due or is_own):
            return 0
        if is_due:
            self.due += tokens
        if is_own:
            self.lent += tokens
        return 2 * self.wait + is_due

    def take_back(self, mark: int, tokens: float, *, is_own: bool, is_computed: bool) -> None:
        """End a part of a charge: it was computed, or will not be."""
        wait, is_due = divmod(mark, 2)
        if wait != self.wait:
            return
        if is_due:
            self.due -= tokens
        if is_own:
            self.lent -= tokens
        if is_computed:
            self._add(self.share * tokens if is_due else 0.0, tokens if is_own else 0.0)

    def serve(self, tokens: float, *, is_due: bool, is_own: bool) -> None:
        """Account for what was computed and had not been charged in advance."""
        if self.share:
            self._add(self.share * tokens if is_due else 0.0, tokens if is_own else 0.0)

    def _add(self, due: float, own: float) -> None:
        self.owed = max(-OWED_LIMIT, min(OWED_LIMIT, self.owed + due - own))
