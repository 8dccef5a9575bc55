"""How large a body of a route can be that is of any use: what the longest context holds, and what stands around it."""

from collections.abc import Callable
from dataclasses import dataclass

AROUND_BYTES = 64 * 1024
"""For all that is not prompt."""
BYTES_PER_TOKEN = 16
"""Of JSON, escapes included: more than texts come to, and than a token's id with its comma."""


@dataclass(frozen=True, slots=True)
class BodyRoom:
    """The limits of one gateway's routes, as the models that it knows have them."""

    cap_bytes: int
    """Of any body, and of all while no model is known."""
    longest_context: Callable[[], int | None]
    """In tokens; None while no model is known."""

    def most_bytes(self, prompts: int) -> int:
        """Of a route's body that may hold so many prompts."""
        context = self.longest_context()
        if context is None:
            return self.cap_bytes
        return min(self.cap_bytes, AROUND_BYTES + prompts * context * BYTES_PER_TOKEN)

    def most_token_ids(self, prompts: int) -> int:
        """That such a body may hold."""
        context = self.longest_context()
        return self.cap_bytes if context is None else prompts * context
