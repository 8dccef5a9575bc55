"""Converts a job's grammar to a single text in llguidance's dialect of Lark, as vLLM accepts it.

A job carries such text, or a JSON list of grammars of which the first may refer to the others (`@name`). See
llguidance's docs/syntax.md for `%json` and `%lark`."""

import msgspec

# Names the dialect, so that other Lark parsers do not mistake it for their own.
HEADER = "%llguidance {}"


class _Grammar(msgspec.Struct):
    name: str | None = None
    lark_grammar: str | None = None
    json_schema: msgspec.Raw = msgspec.Raw(b"null")


class _Grammars(msgspec.Struct):
    grammars: list[_Grammar]


_decode = msgspec.json.Decoder(_Grammars).decode


def as_lark(grammar: str) -> str:
    """Return the grammar as one text. Raises msgspec.MsgspecError if it has neither form."""
    if not grammar.startswith("{"):
        return _headed(grammar)
    first, *others = _decode(grammar).grammars
    if not others:
        return _headed(first.lark_grammar or f"start: {_inline(first)}")
    # Only the first rule of our own frame refers to other grammars; the schemas below it may contain any text.
    start, _, rest = (first.lark_grammar or "").partition("\n")
    for other in others:
        start = start.replace(f"@{other.name}", f"{other.name}")
    return _headed("\n".join([start, rest, *(f"{other.name}: {_inline(other)}" for other in others)]))


def _inline(grammar: _Grammar) -> str:
    if grammar.lark_grammar is not None:
        return f"%lark {{\n{grammar.lark_grammar}\n}}"
    return f"%json {bytes(grammar.json_schema).decode()}"


def _headed(lark: str) -> str:
    return f"{HEADER}\n{lark}"
