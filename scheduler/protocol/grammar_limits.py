"""What a job's grammar may cost: the door refuses by it, and a worker ends a choice by it."""

from dataclasses import dataclass
from typing import TypedDict

MOST_GRAMMAR_CHARS = 96 * 1024
"""As llguidance reads it: a schema of 64 KiB with room around it. Compiled within some 60 ms."""

MOST_COMPILED_BYTES = 8 * 2**20
"""Memory of one compiled grammar. A schema of 64 KiB takes some 1 MiB; no limit of llguidance's parser bounds it."""

LEAST_COMPILED_BYTES = 64 * 2**10
"""What a compiled grammar counts for at least, with its text and the objects around it."""

FRAME_BYTES_PER_CHAR = 64
"""Memory that a frame of calls around checked schemas takes for each of its characters. Measured: 28 to 77 for 5 to 60
tools."""

KEPT_BYTES, KEPT_TENANT_BYTES = 256 * 2**20, 64 * 2**20
"""Defaults of what a worker keeps of compiled grammars, in all and of one tenant."""

SLOW_MASK_S = 0.005
"""A mask that took longer than this counts."""
BUDGET_S, BUDGET_PER_TOKEN_S = 1.0, 0.01
"""Processor time that the slow masks of one job may take: at first, and more for each of its tokens."""

BROKEN_GRAMMAR = "its grammar asks for more than a worker computes"
"""Why a job failed whose grammar went beyond its limits while it ran."""


@dataclass(slots=True)
class MaskBudget:
    """The processor time that the slow masks of one job take, for all its choices together."""

    spent_s: float = 0.0
    tokens: int = 0

    def charge(self, took_s: float) -> bool:
        """Take in what a mask cost. Return whether it was slow: only slow ones count."""
        is_slow = took_s > SLOW_MASK_S
        if is_slow:
            self.spent_s += took_s
        return is_slow

    @property
    def is_spent(self) -> bool:
        return self.spent_s > BUDGET_S + BUDGET_PER_TOKEN_S * self.tokens


class ParserLimits(TypedDict):
    """Arguments of llguidance's `LLParserLimits`."""

    initial_lexer_fuel: int
    step_lexer_fuel: int
    step_max_items: int
    max_lexer_states: int
    verbose_errors: bool


PARSER_LIMITS = ParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms
    step_lexer_fuel=100_000,  # some 7 ms
    step_max_items=50_000,
    max_lexer_states=20_000,  # of 1 to 2 kB
    verbose_errors=False,  # which would quote the grammar
)
