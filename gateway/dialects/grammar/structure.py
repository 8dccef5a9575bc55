"""What a request may ask of the form of its answer, as one value."""

import json
from collections.abc import Sequence
from typing import Literal

import msgspec

StructureKind = Literal["json_schema", "regex", "choice", "grammar"]
ANY_OBJECT = '{"type":"object"}'


class Structure(msgspec.Struct, frozen=True):
    """The form of every choice of an answer."""

    kind: StructureKind
    text: str
    """The schema as JSON, the regular expression, the choices as a JSON list, or the grammar in Lark or GBNF."""
    param: str
    """The field that asked for it."""

    def __repr__(self) -> str:
        return f"Structure({self.kind}, {len(self.text)} characters)"


class CheckedGrammar(msgspec.Struct, frozen=True):
    """A grammar that workers may compile."""

    text: str = ""
    """As workers read it; empty: anything may be said."""
    compiled_bytes: int = 0
    """Memory that it takes compiled; 0: not known."""

    def __repr__(self) -> str:
        return f"CheckedGrammar({len(self.text)} characters, {self.compiled_bytes} bytes)"


def json_structure(schema: object, param: str) -> Structure:
    """JSON that keeps to a schema."""
    return Structure("json_schema", json.dumps(schema, ensure_ascii=False), param)


def choice_structure(choices: Sequence[str], param: str) -> Structure:
    """One of these texts."""
    return Structure("choice", json.dumps(choices, ensure_ascii=False), param)
