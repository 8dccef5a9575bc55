"""Earliest deadline of the first token first, on Sarathi-Serve's engine: the EDF baseline of Niyama (2503.22562).

Everything is `fcfs_sarathi`, ordered by when the first token is due. Running work yields only where KV runs short,
the latest deadline first; a prompt that is begun shares the budget with those of earlier deadlines that run.

Deviations: none known.
"""

from benchmarks.scheduling.policies.fcfs_sarathi import FcfsSarathi
from benchmarks.scheduling.policies.setup import Request


class Edf(FcfsSarathi):
    """Deadlines decide who is first."""

    def _priority(self, request: Request) -> float:
        return request.first_due_ms
