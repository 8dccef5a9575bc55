"""How families of models write calls of tools and their reasoning: the files in `syntaxes/`, each one syntax.

A file says how to find a call in a model's output and how to spell one, for a grammar or a prompt:

    detect      lists of texts; the syntax is a model's if its chat template holds all of one of them, and none of
                `unless`
    reasoning   what encloses the model's reasoning
    body        json: {"name": …, "arguments": …}, or a list of such; named: a name, then the arguments; xml: a tag for
                the function, and one for each argument; messages: all of an answer is messages with headers
                (`messages.py`)
    open        what begins a call. `bare`: a call may also stand there without it, as the whole answer
    head        (named) what stands between `open` and the arguments' first brace, as a regular expression
    within      (named) the marks among that
    close       what may follow a call and belongs to it
    silent      what belongs to no call and is not for people either
    said        (messages) what stands before the answer itself, and before and after words that a call follows
    call        a call as the model's template writes it, with $NAME and $ARGUMENTS; `before`, `between` and `after`
                stand around several
"""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

NAME, ARGUMENTS = "$NAME", "$ARGUMENTS"
_FILES = Path(__file__).with_name("syntaxes")
GENERIC = "hermes"
"""For models whose own syntax is not known."""


class CallSyntax(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the files."""

    name: str
    models: str
    """Who writes so; for readers of the file."""
    detect: tuple[tuple[str, ...], ...]
    unless: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None
    body: Literal["json", "named", "xml", "messages"]
    open: tuple[str, ...]
    bare: bool = False
    head: str = ""
    within: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    said: tuple[str, str, str] | None = None
    call: str
    before: str = ""
    between: str = ""
    after: str = ""
    is_only: bool = False
    """A call ends the answer."""

    def is_of(self, template: str) -> bool:
        """Whether a chat template with this source writes calls so."""
        found = any(all(text in template for text in texts) for texts in self.detect)
        return found and not any(text in template for text in self.unless)

    def spell(self, name: str, arguments: str) -> str:
        """One call as text."""
        return "".join([{NAME: name, ARGUMENTS: arguments}.get(part, part) for part in self.parts(self.call)])

    @staticmethod
    def parts(text: str) -> Iterator[str]:
        """`NAME`, `ARGUMENTS`, and what stands between them."""
        return filter(None, re.split(r"(\$NAME|\$ARGUMENTS)", text))

    def ending_at(self, ends: Collection[str]) -> "CallSyntax":
        """The same for a model whose answers end with these marks: a call that closes with one is the last."""
        last = next((mark for mark in self.close if self.call.endswith(mark) and mark in ends), None)
        return self if last is None else replace(self, call=self.call.removesuffix(last), is_only=True)

    @property
    def markers(self) -> tuple[str, ...]:
        """All literal texts that have a meaning in the output."""
        reasoning = self.reasoning or ()
        return tuple(dict.fromkeys([*self.open, *self.within, *self.close, *self.silent, *reasoning]))


@cache
def syntaxes() -> Sequence[CallSyntax]:
    """All of them. Raises `msgspec.ValidationError` for a file that is none."""
    files = sorted(_FILES.glob("*.json"))
    return tuple(msgspec.json.decode(file.read_bytes(), type=CallSyntax) for file in files)


def syntax_of(template: str) -> CallSyntax | None:
    """The syntax in which a chat template writes calls, by its source; None where that is not known."""
    return next((syntax for syntax in syntaxes() if syntax.is_of(template)), None)


def generic() -> CallSyntax:
    """What a model is taught in a system turn whose template tells of no tools."""
    return next(syntax for syntax in syntaxes() if syntax.name == GENERIC)
