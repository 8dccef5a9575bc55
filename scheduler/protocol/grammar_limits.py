"""Limits on the cost of a job's grammar: the gateway rejects grammars that exceed them, and a worker ends choices that
do."""

from dataclasses import dataclass
from typing import TypedDict

# In llguidance's form: a schema of 64 KiB with some overhead. Compiles within about 60 ms.
MAX_GRAMMAR_CHARS = 96 * 1024

# One compiled grammar. A schema of 64 KiB takes about 1 MiB; llguidance's parser has no memory limit of its own.
MAX_COMPILED_BYTES = 8 * 2**20

# Minimum size counted for a compiled grammar, including its text and related objects.
MIN_COMPILED_BYTES = 64 * 2**10

# Memory per character of the tool-call frame around checked schemas. Measured: 28 to 77 for 5 to 60 tools.
FRAME_BYTES_PER_CHAR = 64

# Default sizes of a worker's cache of compiled grammars, in total and per tenant.
KEPT_BYTES, KEPT_TENANT_BYTES = 256 * 2**20, 64 * 2**20

# Masks that took longer are charged to the job's budget.
SLOW_MASK_S = 0.005
# CPU time that the slow masks of one job may take: initially, and for each generated token.
BUDGET_S, BUDGET_PER_TOKEN_S = 1.0, 0.01

# Error of a job whose grammar exceeded its limits while running.
BROKEN_GRAMMAR = "its grammar exceeded the worker's computing limits"


@dataclass(slots=True)
class MaskBudget:
    """CPU time spent on slow masks by one job, over all its choices."""

    spent_s: float = 0.0
    tokens: int = 0

    def charge(self, took_s: float) -> bool:
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
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=100_000,  # about 7 ms
    step_max_items=50_000,
    max_lexer_states=20_000,  # 1 to 2 kB each
    verbose_errors=False,  # errors would quote the grammar
)
