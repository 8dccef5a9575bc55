"""A job's grammar as one text in llguidance's dialect of Lark, which vLLM's `structured_outputs.grammar` takes.

Jobs carry what llguidance itself reads: such a text, or a JSON list of grammars of which the first may name the others
(`@name`). Its docs/syntax.md says how a text holds JSON schemas (`%json`) and further grammars (`%lark`).
"""

import msgspec

HEADER = "%llguidance {}"
"""Says whose dialect it is, so that no other reader of Lark takes it for its own."""


class _Grammar(msgspec.Struct):
    name: str | None = None
    lark_grammar: str | None = None
    json_schema: msgspec.Raw = msgspec.Raw(b"null")


class _Grammars(msgspec.Struct):
    grammars: list[_Grammar]


_decode = msgspec.json.Decoder(_Grammars).decode


def as_lark(grammar: str) -> str:
    """The same grammar as one text. Raises msgspec.MsgspecError where it is neither form."""
    if not grammar.startswith("{"):
        return _headed(grammar)
    first, *others = _decode(grammar).grammars
    if not others:
        return _headed(first.lark_grammar or f"start: {_inline(first)}")
    # What names others is a frame of ours, whose first rule alone does so: below it, schemas may hold any text.
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
