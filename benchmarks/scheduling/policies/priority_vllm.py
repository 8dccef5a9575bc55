"""Static priority as in vLLM's V1 scheduler (vLLM 0.32, `--scheduling-policy priority`).

As `fcfs_vllm`, but those that wait are ordered by (priority, arrival), the lane's rank being the priority, and the
victim of a request that cannot grow is the running one with the lowest priority, among equals the latest to arrive.
Waiting work never preempts running work, and the token budget still goes out in order of admission.

Deviations: those of `fcfs_vllm`.
"""

from benchmarks.scheduling.policies.fcfs_vllm import FcfsVllm
from benchmarks.scheduling.policies.setup import Request


class PriorityVllm(FcfsVllm):
    """vLLM's `--scheduling-policy priority`."""

    def _priority(self, request: Request) -> float:
        return self._rank(request)

    def _victim(self) -> Request:
        return max(self._running, key=lambda request: (self._rank(request), request.number))
