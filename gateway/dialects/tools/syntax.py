"""Syntaxes in which model families write tool calls and reasoning, each defined by a file in `syntaxes/`."""

import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

NAME, ARGUMENTS = "$NAME", "$ARGUMENTS"
_FILES = Path(__file__).with_name("syntaxes")


class CallSyntax(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the files."""

    name: str
    # Documentation: the models with this syntax.
    models: str
    # A model has the syntax if its chat template contains all strings of one list, and none of `unless`.
    detect: tuple[tuple[str, ...], ...]
    unless: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None
    # json: {"name": …, "arguments": …}, or a list of them; named: a name, then the arguments; xml: a tag for the
    # function, and one for each argument; messages: the response consists of messages with headers (`messages.py`).
    body: Literal["json", "named", "xml", "messages"]
    # Marks that begin a call. `bare`: a call may also be the whole response, without a mark.
    open: tuple[str, ...]
    bare: bool = False
    # For `named`: a pattern of the text between `open` and the arguments' first brace, and the marks in it.
    head: str = ""
    within: tuple[str, ...] = ()
    # Marks that may follow a call and belong to it.
    close: tuple[str, ...] = ()
    # Marks that belong to no call and are not shown to users either.
    silent: tuple[str, ...] = ()
    # For `messages`: the text before the response itself, and before and after text that a call follows.
    said: tuple[str, str, str] | None = None
    # A call as the template writes it, with $NAME and $ARGUMENTS, and what surrounds several calls.
    call: str
    before: str = ""
    between: str = ""
    after: str = ""
    # The call ends the response.
    is_only: bool = False

    def is_of(self, template: str) -> bool:
        found = any(all(text in template for text in texts) for texts in self.detect)
        return found and not any(text in template for text in self.unless)

    def spell(self, name: str, arguments: str) -> str:
        values = {NAME: name, ARGUMENTS: arguments}
        return re.sub(r"\$NAME|\$ARGUMENTS", lambda found: values[found[0]], self.call)

    def ending_at(self, ends: Collection[str]) -> "CallSyntax":
        """Return the syntax for a model whose responses end with these marks: a call that closes with one is the
        last."""
        last = next((mark for mark in self.close if self.call.endswith(mark) and mark in ends), None)
        return self if last is None else replace(self, call=self.call.removesuffix(last), is_only=True)

    @property
    def markers(self) -> tuple[str, ...]:
        reasoning = self.reasoning or ()
        return tuple(dict.fromkeys([*self.open, *self.within, *self.close, *self.silent, *reasoning]))


@cache
def syntaxes() -> Sequence[CallSyntax]:
    """Return all syntaxes. Raises `msgspec.ValidationError` for an invalid file."""
    files = sorted(_FILES.glob("*.json"))
    return tuple(msgspec.json.decode(file.read_bytes(), type=CallSyntax) for file in files)


def syntax_of(template: str) -> CallSyntax | None:
    """Return the syntax of a chat template by its source, or None."""
    return next((syntax for syntax in syntaxes() if syntax.is_of(template)), None)


def generic() -> CallSyntax:
    """Return the syntax for models whose template does not show tools. A call may be the whole response."""
    return next(replace(syntax, bare=True) for syntax in syntaxes() if syntax.name == "hermes")
