"""What the next token of a constrained choice may be: grammars compiled for one vocabulary, and masks of tokens.

llguidance compiles and masks, in Rust and without Python's lock: grammars in threads of their own before a job may run,
masks as soon as the token before them is known, so that they are there when the next logits are. What a grammar may
cost is bounded: one that goes beyond fails its own choice, never the step. A step waits briefly for masks; a choice
whose mask is not filled by then misses the step, and has its token in a later one.
"""

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask, fill_next_token_bitmask_par

from fairlane.scheduler.protocol.grammar_limits import (
    KEPT_BYTES,
    KEPT_TENANT_BYTES,
    LEAST_COMPILED_BYTES,
    MOST_COMPILED_BYTES,
    PARSER_LIMITS,
    SLOW_MASK_S,
    MaskBudget,
)
from fairlane.scheduler.protocol.messages import ModelCard

TRUSTED_AFTER = 4
"""Likeliest tokens in a row that a grammar allowed; then it is asked for the next one alone, until it refuses."""
PATIENCE_S = 0.02
"""How long a step waits for masks. Rows whose masks take longer miss the step."""
_COMPILERS = 2
_MASKERS = 8
"""Threads at most."""
_SLOW_MASKERS = 2
LIMITS = LLParserLimits(**PARSER_LIMITS)


class Mask(NamedTuple):
    """Which tokens a choice may draw."""

    bits: npt.NDArray[np.uint8]
    """One bit for each token of the vocabulary, the lowest of a byte first."""
    must_end: bool
    """Its grammar is complete: nothing but an end of sequence is left."""


class Constraint:
    """One choice's place in its grammar."""

    def __init__(self, matcher: LLMatcher, generated: Iterable[int] = (), budget: MaskBudget | None = None) -> None:
        self._matcher = matcher
        self.budget = MaskBudget() if budget is None else budget
        self.is_slow = False
        """Its last mask took long."""
        self._unread = [*generated]
        """Tokens that the next mask reads first."""
        self._coming: tuple[Future[list[Mask]], int] | None = None
        """The next mask: among which, and its place there."""
        self._allowed_likeliest = 0
        """So often in a row."""

    def append(self, token_id: int, *, was_likeliest: bool) -> None:
        """The choice has a further token; its mask was taken, or not asked for. `was_likeliest`: to the model, too."""
        self._unread.append(token_id)
        self.budget.tokens += 1
        self._allowed_likeliest = self._allowed_likeliest + 1 if was_likeliest else 0

    @property
    def is_trusted(self) -> bool:
        """It will most likely allow the likeliest token."""
        return self._allowed_likeliest >= TRUSTED_AFTER and not self.is_slow

    def allows(self, token_id: int) -> bool:
        """Whether that may come next: some microseconds, where a mask takes a hundred. Of an end of sequence it may say
        no where a mask says yes."""
        began_s = time.thread_time()
        is_allowed = self.catch_up().validate_tokens([token_id]) == 1
        self.charge(time.thread_time() - began_s)
        return is_allowed

    def charge(self, took_s: float) -> None:
        """Take in what its last answer cost. Slow ones count, and are followed by masks in threads of their own."""
        self.is_slow = self.budget.charge(took_s)

    @property
    def is_begun(self) -> bool:
        """Its next mask is being filled."""
        return self._coming is not None

    def expect(self, filling: Future[list[Mask]], place: int) -> None:
        """Its next mask will be there."""
        self._coming = filling, place

    @property
    def coming(self) -> Future[list[Mask]] | None:
        """Its next mask, once that was begun: among which."""
        return None if self._coming is None else self._coming[0]

    def take(self) -> Mask:
        """The next mask, once it is filled; the one after it is for the token that comes now."""
        if self._coming is None:
            raise RuntimeError("no mask was begun")
        filling, place = self._coming
        self._coming = None
        return filling.result()[place]

    @property
    def is_broken(self) -> bool:
        """It has cost too much, or its tokens are not of the grammar. Not to be asked while a mask is filled."""
        return self._matcher.is_error() or self.budget.is_spent

    def catch_up(self) -> LLMatcher:
        """The matcher, having read every token."""
        if self._unread:
            self._matcher.consume_tokens(self._unread)
            self._unread = []
        return self._matcher


class _KeptGrammars:
    """Compiled grammars by tenant, bounded in bytes for each tenant and in all. The least recently used make room: of
    the tenant itself, or of the tenant that holds most."""

    def __init__(self, most_bytes: int, most_tenant_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._most_tenant_bytes = most_tenant_bytes
        self._compiled: dict[str, OrderedDict[str, tuple[Future[LLMatcher], int]]] = {}
        """With their bytes; the most recently used last."""
        self.tenant_bytes: dict[str, int] = {}
        """The tenant of the last use last."""
        self._bytes = 0

    def find(self, tenant: str, grammar: str) -> Future[LLMatcher] | None:
        """Return a matcher that is kept, which is used now."""
        own = self._compiled.get(tenant)
        if own is None or grammar not in own:
            return None
        own.move_to_end(grammar)
        self.tenant_bytes[tenant] = self.tenant_bytes.pop(tenant)
        return own[grammar][0]

    def keep(self, tenant: str, grammar: str, matcher: Future[LLMatcher], size_bytes: int) -> None:
        """Keep one that is not kept yet."""
        while self.tenant_bytes.get(tenant, 0) and self.tenant_bytes[tenant] + size_bytes > self._most_tenant_bytes:
            self._evict(tenant)
        while self._bytes and self._bytes + size_bytes > self._most_bytes:
            self._evict(max(self.tenant_bytes, key=self.tenant_bytes.__getitem__))
        self._compiled.setdefault(tenant, OrderedDict())[grammar] = matcher, size_bytes
        self.tenant_bytes[tenant] = self.tenant_bytes.pop(tenant, 0) + size_bytes
        self._bytes += size_bytes

    def forget(self, tenant: str) -> None:
        """Drop all of a tenant's grammars."""
        while tenant in self._compiled:
            self._evict(tenant)

    def _evict(self, tenant: str) -> None:
        """Drop a tenant's least recently used grammar. Choices that were begun with it keep it to their end."""
        own = self._compiled[tenant]
        _, (_, size_bytes) = own.popitem(last=False)
        self._bytes -= size_bytes
        self.tenant_bytes[tenant] -= size_bytes
        if not own:
            del self._compiled[tenant], self.tenant_bytes[tenant]


class Grammars:
    """Compiles grammars and fills masks for the vocabulary of one model. The engine's thread calls it."""

    def __init__(
        self, card: ModelCard, *, most_bytes: int = KEPT_BYTES, most_tenant_bytes: int = KEPT_TENANT_BYTES
    ) -> None:
        """`most_bytes`, `most_tenant_bytes`: of compiled grammars that are kept, in all and of one tenant. Raises
        ValueError where the tokenizer does not say what its tokens spell."""
        self._vocab_size = card.vocab_size
        self._tokenizer = LLTokenizer(card.tokenizer_json, n_vocab=card.vocab_size, eos_token=[*card.eos_token_ids])
        ends = allocate_token_bitmask(1, card.vocab_size).view(np.uint8)
        ends[:] = 0
        for token_id in card.eos_token_ids:
            ends[0, token_id // 8] |= 1 << token_id % 8
        self._goes_on = ~ends
        """A bit for each token but the ends of sequence."""
        self._kept = _KeptGrammars(most_bytes, most_tenant_bytes)
        self._queues: dict[str, deque[tuple[str, Future[LLMatcher]]]] = {}
        """Grammars to compile, by tenant, in the order of the tenants' turns."""
        self._queued = threading.Lock()
        self._compilers = ThreadPoolExecutor(_COMPILERS, "grammar")
        self._beside = ThreadPoolExecutor(1, "masks")
        self._slow = ThreadPoolExecutor(_SLOW_MASKERS, "slow masks")
        self._maskers = LLExecutor(min(_MASKERS, os.cpu_count() or 1))

    def compile(self, grammar: str, tenant: str = "", compiled_bytes: int = 0) -> Future[LLMatcher]:
        """Return the matcher of a grammar, to be copied for each `Constraint`; it is broken where compiling fails.
        `compiled_bytes`: the memory that it takes; 0: not known, so it counts for as much as any may take."""
        found = self._kept.find(tenant, grammar)
        if found is None:
            found = self._enqueue(grammar, tenant)
            size_bytes = max(LEAST_COMPILED_BYTES, compiled_bytes or MOST_COMPILED_BYTES)
            self._kept.keep(tenant, grammar, found, size_bytes)
        return found

    def _enqueue(self, grammar: str, tenant: str) -> Future[LLMatcher]:
        """Have a grammar compiled. Tenants take turns, whatever the number of grammars that each has in the queue."""
        compiled: Future[LLMatcher] = Future()
        with self._queued:
            self._queues.setdefault(tenant, deque()).append((grammar, compiled))
        self._compilers.submit(self._compile_next)
        return compiled

    def _compile_next(self) -> None:
        with self._queued:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            grammar, compiled = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind the others
        try:
            compiled.set_result(LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
            compiled.set_exception(error)

    def forget_tenant(self, tenant: str) -> None:
        """Drop the grammars kept for a deleted tenant."""
        self._kept.forget(tenant)

    @property
    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the compiled grammars kept for each tenant."""
        return {**self._kept.tenant_bytes}

    def begin(self, constraints: Sequence[Constraint]) -> None:
        """Have the next masks filled of those for which that has not begun, while the caller does something else."""
        waiting = [constraint for constraint in constraints if not constraint.is_begun]
        quick = [constraint for constraint in waiting if not constraint.is_slow]
        if quick:
            filling = self._beside.submit(self._fill, quick)
            for place, constraint in enumerate(quick):
                constraint.expect(filling, place)
        for constraint in waiting if len(quick) < len(waiting) else ():
            if constraint.is_slow:
                constraint.expect(self._slow.submit(self._fill_slowly, constraint), 0)

    def _fill_slowly(self, constraint: Constraint) -> list[Mask]:
        """Fill one mask in this thread, and charge the processor time that it takes."""
        began_s, bits = time.thread_time(), allocate_token_bitmask(1, self._vocab_size)
        fill_next_token_bitmask(constraint.catch_up(), bits)
        constraint.charge(time.thread_time() - began_s)
        return self._masks(bits)

    def _fill(self, constraints: Sequence[Constraint]) -> list[Mask]:
        began_s, bits = time.monotonic(), allocate_token_bitmask(len(constraints), self._vocab_size)
        matchers = [(constraint.catch_up(), row) for row, constraint in enumerate(constraints)]
        fill_next_token_bitmask_par(self._maskers, matchers, bits)
        if time.monotonic() - began_s > SLOW_MASK_S:
            for constraint in constraints:
                constraint.is_slow = True
        return self._masks(bits)

    def _masks(self, bits: npt.NDArray[np.int32]) -> list[Mask]:
        rows = bits.view(np.uint8)
        goes_on = np.any(rows & self._goes_on, axis=1)
        return [Mask(row, not more) for row, more in zip(rows, goes_on.tolist(), strict=True)]
