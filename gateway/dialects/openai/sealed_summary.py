"""Sealing of a conversation's summary, as text that its client holds."""

import base64
import binascii
from collections.abc import Callable

Close = Callable[[bytes], bytes]
Open = Callable[[bytes], bytes | None]


def sealed(summary: str, close: Close) -> str:
    """Seal a summary for the client to hold."""
    return base64.urlsafe_b64encode(close(summary.encode())).decode()


def unsealed(carried: str, opens: Open) -> str | None:
    """Open a sealed summary; None if it is not this tenant's, or was changed."""
    try:
        content = opens(base64.urlsafe_b64decode(carried))
    except (binascii.Error, ValueError):
        return None
    return None if content is None else content.decode()
