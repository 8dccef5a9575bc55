"""The account of a lane's share floor: tokens computed, and tokens charged in advance for leased jobs.

    debt = balance + share * due - lent

| | weighted tokens |
| --- | --- |
| `balance` | the lane's share of the tokens computed while jobs waited in it, less its own tokens; bounded |
| `due` | charged for leased jobs of all lanes, taken while jobs waited here, and not yet computed |
| `lent` | charged for the lane's own leased jobs, and not yet computed |

A job is charged in advance when it is taken. Computed tokens move from `due` and `lent` to `balance`, which leaves the
debt unchanged; tokens that are never computed just leave `due` and `lent`. The debt thus counts each token once,
whichever lanes had waiting jobs when the job was taken and when it ended.

A waiting period of a lane starts when a job is queued and none waits there. A lane that is ahead of its floor at that
moment starts with zero debt: its jobs must not pay for tokens that the lane got while no lane competed for them. Jobs
taken in an earlier period do not change the new account: each job records the period in which it was taken.

`lua/lib/jobs.lua` implements the same account in Redis."""

from dataclasses import dataclass

from fairlane.scheduler.queue.types import FLOOR_LIMIT


@dataclass(slots=True)
class ShareFloor:
    """The share floor account of one lane."""

    # The lane's floor; 0.0: none, and no account is kept.
    share: float
    balance: float = 0.0
    due: float = 0.0
    lent: float = 0.0
    # Number of the waiting period, and of the account.
    wait: int = 1

    @property
    def debt(self) -> float:
        return self.balance + self.share * self.due - self.lent

    def begin_wait(self) -> None:
        if self.share and self.debt < 0:
            self.balance = self.due = self.lent = 0.0
            self.wait += 1

    def lend(self, tokens: float, *, is_due: bool, is_own: bool) -> int:
        """Charge a job in advance and return the mark by which `take_back` identifies the charge; 0: nothing was
        charged.

        `is_due`: jobs wait in this lane; `is_own`: it is a job of this lane."""
        if not self.share or not (is_due or is_own):
            return 0
        if is_due:
            self.due += tokens
        if is_own:
            self.lent += tokens
        return 2 * self.wait + is_due

    def take_back(self, mark: int, tokens: float, *, is_own: bool, is_computed: bool) -> None:
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
        if self.share:
            self._add(self.share * tokens if is_due else 0.0, tokens if is_own else 0.0)

    def _add(self, due: float, own: float) -> None:
        self.balance = max(-FLOOR_LIMIT, min(FLOOR_LIMIT, self.balance + due - own))
