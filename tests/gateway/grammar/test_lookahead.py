"""Patterns with lookaheads: their parts match together what they do."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.dialects.grammar.lookahead import without_lookaheads

# Of passwords, of Zod's emails, of pydantic's Decimal, of host names.
PATTERNS = [
    r"^(?=.*[A-B])(?=.*\d).{2,}$",
    r"^(?!\.)(?!.*\.\.)([Ab\.]*)[A-b]@1$",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?=.{1,3}\.?$)[a-b](?:\.[ab]?)*\.?$",
    r"^(?!-)[-ab]*$",
    r"^(?!.*[+-])[^a]*",
    r"^(?!.*[+-][+-])",
    r"^(?![ab]+$)(?=[)a])",
    r"^(?!.*b)(?!\n)[\s\S]*$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(alphabet="ab.-+1@A)\n", max_size=6))
def test_the_parts_match_together_what_it_does(pattern: str, text: str) -> None:
    parts = without_lookaheads(pattern)

    assert parts is not None
    exactly = [part.replace("$", r"\Z") for part in parts]  # in JSON Schema `$` is the end alone
    assert all(re.search(part, text) for part in exactly) == bool(re.search(pattern.replace("$", r"\Z"), text))


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "^a",
        "(?=a)b",
        "^(?=a)b|c",
        "^(?!ab)c",
        "^(?!a|b)c",
        "^(?!.*ab)c",
        "^(?=a)*b",
        "^(?!(?=a))b",
        "^a(?=b)",
        "^(?!",
    ],
)
def test_others_have_none(pattern: str) -> None:
    assert without_lookaheads(pattern) is None
