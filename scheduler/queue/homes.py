"""Which worker computed a prompt's beginning of late: its home, where its KV is probably cached still.

A hint, and nothing rests upon it. `put` names a new job's home in the wake-up of the workers: the home asks for jobs at
once, the others HOME_MS later, or as soon as anything else gives them reason to. What a `take` answers is the same with
or without homes, so the order of jobs stands, and a home that is gone or full costs its job HOME_MS at the most.

A beginning is known by digests of its tokens at LENGTHS, salted by who shares cached prompts, so that nobody learns of
other tenants' prompts. `take` files the longest of a job's, as many as MOST_HOMES in a generation of HOMES_MS; `put`
looks for all of them, the longest first, in this generation and the one before.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from fairlane.scheduler.planner.kv.prefix_reuse import scope_of
from fairlane.scheduler.protocol.messages import Job

HOME_MS = 5
"""How long other workers leave a job to its home; and how long one may wait in a lane before no home is named there,
since workers are short of room."""
HOMES_MS = 300_000
"""A home is known for once to twice as long."""
MOST_HOMES = 65_536
"""Beginnings filed in one generation; later ones are not."""
HOME_LEAD = 1.25
"""A home counts while it holds at most so many times as many jobs as its peers in the mean, and one more."""
HOME_PEERS = 8
"""Workers that this mean is of, the home itself perhaps among them: those whose leases lapse first."""
DIGEST_BYTES = 8
LENGTHS = tuple(256 * quarters << octave >> 2 for octave in range(7) for quarters in (4, 5, 6, 7))
"""Tokens: 256 to 28,672, a quarter to a seventh apart."""


def prefix_keys(job: Job) -> bytes:
    """The digests of all beginnings of a job's prompt, the shortest first, DIGEST_BYTES each; empty for a short one."""
    if len(job.prompt) < LENGTHS[0]:
        return b""
    ids = memoryview(array("I", job.prompt[: LENGTHS[-1]]))
    digest, keys, first = blake2b(repr(scope_of(job)).encode(), digest_size=DIGEST_BYTES), [], 0
    for length in LENGTHS:
        if length > len(ids):
            break
        digest.update(ids[first:length])
        keys.append(digest.copy().digest())
        first = length
    return b"".join(keys)


class Homes:
    """The homes that the in-memory queue knows."""

    def __init__(self) -> None:
        self._generations: dict[int, dict[bytes, str]] = {}

    def file(self, now_ms: int, keys: bytes, worker_id: str) -> None:
        """This worker computes a prompt with these beginnings now."""
        number = now_ms // HOMES_MS
        self._generations = {one: homes for one, homes in self._generations.items() if one >= number - 1}
        homes, longest = self._generations.setdefault(number, {}), keys[-DIGEST_BYTES:]
        if longest and (longest in homes or len(homes) < MOST_HOMES):
            homes[longest] = worker_id

    def find(self, now_ms: int, keys: bytes, counts: Callable[[str], bool]) -> str:
        """The home of the longest beginning that has one that `counts`; empty where none has."""
        number = now_ms // HOMES_MS
        generations = [self._generations.get(one, {}) for one in (number, number - 1)]
        for first in reversed(range(0, len(keys), DIGEST_BYTES)):
            key = keys[first : first + DIGEST_BYTES]
            home = next((homes[key] for homes in generations if key in homes), "")
            if home and counts(home):
                return home
        return ""


def is_light(home: str, held: Callable[[str], int], lapse_ms: Mapping[str, int]) -> bool:
    """The home holds no more jobs than HOME_LEAD allows beside its peers. `lapse_ms`: when the workers' leases do."""
    peers: Sequence[str] = sorted(lapse_ms, key=lambda name: (lapse_ms[name], name))[:HOME_PEERS]
    return (held(home) - 1) * len(peers) <= HOME_LEAD * sum(map(held, peers))
