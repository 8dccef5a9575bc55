"""The requested structure of a response, as one value."""

from typing import Any, Literal

import msgspec

from fairlane.common.redacted import Redacted

StructureKind = Literal["json_schema", "regex", "choice", "grammar"]
ANY_OBJECT = '{"type":"object"}'


class Structure(Redacted, frozen=True):
    """The structure of every choice of a response."""

    kind: StructureKind
    # The schema as JSON, the regular expression, the choices as a JSON list, or the grammar in Lark or GBNF.
    text: str
    param: str
    # The schema is the caller's, so that a fault is named by its path.
    names_paths: bool = True


class CheckedGrammar(Redacted, frozen=True):
    """A grammar that workers may compile."""

    # In the form for workers; empty allows any text.
    text: str = ""
    # Memory of the compiled grammar; 0 if unknown.
    compiled_bytes: int = 0

    @property
    def schema(self) -> dict[str, Any]:
        """The enforced schema, if the structure was one."""
        schema: dict[str, Any] = msgspec.json.decode(self.text)["grammars"][0]["json_schema"]
        return {name: value for name, value in schema.items() if name != "x-guidance"}
