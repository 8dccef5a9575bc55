"""Lookup and publication of sequences' KV blocks in the prefix cache.

KV enters the cache only after a finite token was sampled from it, so that corrupt KV ends with its request. At least
one token is always left to compute."""

from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.prefix_cache import Scope
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import Row
from fairlane.scheduler.protocol.messages import Job


def scope_of(job: Job) -> Scope:
    """Return who may infer this job's prompt from response times: its tenant, or all of its share group."""
    return _scope(job.tenant, job.tenant_since, job.share_group)


def salted_group(tenant: str, tenant_since: float, share_group: str, salt: str) -> str:
    """Return the share group of the callers in a tenant, or in its group, that use the same salt."""
    owner = _owner(tenant, tenant_since, share_group)
    return f"{_digest(owner)}:{_digest((owner, salt))}"


def scopes_of(tenant: str, tenant_since: float, share_group: str) -> Callable[[Scope], bool]:
    """Return a predicate for the scopes of a tenant's cached prompts: its own, or all of its share group."""
    own = _scope(tenant, tenant_since, share_group)
    salted = f"{_digest(_owner(tenant, tenant_since, share_group))}:"
    return lambda scope: scope == own or (scope[0] == "group" and scope[1].startswith(salted))


def _scope(tenant: str, tenant_since: float, share_group: str) -> Scope:
    return ("group", share_group) if share_group else ("tenant", f"{tenant} {tenant_since}")


def _owner(tenant: str, tenant_since: float, share_group: str) -> tuple[object, ...]:
    return ("group", share_group) if share_group else ("tenant", tenant, tenant_since)


def _digest(named: object) -> str:
    return sha256(repr(named).encode()).hexdigest()


class Prefixes:
    """Connects sequences with the pool's cache. When disabled, it finds and adds nothing."""

    def __init__(self, pool: BlockPool, *, enabled: bool) -> None:
        self.enabled = enabled
        self._pool = pool

    def reuse(self, seq: Sequence) -> None:
        if not self.enabled or seq.job.sampling.prompt_logprobs is not None:  # cached tokens have no logits
            return
        last = (seq.length - 1) // self._pool.block_size
        if last * self._pool.block_size <= seq.num_computed or seq.slots:
            return
        found = self._pool.cache.find(scope_of(seq.job), seq.table, seq.shared, self._chunks(seq, seq.shared, last))
        known = seq.shared + len(found)
        seq.shared_when_asked = sum(self._pool.references(block) > 0 for block in found)
        if known * self._pool.block_size > seq.num_computed:
            seq.borrowed += seq.shared_when_asked
            self._pool.adopt(found, seq.table, seq.shared)
            seq.shared, seq.num_computed = known, known * self._pool.block_size

    def give_back(self, seq: Sequence, held: int) -> None:
        if len(seq.table) > held:
            seq.borrowed -= sum(self._pool.references(block) > 1 for block in seq.table[held:])
            self._pool.release(seq.table, held)
            seq.num_computed = min(seq.num_computed, held * self._pool.block_size)
            seq.shared = min(seq.shared, held)

    def leave(self, seq: Sequence, row: Row) -> None:
        """Add the blocks that the sequence has filled to the cache. Decodes check once per block."""
        if self.enabled and (seq.num_computed % self._pool.block_size == 0 or len(row.token_ids) > 1):
            self.leave_full(seq)

    def leave_full(self, seq: Sequence) -> None:
        full = seq.num_computed // self._pool.block_size
        if full > seq.shared:
            chunks = self._chunks(seq, seq.shared, full)
            seq.shared = self._pool.publish(scope_of(seq.job), seq.table, seq.shared, chunks)

    def _chunks(self, seq: Sequence, first: int, last: int) -> Iterator[bytes]:
        size = self._pool.block_size
        for place in range(first, last):
            try:
                yield array("i", seq.token_ids(place * size, size)).tobytes()
            except OverflowError:  # no vocabulary has such ids; the runner reports the error
                return
