"""Constrained decoding: grammars compiled for one vocabulary, and token masks.

Grammars are compiled in threads before a job may run. A mask is filled as soon as the token before it is known. A
choice whose mask is late skips the step. A grammar that exceeds its cost limit fails only its own choice."""

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
    MAX_COMPILED_BYTES,
    MIN_COMPILED_BYTES,
    PARSER_LIMITS,
    SLOW_MASK_S,
    MaskBudget,
)
from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.worker.engine.closing import Closer, Closing

# Consecutive most likely tokens that a grammar must allow before it checks only the next one, until it rejects one.
TRUSTED_AFTER = 4
# Time that a step waits for masks. Rows whose masks take longer skip the step.
PATIENCE_S = 0.02
_COMPILERS = 2
_MASKERS = 8
_SLOW_MASKERS = 2
LIMITS = LLParserLimits(**PARSER_LIMITS)


class Mask(NamedTuple):
    """The tokens that a choice may draw."""

    # One bit per token of the vocabulary, least significant bit first.
    bits: npt.NDArray[np.uint8]
    # The grammar is complete: it allows only an end of sequence.
    must_end: bool


class Constraint:
    """One choice's state in its grammar."""

    def __init__(
        self,
        matcher: LLMatcher,
        generated: Iterable[int] = (),
        budget: MaskBudget | None = None,
        closing: Closing | None = None,
    ) -> None:
        self._matcher = matcher
        self._closing = closing
        # The only token to draw next, which closes the output.
        self._forced: int | None = None
        self.budget = MaskBudget() if budget is None else budget
        self.is_slow = False
        # Tokens that the matcher has not consumed yet.
        self._unread = [*generated]
        # The batch of masks that contains the next one, and its index there.
        self._pending: tuple[Future[list[Mask]], int] | None = None
        self._allowed_likeliest = 0

    def append(self, token_id: int, *, was_likeliest: bool) -> None:
        self._unread.append(token_id)
        self.budget.tokens += 1
        self._allowed_likeliest = self._allowed_likeliest + 1 if was_likeliest else 0

    @property
    def is_trusted(self) -> bool:
        return self._allowed_likeliest >= TRUSTED_AFTER and not self.is_slow and self._forced is None

    def allows(self, token_id: int) -> bool:
        """Return whether a token may come next. May be false for an end of sequence that a mask allows."""
        if self._forced is not None:
            return token_id == self._forced
        began_s = time.thread_time()
        is_allowed = self.catch_up().validate_tokens([token_id]) == 1
        self.charge(time.thread_time() - began_s)
        return is_allowed

    def charge(self, took_s: float) -> None:
        self.is_slow = self.budget.charge(took_s)

    @property
    def is_filling(self) -> bool:
        return self._pending is not None

    def expect(self, filling: Future[list[Mask]], place: int) -> None:
        self._pending = filling, place

    @property
    def pending(self) -> Future[list[Mask]] | None:
        return None if self._pending is None else self._pending[0]

    def take(self) -> Mask:
        if self._pending is None:
            raise RuntimeError("no mask was started")
        filling, place = self._pending
        self._pending = None
        mask = filling.result()[place]
        return mask if self._forced is None else self._only(self._forced, mask)

    def refuses(self, token_id: int, left: int) -> bool:
        """Return whether a drawn token would leave too few tokens to close the output; then another is drawn."""
        if self._closing is None:
            return False
        began_s = time.thread_time()
        forced = self._closing.replacement(token_id, self.catch_up(), left)
        self._forced = None if forced == token_id else forced
        self.charge(time.thread_time() - began_s)
        return self._forced is not None

    @staticmethod
    def _only(token_id: int, mask: Mask) -> Mask:
        bits = np.zeros_like(mask.bits)
        bits[token_id // 8] = 1 << token_id % 8
        return Mask(bits, must_end=True)

    @property
    def is_broken(self) -> bool:
        """True if it used too much time, or its tokens violate the grammar. Not to be called while a mask is filled."""
        return self._matcher.is_error() or self.budget.is_spent

    def catch_up(self) -> LLMatcher:
        if self._unread:
            self._matcher.consume_tokens(self._unread)
            self._unread = []
        return self._matcher


class _GrammarCache:
    """Compiled grammars, bounded in bytes per tenant and in total.

    The least recently used are evicted: the tenant's own, or those of the tenant with the most bytes."""

    def __init__(self, most_bytes: int, most_tenant_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._most_tenant_bytes = most_tenant_bytes
        # With their sizes in bytes; most recently used last.
        self._compiled: dict[str, OrderedDict[str, tuple[Future[LLMatcher], int]]] = {}
        # In order of each tenant's last use.
        self.tenant_bytes: dict[str, int] = {}
        self._bytes = 0

    def find(self, tenant: str, grammar: str) -> Future[LLMatcher] | None:
        own = self._compiled.get(tenant)
        if own is None or grammar not in own:
            return None
        own.move_to_end(grammar)
        self.tenant_bytes[tenant] = self.tenant_bytes.pop(tenant)
        return own[grammar][0]

    def keep(self, tenant: str, grammar: str, matcher: Future[LLMatcher], size_bytes: int) -> None:
        while self.tenant_bytes.get(tenant, 0) and self.tenant_bytes[tenant] + size_bytes > self._most_tenant_bytes:
            self._evict(tenant)
        while self._bytes and self._bytes + size_bytes > self._most_bytes:
            self._evict(max(self.tenant_bytes, key=self.tenant_bytes.__getitem__))
        self._compiled.setdefault(tenant, OrderedDict())[grammar] = matcher, size_bytes
        self.tenant_bytes[tenant] = self.tenant_bytes.pop(tenant, 0) + size_bytes
        self._bytes += size_bytes

    def forget(self, tenant: str) -> None:
        while tenant in self._compiled:
            self._evict(tenant)

    def _evict(self, tenant: str) -> None:
        # Choices that use the evicted grammar keep it to their end.
        own = self._compiled[tenant]
        _, (_, size_bytes) = own.popitem(last=False)
        self._bytes -= size_bytes
        self.tenant_bytes[tenant] -= size_bytes
        if not own:
            del self._compiled[tenant], self.tenant_bytes[tenant]


class Grammars:
    """Compiles grammars and fills masks for one model's vocabulary. Called by the engine's thread."""

    def __init__(
        self, card: ModelCard, *, most_bytes: int = KEPT_BYTES, most_tenant_bytes: int = KEPT_TENANT_BYTES
    ) -> None:
        """Raises ValueError if the tokenizer does not define the text of its tokens."""
        self._vocab_size = card.vocab_size
        self._tokenizer = LLTokenizer(card.tokenizer_json, n_vocab=card.vocab_size, eos_token=[*card.eos_token_ids])
        ends = allocate_token_bitmask(1, card.vocab_size).view(np.uint8)
        ends[:] = 0
        for token_id in card.eos_token_ids:
            ends[0, token_id // 8] |= 1 << token_id % 8
        # One bit for each token except the ends of sequence.
        self._not_end = ~ends
        self._cache = _GrammarCache(most_bytes, most_tenant_bytes)
        # Grammars to compile, by tenant, in the tenants' round-robin order.
        self._queues: dict[str, deque[tuple[str, Future[LLMatcher]]]] = {}
        self._queued = threading.Lock()
        self._compilers = ThreadPoolExecutor(_COMPILERS, "grammar")
        self._mask_thread = ThreadPoolExecutor(1, "masks")
        self._slow = ThreadPoolExecutor(_SLOW_MASKERS, "slow masks")
        self._maskers = LLExecutor(min(_MASKERS, os.cpu_count() or 1))
        self._closer, self._end = Closer(self._tokenizer), card.eos_token_ids[0]

    def closing(self) -> Closing:
        return Closing(self._closer, self._end)

    def compile(self, grammar: str, tenant: str = "", compiled_bytes: int = 0) -> Future[LLMatcher]:
        """Return a grammar's matcher, broken if compilation fails. An unknown size counts as the maximum."""
        found = self._cache.find(tenant, grammar)
        if found is None:
            found = self._enqueue(grammar, tenant)
            size_bytes = max(MIN_COMPILED_BYTES, compiled_bytes or MAX_COMPILED_BYTES)
            self._cache.keep(tenant, grammar, found, size_bytes)
        return found

    def _enqueue(self, grammar: str, tenant: str) -> Future[LLMatcher]:
        # Tenants take turns, however many grammars each has queued.
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
                self._queues[tenant] = queue  # after the other tenants
        try:
            compiled.set_result(LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS))
        except BaseException as error:  # noqa: BLE001 - the future passes it on
            compiled.set_exception(error)

    def forget_tenant(self, tenant: str) -> None:
        self._cache.forget(tenant)

    @property
    def kept_bytes(self) -> dict[str, int]:
        return {**self._cache.tenant_bytes}

    def begin(self, constraints: Sequence[Constraint]) -> None:
        waiting = [constraint for constraint in constraints if not constraint.is_filling]
        quick = [constraint for constraint in waiting if not constraint.is_slow]
        if quick:
            filling = self._mask_thread.submit(self._fill, quick)
            for place, constraint in enumerate(quick):
                constraint.expect(filling, place)
        for constraint in waiting if len(quick) < len(waiting) else ():
            if constraint.is_slow:
                constraint.expect(self._slow.submit(self._fill_slowly, constraint), 0)

    def _fill_slowly(self, constraint: Constraint) -> list[Mask]:
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
        may_continue = np.any(rows & self._not_end, axis=1)
        return [Mask(row, not more) for row, more in zip(rows, may_continue.tolist(), strict=True)]
