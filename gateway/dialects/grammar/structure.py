"""The requested structure of a response, as one value."""

from typing import Literal

from fairlane.common.redacted import Redacted

StructureKind = Literal["json_schema", "regex", "choice", "grammar"]
ANY_OBJECT = '{"type":"object"}'


class Structure(Redacted, frozen=True):
    """The structure of every choice of a response."""

    kind: StructureKind
    # The schema as JSON, the regular expression, the choices as a JSON list, or the grammar in Lark or GBNF.
    text: str
    param: str


class CheckedGrammar(Redacted, frozen=True):
    """A grammar that workers may compile."""

    # In the form for workers; empty allows any text.
    text: str = ""
    # Memory of the compiled grammar; 0 if unknown.
    compiled_bytes: int = 0
