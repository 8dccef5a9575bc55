"""Pseudonyms in a trace, which only show equality: keyed hashes of tenants and of prompt prefixes.

The key is one secret of the installation, kept in the store (`fl:pseudonyms`). All gateways therefore produce the same
names, and a guess at a tenant or prompt cannot be tested with a trace alone."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

BLOCK_TOKENS = 128
MOST_BLOCKS = 512
# Bytes of a block's name, which fits any reader's integers.
_NAME_BYTES = 6
REMEMBERED = 10_000


class Pseudonyms:
    """Computes pseudonyms. For one thread at a time."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.tenant = lru_cache(REMEMBERED)(self._tenant)

    def _tenant(self, tenant_id: str, created_at: float) -> str:
        """Return a tenant's name; a later tenant with the same id gets another one."""
        made = blake2b(repr((tenant_id, created_at)).encode(), digest_size=8, key=self._key, person=b"tenant")
        return f"t-{made.hexdigest()}"

    def blocks(self, scope: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return names of a prompt's whole blocks, each depending on `scope` and all tokens up to its end."""
        whole = min(len(prompt) // BLOCK_TOKENS, MOST_BLOCKS)
        if not whole:
            return ()
        ids = memoryview(array("I", prompt[: whole * BLOCK_TOKENS]))
        digest = blake2b(scope.encode(), digest_size=_NAME_BYTES, key=self._key, person=b"prompt")
        names = []
        for first in range(0, whole * BLOCK_TOKENS, BLOCK_TOKENS):
            digest.update(ids[first : first + BLOCK_TOKENS])
            names.append(int.from_bytes(digest.copy().digest()))
        return tuple(names)
