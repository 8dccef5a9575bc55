"""How a client carries the summary of a conversation: sealed for its tenant, as text."""

import base64
import binascii
from collections.abc import Callable

Close = Callable[[bytes], bytes]
Open = Callable[[bytes], bytes | None]


def sealed(summary: str, close: Close) -> str:
    """A summary as its client carries it."""
    return base64.urlsafe_b64encode(close(summary.encode())).decode()


def unsealed(carried: str, opens: Open) -> str | None:
    """The summary; None where it is none of this tenant's, or was changed."""
    try:
        content = opens(base64.urlsafe_b64decode(carried))
    except (binascii.Error, ValueError):
        return None
    return None if content is None else content.decode()
