"""Converts a Lark grammar without recursion to the regular expression of the same texts.

llguidance enforces an expression inside a JSON string, as which a model writes the input of a custom tool, but no Lark
grammar. The texts are those of the rules, whatever a lexer would make of them."""

import re
from collections.abc import Iterator
from itertools import pairwise

# Of a grammar, and of its expression.
MAX_CHARS = 64 * 1024
_DEFINITION = re.compile(r"^[ \t]*(?=[?!]{0,2}[a-zA-Z_]\w*(?:\.-?\d+)?[ \t]*:|%)", re.MULTILINE)
_HEAD = re.compile(r"[?!]{0,2}([a-zA-Z_]\w*)(?:\.-?\d+)?[ \t]*:")
_IMPORT = re.compile(r"%import[ \t]+common(?:\.(\w+)(?:[ \t]*->[ \t]*(\w+))?|[ \t]*\(([\w, \t]+)\))\s*")
_TOKEN = re.compile(
    r"""(?P<none>\s+|(?://|\#)[^\n]*|->\s*\w+)|(?P<text>"(?:\\.|[^"\\\n])*"i?)|(?P<pattern>/(?!/)(?:\\.|[^\\/\n])+/\w*)"""
    r"""|(?P<name>[a-zA-Z_]\w*)|(?P<number>\d+)|(?P<mark>\.\.|[|()\[\]?*+~])"""
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", "v": "\v", "0": "\0"}
_SPECIAL = re.compile(r"[.^$*+?()\[\]{}|\\&~-]")
# An escape, a class, or the beginning of a group with a name, which may occur only once in an expression.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\(\?P?<[A-Za-z_]\w*>")
# Of Lark's library `common`.
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
Token = tuple[str, str]


def lark_pattern(source: str) -> str | None:
    """Return the expression; None for a grammar that is recursive, too long, wrong, or has other features of Lark."""
    if len(source) > MAX_CHARS:
        return None
    try:
        return _Grammar(source).pattern()
    except (_Unsupported, RecursionError):
        return None


class _Unsupported(Exception):
    pass


class _Grammar:
    """The definitions of one grammar."""

    def __init__(self, source: str) -> None:
        # Expressions of names; None while the name is being read.
        self._known: dict[str, str | None] = {}
        self._bodies: dict[str, str] = {}
        # What may follow every terminal.
        self._ignored = ""
        ignored = list[str]()
        for statement in _statements(source):
            if head := _HEAD.match(statement):
                self._bodies[head[1]] = statement[head.end() :]
            elif statement.startswith("%ignore"):
                ignored.append(statement.removeprefix("%ignore"))
            else:
                self._known |= _imported(statement)
        if ignored:
            self._ignored = f"(?:{self._read('|'.join(ignored), is_rule=False)})*"

    def pattern(self) -> str:
        return self._ignored + self._named("start")

    def _named(self, name: str) -> str:
        if name not in self._known and name in self._bodies:
            self._known[name] = None
            self._known[name] = self._read(self._bodies[name], is_rule=not _is_terminal(name))
        found = self._known.get(name)
        if found is None:
            raise _Unsupported
        return f"(?:{found})"

    def _read(self, body: str, *, is_rule: bool) -> str:
        tokens = [*_tokens(body), ("end", "")][::-1]
        found = self._choices(tokens, self._ignored if is_rule else "")
        if tokens.pop()[0] != "end":
            raise _Unsupported
        return found

    def _choices(self, tokens: list[Token], after: str) -> str:
        found, size = [""], 0
        while True:
            kind, text = tokens[-1]
            if kind == "end" or text in (")", "]"):
                return "|".join(found)
            if (kind, text) == ("mark", "|"):
                tokens.pop()
                found.append("")
            else:
                item = self._item(tokens, after)
                size += len(item)
                if size > MAX_CHARS:
                    raise _Unsupported
                found[-1] += item

    def _item(self, tokens: list[Token], after: str) -> str:
        kind, text = tokens.pop()
        if text in ("(", "["):
            inner = self._choices(tokens, after)
            if tokens.pop()[1] != {"(": ")", "[": "]"}[text]:
                raise _Unsupported
            found = f"(?:{inner})" + ("?" if text == "[" else "")
        elif kind == "name":
            found = self._named(text) + (after if _is_terminal(text) else "")
        elif kind == "text" and tokens[-1][1] == "..":
            tokens.pop()
            found = f"[{_escaped(_said(text, 1))}-{_escaped(_said(tokens.pop()[1], 1))}]{after}"
        elif kind == "text":
            plain = _escaped(_said(text.removesuffix("i")))
            found = (f"(?i:{plain})" if text.endswith("i") else f"(?:{plain})") + after
        elif kind == "pattern":
            found = _expression(text) + after
        else:
            raise _Unsupported
        count = _count(tokens)
        return f"(?:{found}){count}" if count else found


def _statements(source: str) -> Iterator[str]:
    starts = [found.end() for found in _DEFINITION.finditer(source)]
    if any(kind != "none" for kind, _ in _tokens(source[: starts[0]] if starts else source)):
        raise _Unsupported
    for start, end in pairwise([*starts, len(source)]):
        yield source[start:end]


def _imported(statement: str) -> dict[str, str | None]:
    found = _IMPORT.match(statement)
    if found is None or [*_tokens(statement[found.end() :])]:
        raise _Unsupported
    one, alias, several = found.groups()
    names = {alias or one: one} if one else {name: name for name in several.replace(",", " ").split()}
    if not _COMMON.keys() >= {*names.values()}:
        raise _Unsupported
    return {name: _COMMON[common] for name, common in names.items()}


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _Unsupported
        at = found.end()
        if found.lastgroup not in (None, "none"):
            yield str(found.lastgroup), found[0]


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _count(tokens: list[Token]) -> str:
    if tokens[-1][1] in ("?", "*", "+"):
        return tokens.pop()[1]
    if tokens[-1][1] != "~":
        return ""
    tokens.pop()
    least = most = tokens.pop()
    if tokens[-1][1] == "..":
        tokens.pop()
        most = tokens.pop()
    if least[0] != "number" or most[0] != "number":
        raise _Unsupported
    return f"{{{least[1]},{most[1]}}}"


def _said(text: str, most: int | None = None) -> str:
    """Return the text of a literal of at most so many characters."""

    def character(found: re.Match[str]) -> str:
        code, letter = found[1] or found[2], found[3]
        return chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)

    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise _Unsupported
    said = _ESCAPE.sub(character, text[1:-1])
    if most is not None and len(said) != most:
        raise _Unsupported
    return said


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _expression(literal: str) -> str:
    body, _, flags = literal[1:].rpartition("/")
    if not set(flags) <= set("imsux"):
        raise _Unsupported
    plain = _PART.sub(lambda found: "(?:" if found[0][0] == "(" else "/" if found[0] == r"\/" else found[0], body)
    shown = "".join(sorted(set(flags) - {"u"}))
    return f"(?{shown}:{plain})"
