"""One flight as a gateway books it, for what needs nothing else of a gateway."""

from fairlane.gateway.requests.request import Booking, Flight, Mailbox
from tests.quotas.house import ask

QUEUE = "tiny@0"


def flight(flight_id: str = "f", *, n: int = 1, max_output_tokens: int = 9) -> Flight:
    """A request of ten prompt tokens of acme's, on the latency lane."""
    asked = ask(flight_id, model="tiny", max_output_tokens=max_output_tokens, n=n)
    return Flight(flight_id, Booking(asked), 10, QUEUE, Mailbox())
