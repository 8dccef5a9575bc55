"""Which characters of a rendered chat template are the caller's: taint tracking through all a template does with text.

The template's own text is exact `str`. Text with characters of the caller's is `Tainted` and knows which they are; any
other kind of `str` counts as the caller's. What a template may do with text is a closed set (`template_sandbox`): the
operations below keep account of each character, and all others taint the whole of what they make. So a character may
be taken for the caller's that is not, never the other way round.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinMethodType, NoneType
from typing import Any, SupportsIndex

Value = Any
"""What a template computes with."""

OWN, GIVEN = "0", "1"
"""In a taint, for each character: the template's or the caller's."""
_CLEAN = frozenset({str, int, float, bool, NoneType})
_VERB = re.compile(r"%[sd%]")


class Tainted(str):
    """Text that holds characters of the caller's; `given` and the operations make it."""

    __slots__ = ("_taint",)
    _taint: str
    """OWN or GIVEN for each character. The underscore keeps it from templates."""

    def __str__(self) -> str:
        """Itself: jinja2 puts `str` around each output."""
        return self

    def __add__(self, right: str) -> str:
        """Both, each with its taint."""
        if not isinstance(right, str):
            return NotImplemented
        return _tainted(str.__add__(self, right), self._taint + _taint_of(right))

    def __radd__(self, left: str) -> str:
        """Both, each with its taint: Python asks here first where `left` is a plain text."""
        if not isinstance(left, str):
            return NotImplemented
        return _tainted(str.__add__(left, self), _taint_of(left) + self._taint)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        """A character or a slice, with its taint."""
        return _tainted(super().__getitem__(key), self._taint[key])

    def __iter__(self) -> Iterator[str]:
        """Its characters, each with its taint."""
        return map(_tainted, super().__iter__(), self._taint)


def given(value: Value) -> Value:
    """A caller's value, with every string in it tainted, keys too."""
    if isinstance(value, str):
        return _tainted(str.__str__(value), GIVEN * len(value))
    if isinstance(value, Mapping):
        return {given(key): given(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(given, value))
    return value


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """Its longest stretches of one origin, in order; True: the caller's."""
    taint, start = _taint_of(text), 0
    plain = str.__str__(text)
    while start < len(taint):
        is_given = taint[start] == GIVEN
        end = taint.find(OWN if is_given else GIVEN, start)
        end = len(taint) if end < 0 else end
        yield plain[start:end], is_given
        start = end


def is_clean(*values: object) -> bool:
    """Surely nothing of the caller's in any of them; containers are not looked into."""
    return _CLEAN.issuperset(map(type, values))


def as_text(value: Value) -> str:
    """A value as text; of a list, dict or the like all is the caller's."""
    if type(value) is str or type(value) is Tainted:
        return value
    return str(value) if is_clean(value) else given(str(value))


def joined(parts: Iterable[str]) -> str:
    """Texts one after the other."""
    listed = list(parts)
    text = "".join(listed)
    return text if is_clean(*listed) else _tainted(text, "".join(map(_taint_of, listed)))


def join(separator: str, parts: Iterable[str]) -> str:
    """`str.join`."""
    texts = list(parts)
    spaced = [separator] * (2 * len(texts) - 1)
    spaced[::2] = texts
    return joined(spaced)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """`str.replace`."""
    if is_clean(text, new):
        return text.replace(old, new, count)
    if not old:
        made = str.replace(text, old, new, count)
        return _tainted(made, GIVEN * len(made))
    return join(new, _split(text, old, count))


def strip(text: str, chars: str | None = None) -> str:
    """`str.strip`."""
    return _rstrip(_lstrip(text, chars), chars)


def spoiling(function: Callable[..., Value]) -> Callable[..., Value]:
    """A function that keeps no account of characters: a text that it makes of others than clean values is the caller's
    as a whole."""

    def spoil(*args: Value, **kwargs: Value) -> Value:
        made = function(*args, **kwargs)
        return made if is_clean(*args, *kwargs.values()) or not isinstance(made, str) else given(made)

    return spoil


def operate(operator: str, left: Value, right: Value, natively: Callable[[Value, Value], Value]) -> Value:
    """`left operator right`, but for `+`; `natively` applies it as Python does."""
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
    """Call a method of a text, but for `join` and `replace`."""
    text = method.__self__
    if is_clean(text, *args, *kwargs.values()):
        return method(*args, **kwargs)
    followed = _FOLLOWED.get(method.__name__)
    if followed is not None:
        return followed(text, *args, **kwargs)
    made = method(*args, **kwargs)
    return given(made) if isinstance(made, str) else made


def _tainted(text: str, taint: str) -> str:
    if GIVEN not in taint:
        return text
    made = str.__new__(Tainted, text)
    made._taint = taint
    return made


def _taint_of(text: str) -> str:
    if type(text) is str:
        return OWN * len(text)
    return text._taint if type(text) is Tainted else GIVEN * len(text)


def _formatted(form: str, right: object) -> str:
    """`form % right`, for the directives that templates may use."""
    values = iter(right if isinstance(right, tuple) else (right,))
    parts, end = [], 0
    for verb in _VERB.finditer(form):
        parts.append(form[end : verb.start()])
        end = verb.end()
        match verb[0]:
            case "%s":
                value = next(values)
                parts.append(value if isinstance(value, str) else str(value) if is_clean(value) else given(str(value)))
            case "%d":
                parts.append("%d" % next(values))  # noqa: UP031 - what the template says
            case _:
                parts.append("%")
    return joined([*parts, form[end:]])


def _pieces(text: str, parts: Iterable[str], gap: int) -> list[str]:
    """Parts of a text, taken from it anew with their taint. `gap`: characters between two of them, at least."""
    pieces, end = [], -gap
    for part in parts:
        start = str.find(text, part, end + gap)
        end = start + len(part)
        pieces.append(text[start:end])
    return pieces


def _split(text: str, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
    return _pieces(text, str.split(text, sep, maxsplit), len(sep or ""))


def _rsplit(text: str, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
    return _pieces(text, str.rsplit(text, sep, maxsplit), len(sep or ""))


def _splitlines(text: str, keepends: bool = False) -> list[str]:
    return _pieces(text, str.splitlines(text, keepends), 0)


def _partition(text: str, sep: str) -> tuple[str, ...]:
    return tuple(_pieces(text, str.partition(text, sep), 0))


def _rpartition(text: str, sep: str) -> tuple[str, ...]:
    return tuple(_pieces(text, str.rpartition(text, sep), 0))


def _lstrip(text: str, chars: str | None = None) -> str:
    return text[len(text) - len(str.lstrip(text, chars)) :]


def _rstrip(text: str, chars: str | None = None) -> str:
    return text[: len(str.rstrip(text, chars))]


def _removeprefix(text: str, prefix: str) -> str:
    return text[len(prefix) :] if str.startswith(text, prefix) else text


def _removesuffix(text: str, suffix: str) -> str:
    return text[: len(text) - len(suffix)] if str.endswith(text, suffix) else text


_FOLLOWED: Mapping[str, Callable[..., Value]] = {
    "lstrip": _lstrip,
    "partition": _partition,
    "removeprefix": _removeprefix,
    "removesuffix": _removesuffix,
    "rpartition": _rpartition,
    "rsplit": _rsplit,
    "rstrip": _rstrip,
    "split": _split,
    "splitlines": _splitlines,
    "strip": strip,
}
