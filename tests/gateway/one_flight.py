"""One flight as a gateway books it, for what needs nothing else of a gateway."""

from gateway.flight import Booking, Flight, Mailbox
from quotas.store import Ask

QUEUE = "tiny@0"


def flight(flight_id: str = "f", *, n: int = 1, max_output_tokens: int = 9) -> Flight:
    """A request of ten prompt tokens of acme's, on the latency lane."""
    ask = Ask(
        flight_id=flight_id,
        root="acme",
        tenant="acme",
        key_id="",
        model="tiny",
        lane="latency",
        prompts=(10,),
        max_output_tokens=max_output_tokens,
        n=n,
    )
    return Flight(flight_id, Booking(ask), 10, QUEUE, Mailbox())
