"""Prefix affinity: the worker that recently computed a prompt's prefix, where its KV is probably still cached.

Affinity is only a hint. `put` gives a new job to its preferred worker if that worker has room, and to another
otherwise (`scheduler.queue.rooms`). What a `turn` leases does not depend on it, so the order of jobs is unaffected, and
a preferred worker that is full delays no job.

A prefix is identified by digests of its tokens at LENGTHS, salted with the sharing scope, so that no tenant learns
anything about another's prompts. Each lease records the longest digest of its job, at most MAX_AFFINITIES in a
generation. `put` looks up all of them, the longest first, in this generation and the previous one."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from fairlane.scheduler.planner.kv.prefix_reuse import scope_of
from fairlane.scheduler.protocol.messages import Job

# If a job in a lane has waited longer, all workers are nearly full, and no worker is preferred in that lane.
AFFINITY_DELAY_MS = 5
# Length of a generation. An entry is remembered for one to two of them.
AFFINITY_GENERATION_MS = 300_000
# Further prefixes of one generation are not recorded.
MAX_AFFINITIES = 65_536
# A worker is preferred only while it holds at most this multiple of its peers' mean number of jobs, plus one.
AFFINITY_LOAD_RATIO = 1.25
# Sample size for that mean: the workers whose leases expire first, possibly including the preferred one.
AFFINITY_PEERS = 8
DIGEST_BYTES = 8
# Tokens, from 256 to 28,672. Each length is 14% to 25% above the previous one.
LENGTHS = tuple(256 * quarters << octave >> 2 for octave in range(7) for quarters in (4, 5, 6, 7))


def prefix_keys(job: Job) -> bytes:
    """Return the digests of all prefixes of a job's prompt, the shortest first, DIGEST_BYTES each; empty for a short
    prompt."""
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


class PrefixAffinity:
    """The prefix affinities that the in-memory queue knows."""

    def __init__(self) -> None:
        self._generations: dict[int, dict[bytes, str]] = {}

    def record(self, now_ms: int, keys: bytes, worker_id: str) -> None:
        number = now_ms // AFFINITY_GENERATION_MS
        self._generations = {one: workers for one, workers in self._generations.items() if one >= number - 1}
        workers, longest = self._generations.setdefault(number, {}), keys[-DIGEST_BYTES:]
        if longest and (longest in workers or len(workers) < MAX_AFFINITIES):
            workers[longest] = worker_id

    def find(self, now_ms: int, keys: bytes, counts: Callable[[str], bool]) -> str:
        """Return the worker of the longest known prefix that `counts`, or an empty string."""
        number = now_ms // AFFINITY_GENERATION_MS
        generations = [self._generations.get(one, {}) for one in (number, number - 1)]
        for first in reversed(range(0, len(keys), DIGEST_BYTES)):
            key = keys[first : first + DIGEST_BYTES]
            worker_id = next((workers[key] for workers in generations if key in workers), "")
            if worker_id and counts(worker_id):
                return worker_id
        return ""


def is_light(worker_id: str, held: Callable[[str], int], lapse_ms: Mapping[str, int]) -> bool:
    """Return whether a worker holds few enough jobs. `lapse_ms`: when each worker's lease expires."""
    peers: Sequence[str] = sorted(lapse_ms, key=lambda name: (lapse_ms[name], name))[:AFFINITY_PEERS]
    return (held(worker_id) - 1) * len(peers) <= AFFINITY_LOAD_RATIO * sum(map(held, peers))
