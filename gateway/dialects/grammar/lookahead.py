r"""Splits a regular expression that begins with lookaheads into several without any, which all must match.

llguidance intersects regular expressions, but has no lookaheads. Those of `^(?=.*[A-Z])(?=.*\d).{8,}$` are expressions
of their own. A negative one has an equivalent if it is simple: `(?!x)`, `(?!.*x)`, `(?!.*xx)` and `(?![xyz]*$)`."""

import re

_ATOM = r"\[(?!\^)(?:\\.|[^\]\\])+\]|\\[^bBkpPux0-9]|[^\\.^$*+?()\[\]{}|]"
_NEGATIVE = re.compile(rf"(?P<any>\.\*)?(?P<one>{_ATOM})(?P<again>(?P=one))?|\^?(?P<all>{_ATOM})(?P<count>[*+])\$")
_LOOKAHEADS = ("(?=", "(?!")


def without_lookaheads(pattern: str) -> list[str] | None:
    """Return patterns that match together what one does; None if it does not begin with lookaheads."""
    found, at = [], 1
    while pattern.startswith("^") and pattern[at : at + 3] in _LOOKAHEADS:
        end = _end_of_group(pattern, at)
        inner = pattern[at + 3 : end - 1]
        part = f"^(?:{inner})" if pattern[at + 2] == "=" else _excluding(inner)
        if part is None:
            return None
        found.append(part)
        at = end
    rest = pattern[at:]
    has_parts = bool(found) and not rest.startswith(("*", "+", "?", "{")) and _end_of_branch(rest) == len(rest)
    return [*found, f"^{rest}"] if has_parts else None


def _excluding(inner: str) -> str | None:
    simple = _NEGATIVE.fullmatch(inner)
    if simple is None:
        return None
    if simple["all"]:
        return _but(simple["all"]) + ("|^$" if simple["count"] == "+" else "")
    one = simple["one"]
    if not simple["any"]:
        return None if simple["again"] else f"^(?:{_but(one)}|$)"
    other = _but(one, r"\n")
    return rf"^(?:{other}|{one}{other})*{one}?(?:\n|$)" if simple["again"] else rf"^{other}*(?:\n|$)"


def _but(one: str, more: str = "") -> str:
    """Return the class of all characters but those of a class or a single one."""
    inside = one[1:-1] if one.startswith("[") else one
    return f"[^{more}\\{inside}]" if inside.startswith(("-", "]")) else f"[^{more}{inside}]"


def _end_of_group(pattern: str, at: int) -> int:
    """Return the index after the group that starts at `at`; the end of the pattern if none does."""
    return at + 1 + _end_of_branch(pattern[at + 1 :], ends=")") + 1


def _end_of_branch(pattern: str, ends: str = "|") -> int:
    depth, in_class, at = 0, False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif not depth and char in ends:
            return at
        else:
            depth += (char == "(") - (char == ")")
        at += 1
    return len(pattern)
