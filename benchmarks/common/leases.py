"""The work that benchmarks put into an engine."""

from collections.abc import Sequence

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Sampling


def greedy_lease(number: int, prompt: Sequence[int], tokens: int, *, tenant: str = "benchmark") -> Lease:
    """A greedy request of the throughput lane that runs to its last token."""
    job = Job(
        job_id=str(number),
        gateway_id="benchmark",
        tenant=tenant,
        lane=LaneName.THROUGHPUT,
        prompt=tuple(prompt),
        max_tokens=tokens,
        granted_until=tokens,
        sampling=Sampling(temperature=0.0),
        ttft_ms=1e9,
        tpot_ms=1e9,
    )
    return Lease(job=job, epoch=1, arrived_ms_ago=0.0)
