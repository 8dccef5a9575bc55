"""Seeds of requests that state none. The gateway draws them, so that any worker continues a stream alike."""

import hashlib

from fairlane.gateway.http.request_id import random_id
from fairlane.quotas.store import Once

_SEED_BITS = 63


def drawn_seed(once: Once | None, number: int) -> int:
    """Return the seed of a prompt whose request states none: the same for each run under one idempotency key."""
    if once is None:
        return int(random_id(), 16) % (1 << _SEED_BITS)
    digest = hashlib.sha256(f"{once.name}:{number}".encode()).digest()
    return int.from_bytes(digest) % (1 << _SEED_BITS)
