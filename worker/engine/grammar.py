"""What the next token of a constrained choice may be: grammars compiled for one vocabulary, and masks of tokens.

llguidance compiles and masks, in Rust and without Python's lock: grammars in threads of their own before a job may run,
masks as soon as the token before them is known, so that they are there when the next logits are. What a grammar may
cost is bounded: one that goes beyond fails its own choice, never the step.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

from fairlane.scheduler.protocol.grammar_limits import PARSER_LIMITS
from fairlane.scheduler.protocol.messages import ModelCard

TRUSTED_AFTER = 4
"""Likeliest tokens in a row that a grammar allowed; then it is asked for the next one alone, until it refuses."""
MOST_COMPILED = 256
"""Grammars kept compiled."""
_COMPILERS = 2
_MASKERS = 8
"""Threads at most."""
LIMITS = LLParserLimits(**PARSER_LIMITS)


class Mask(NamedTuple):
    """Which tokens a choice may draw."""

    bits: npt.NDArray[np.uint8]
    """One bit for each token of the vocabulary, the lowest of a byte first."""
    must_end: bool
    """Its grammar is complete: nothing but an end of sequence is left."""


class Constraint:
    """One choice's place in its grammar."""

    def __init__(self, matcher: LLMatcher, generated: Iterable[int] = ()) -> None:
        self._matcher = matcher
        self._unread = [*generated]
        """Tokens that the next mask reads first."""
        self._coming: tuple[Future[list[Mask]], int] | None = None
        """The next mask: among which, and its place there."""
        self._allowed_likeliest = 0
        """So often in a row."""

    def append(self, token_id: int, *, was_likeliest: bool) -> None:
        """The choice has a further token; its mask was taken, or not asked for. `was_likeliest`: to the model, too."""
        self._unread.append(token_id)
        self._allowed_likeliest = self._allowed_likeliest + 1 if was_likeliest else 0

    @property
    def is_trusted(self) -> bool:
        """It will most likely allow the likeliest token."""
        return self._allowed_likeliest >= TRUSTED_AFTER

    def allows(self, token_id: int) -> bool:
        """Whether that may come next: some microseconds, where a mask takes a hundred. Of an end of sequence it may say
        no where a mask says yes."""
        return self.catch_up().validate_tokens([token_id]) == 1

    @property
    def is_begun(self) -> bool:
        """Its next mask is being filled."""
        return self._coming is not None

    def expect(self, filling: Future[list[Mask]], place: int) -> None:
        """Its next mask will be there."""
        self._coming = filling, place

    def take(self) -> Mask:
        """The next mask, once it is filled; the one after it is for the token that comes now."""
        if self._coming is None:
            raise RuntimeError("no mask was begun")
        filling, place = self._coming
        self._coming = None
        return filling.result()[place]

    @property
    def is_broken(self) -> bool:
        """It has cost too much, or its tokens are not of the grammar."""
        return self._matcher.is_error()

    def catch_up(self) -> LLMatcher:
        """The matcher, having read every token."""
        if self._unread:
            self._matcher.consume_tokens(self._unread)
            self._unread = []
        return self._matcher


class Grammars:
    """Compiles grammars and fills masks for the vocabulary of one model. The engine's thread calls it."""

    def __init__(self, card: ModelCard) -> None:
        """Raises ValueError where the tokenizer does not say what its tokens spell."""
        self._vocab_size = card.vocab_size
        self._tokenizer = LLTokenizer(card.tokenizer_json, n_vocab=card.vocab_size, eos_token=[*card.eos_token_ids])
        ends = allocate_token_bitmask(1, card.vocab_size).view(np.uint8)
        ends[:] = 0
        for token_id in card.eos_token_ids:
            ends[0, token_id // 8] |= 1 << token_id % 8
        self._goes_on = ~ends
        """A bit for each token but the ends of sequence."""
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._compilers = ThreadPoolExecutor(_COMPILERS, "grammar")
        self._beside = ThreadPoolExecutor(1, "masks")
        self._maskers = LLExecutor(min(_MASKERS, os.cpu_count() or 1))

    def compile(self, grammar: str) -> Future[LLMatcher]:
        """Return the matcher of a grammar, to be copied for each `Constraint`; it is broken where compiling fails."""
        found = self._compiled.pop(grammar, None)
        if found is None:
            found = self._compilers.submit(LLMatcher, self._tokenizer, grammar, log_level=0, limits=LIMITS)
        self._compiled[grammar] = found
        if len(self._compiled) > MOST_COMPILED:
            self._compiled.popitem(last=False)
        return found

    def begin(self, constraints: Sequence[Constraint]) -> None:
        """Have the next masks filled of those for which that has not begun, while the caller does something else."""
        waiting = [constraint for constraint in constraints if not constraint.is_begun]
        if waiting:
            filling = self._beside.submit(self._fill, waiting)
            for place, constraint in enumerate(waiting):
                constraint.expect(filling, place)

    def _fill(self, constraints: Sequence[Constraint]) -> list[Mask]:
        bits = allocate_token_bitmask(len(constraints), self._vocab_size)
        matchers = [(constraint.catch_up(), row) for row, constraint in enumerate(constraints)]
        fill_next_token_bitmask_par(self._maskers, matchers, bits)
        rows = bits.view(np.uint8)
        goes_on = np.any(rows & self._goes_on, axis=1)
        return [Mask(row, not more) for row, more in zip(rows, goes_on.tolist(), strict=True)]
