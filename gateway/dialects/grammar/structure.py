"""The requested structure of a response, as one value."""

import json
from collections.abc import Sequence
from typing import Literal

import msgspec

StructureKind = Literal["json_schema", "regex", "choice", "grammar"]
ANY_OBJECT = '{"type":"object"}'


class Structure(msgspec.Struct, frozen=True):
    """The structure of every choice of a response."""

    kind: StructureKind
    # The schema as JSON, the regular expression, the choices as a JSON list, or the grammar in Lark or GBNF.
    text: str
    # The field that requested it.
    param: str

    def __repr__(self) -> str:
        return f"Structure({self.kind}, {len(self.text)} characters)"


class CheckedGrammar(msgspec.Struct, frozen=True):
    """A grammar that workers may compile."""

    # In the form for workers; empty allows any text.
    text: str = ""
    # Memory of the compiled grammar; 0 if unknown.
    compiled_bytes: int = 0

    def __repr__(self) -> str:
        return f"CheckedGrammar({len(self.text)} characters, {self.compiled_bytes} bytes)"


def json_structure(schema: object, param: str) -> Structure:
    """Return a structure for JSON that follows a schema."""
    return Structure("json_schema", json.dumps(schema, ensure_ascii=False), param)


def choice_structure(choices: Sequence[str], param: str) -> Structure:
    """Return a structure for one of several texts."""
    return Structure("choice", json.dumps(choices, ensure_ascii=False), param)
