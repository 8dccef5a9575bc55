"""Names in a trace that tell what is alike and nothing else: keyed hashes of tenants, and of what prompts begin with.

The key is one secret of the installation, drawn when it is first wanted and kept in the store (`fl:pseudonyms`): all
gateways give the same names, and a trace alone confirms no guess at a tenant or a prompt. Who forgets the key can never
link old traces to anybody.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 128
"""Of a prompt, what one name stands for."""
MOST_BLOCKS = 512
"""What a prompt has beyond them is not named."""
_NAME_BYTES = 6
"""Of a block: few enough for any reader's numbers."""
REMEMBERED = 10_000


class Pseudonyms:
    """For one thread at a time."""

    def __init__(self, key: bytes) -> None:
        """`key`: 32 bytes."""
        self._key = key
        self._tenants: OrderedDict[tuple[str, float], str] = OrderedDict()

    def tenant(self, tenant_id: str, created_at: float) -> str:
        """A tenant's name; one of the same id that was made later has another."""
        known = (tenant_id, created_at)
        name = self._tenants.get(known)
        if name is None:
            made = blake2b(repr(known).encode(), digest_size=8, key=self._key, person=b"tenant")
            name = self._tenants[known] = f"t-{made.hexdigest()}"
            if len(self._tenants) > REMEMBERED:
                self._tenants.popitem(last=False)
        return name

    def blocks(self, scope: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """Names of a prompt's whole blocks, each of all tokens up to its end. `scope`: among whom alike prompts have
        the same names."""
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
