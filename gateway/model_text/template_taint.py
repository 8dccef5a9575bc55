"""Taint tracking for rendered chat templates: which characters are the caller's.

The template's own text is exact `str`. Text with characters of the caller's is `Tainted` and knows which; any other
subclass of `str` counts as the caller's. Templates may use a closed set of string operations (`template_sandbox`):
those below track each character, and all others taint their whole result. So a character may wrongly count as the
caller's, but never the other way round.

Hiding the names of control tokens in the caller's texts before a plain rendering would be simpler, but wrong for two
reasons: templates complete names (`'<' ~ key ~ '>'` around a tool's argument), and look for them
(`content.split('</think>')`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinMethodType, NoneType
from typing import Any, SupportsIndex

from jinja2.exceptions import SecurityError

Value = Any

# Characters of a text, elements of a list, bits of a number that one step of a template may make.
MAX_MADE = 2**24
# The origin of each character in a taint: the template or the caller.
OWN, GIVEN = "0", "1"
_CLEAN = frozenset({str, int, float, bool, NoneType})
_VERB = re.compile(r"%[sd%]")


class Tainted(str):
    """Text with characters of the caller; created by `given` and the operations below."""

    __slots__ = ("_taint",)
    # OWN or GIVEN for each character. The underscore hides it from templates.
    _taint: str

    def __str__(self) -> str:
        """Return the text itself: jinja2 applies `str` to each output."""
        return self

    def __add__(self, right: str) -> str:
        if not isinstance(right, str):
            return NotImplemented
        return _tainted(str.__add__(self, right), self._taint + _taint_of(right))

    def __radd__(self, left: str) -> str:
        """Concatenate with taint; Python calls this first if `left` is plain text."""
        if not isinstance(left, str):
            return NotImplemented
        return _tainted(str.__add__(left, self), _taint_of(left) + self._taint)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return _tainted(super().__getitem__(key), self._taint[key])

    def __iter__(self) -> Iterator[str]:
        return map(_tainted, super().__iter__(), self._taint)


def given(value: Value) -> Value:
    """Taint every string in a caller's value, including keys."""
    if isinstance(value, str):
        return _tainted(str.__str__(value), GIVEN * len(value))
    if isinstance(value, Mapping):
        return {given(key): given(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(given, value))
    return value


def runs(text: str) -> list[tuple[str, bool]]:
    """Return the longest runs of one origin, in order; True for the caller's."""
    found, taint, start = list[tuple[str, bool]](), _taint_of(text), 0
    plain, length = str.__str__(text), len(taint)
    while start < length:
        is_given = taint[start] == GIVEN
        end = taint.find(OWN if is_given else GIVEN, start)
        if end < 0:
            end = length
        found += ((plain[start:end], is_given),)
        start = end
    return found


def is_clean(*values: object) -> bool:
    """Return whether no value can contain the caller's text; containers do not count as clean."""
    return _CLEAN.issuperset(map(type, values))


def as_text(value: Value) -> str:
    """Convert a value to text; the text of a container is tainted as a whole."""
    if type(value) is str or type(value) is Tainted:
        return value
    return str(value) if is_clean(value) else given(str(value))


def check_size(made: int) -> None:
    """Raise SecurityError if a template would make more than MAX_MADE."""
    if made > MAX_MADE:
        raise SecurityError("too large")


def join(separator: str, parts: Iterable[str]) -> str:
    """Join texts as `str.join` does, with taint."""
    texts = list(parts)
    check_size(sum(map(len, texts)) + len(separator) * len(texts))
    if separator:
        spaced = [separator] * (2 * len(texts) - 1)
        spaced[::2] = texts
        texts = spaced
    return _tainted("".join(texts), "".join(map(_taint_of, texts)))


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace text as `str.replace` does, with taint."""
    found = text.count(old) if count < 0 else min(text.count(old), count)
    check_size(len(text) + found * (len(new) - len(old)))
    if is_clean(text, new):
        return text.replace(old, new, count)
    if not old:
        made = str.replace(text, old, new, count)
        return _tainted(made, GIVEN * len(made))
    return join(new, _pieces(text, str.split(text, old, count), len(old)))


def strip(text: str, chars: str | None = None) -> str:
    """Strip text as `str.strip` does, with taint."""
    start = len(text) - len(str.lstrip(text, chars))
    return text[start : start + len(str.strip(text, chars))]


def spoiling(function: Callable[..., Value]) -> Callable[..., Value]:
    """Wrap a function that does not track characters: text that it makes from unclean values is tainted as a whole."""

    def spoil(*args: Value, **kwargs: Value) -> Value:
        made = function(*args, **kwargs)
        return made if is_clean(*args, *kwargs.values()) or not isinstance(made, str) else given(made)

    return spoil


def operate(operator: str, left: Value, right: Value, natively: Callable[[Value, Value], Value]) -> Value:
    """Return `left operator right` for operators other than `+`; `natively` applies them without taint."""
    if is_clean(left, right):
        return natively(left, right)
    match operator, left, right:
        case "%", str(), _:
            return _formatted(left, right)
        case "*", str(), int():
            return _tainted(str.__mul__(left, right), _taint_of(left) * right)
        case _:
            return spoiling(natively)(left, right)


def call_method(method: BuiltinMethodType, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """Call a string method other than `join` and `replace`."""
    text: Value = method.__self__
    made = method(*args, **kwargs)
    if is_clean(text, *args, *kwargs.values()):
        return made
    match method.__name__:
        case "strip":
            return strip(text, *args)
        case "lstrip" | "removeprefix":
            return text[len(text) - len(made) :]
        case "rstrip" | "removesuffix":
            return text[: len(made)]
        case "split" | "rsplit":
            separator = args[0] if args else kwargs.get("sep")
            return _pieces(text, made, len(separator or ""))
        case "splitlines":
            return _pieces(text, made, 0)
        case "partition" | "rpartition":
            return tuple(_pieces(text, made, 0))
        case _:
            return given(made) if isinstance(made, str) else made


def _tainted(text: str, taint: str) -> str:
    if GIVEN not in taint:
        return text
    made = Tainted(text)
    made._taint = taint
    return made


def _taint_of(text: str) -> str:
    if type(text) is str:
        return OWN * len(text)
    return text._taint if type(text) is Tainted else GIVEN * len(text)


def _formatted(form: str, right: object) -> str:
    values = iter(right if isinstance(right, tuple) else (right,))
    parts, end = [], 0
    for verb in _VERB.finditer(form):
        parts.append(form[end : verb.start()])
        end = verb.end()
        match verb[0]:
            case "%s":
                parts.append(as_text(next(values)))
            case "%d":
                parts.append("%d" % next(values))  # noqa: UP031 - what the template says
            case _:
                parts.append("%")
    return join("", [*parts, form[end:]])


def _pieces(text: str, parts: Iterable[str], gap: int) -> list[str]:
    pieces, end = [], -gap
    for part in parts:
        start = str.find(text, part, end + gap)
        end = start + len(part)
        pieces.append(text[start:end])
    return pieces
