"""One job as a gateway books it, for what needs nothing else of a gateway."""

from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from tests.support.quotas.house import ask

QUEUE = "tiny@0"


def job(job_id: str = "f", *, n: int = 1, max_output_tokens: int = 9) -> LiveJob:
    """A request of ten prompt tokens of acme's, on the latency lane."""
    asked = ask(job_id, model="tiny", max_output_tokens=max_output_tokens, n=n)
    request = LiveRequest(asked)
    request.jobs = [LiveJob(job_id, request, 10, QUEUE)]
    return request.jobs[0]
