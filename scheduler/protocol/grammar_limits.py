"""What a job's grammar may cost: the door refuses by it, and a worker ends a choice by it."""

from typing import TypedDict

MOST_GRAMMAR_CHARS = 96 * 1024
"""As llguidance reads it: a schema of 64 KiB with room around it. Compiled within some 60 ms."""

MOST_COMPILED_BYTES = 8 * 2**20
"""Memory of one compiled grammar. A schema of 64 KiB takes some 1 MiB; no limit of llguidance's parser bounds it."""

BROKEN_GRAMMAR = "its grammar asks for more than a worker computes"
"""Why a job failed whose grammar went beyond its limits while it ran."""


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
