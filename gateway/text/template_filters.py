"""The filters, methods and operators that chat templates may use: none makes much out of little, or takes long over
it, without being charged first."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType

from jinja2 import filters as stock
from jinja2 import pass_environment
from jinja2 import tests as stock_tests
from jinja2.environment import Environment

from fairlane.gateway.text import template_taint as taint
from fairlane.gateway.text.template_budget import (
    MAX_INT_BITS,
    NODE,
    PLAIN,
    Opaque,
    OverBudget,
    as_text,
    charge,
    charge_plain,
)
from fairlane.gateway.text.template_taint import Value

MAX_NEEDLE_CHARS = 64
"""Python's search from the right, and its strip, take time in proportion to text times needle."""
MAX_INDENT = 16
_SIMPLE_FORMAT = re.compile(r"(?:[^%]|%[sd%])*")
Filter = Callable[..., Value]


# What is charged before a method of a string is called: (self, *args).


def _replaced(text: str, old: str, new: str, count: int = -1) -> None:
    found = text.count(old) if count < 0 else min(text.count(old), count)
    charge(len(text) + max(0, found * (len(new) - len(old))))


def _joined(separator: str, parts: Iterable[str]) -> None:
    lengths = [len(part) for part in parts]
    charge(sum(lengths) + len(separator) * len(lengths))


def _split(text: str, sep: str | None = None, maxsplit: int = -1) -> None:
    pieces = len(text) // 2 if sep is None else text.count(sep)
    charge(len(text) + NODE * (pieces if maxsplit < 0 else min(pieces, maxsplit)))
    _needled(text, sep)


def _needled(text: str, needle: str | None = None, *_: object) -> None:
    if needle is not None and len(needle) > MAX_NEEDLE_CHARS:
        raise OverBudget("needle")


def _free(*_: object) -> None:
    """What takes time in proportion to its arguments, and gives no more than they hold."""


_FREE_STR = """capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace
    istitle isupper lower partition removeprefix removesuffix startswith swapcase title upper"""
METHODS: Mapping[type, Mapping[str, Callable[..., None]]] = {
    str: {
        **dict.fromkeys(_FREE_STR.split(), _free),
        **dict.fromkeys(("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition"), _needled),
        **dict.fromkeys(("split", "rsplit"), _split),
        "splitlines": lambda text, *_: _split(text),
        "replace": _replaced,
        "join": _joined,
    },
    dict: dict.fromkeys(("copy", "get", "items", "keys", "values"), _free),
    list: dict.fromkeys(("copy", "count", "index"), _free),
    tuple: dict.fromkeys(("count", "index"), _free),
}


def is_free_method(function: object) -> bool:
    """Whether a callable is a method that templates may call."""
    return isinstance(function, BuiltinMethodType) and function.__name__ in METHODS.get(_kind(function.__self__), ())


def charge_method(method: BuiltinMethodType, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> None:
    """Charge what a method call is about to make. Raises OverBudget; TypeError for arguments it does not take."""
    METHODS[_kind(method.__self__)][method.__name__](method.__self__, *args, **kwargs)


def _kind(value: object) -> type:
    return str if type(value) is taint.Tainted else type(value)


# Operators: what is charged before `left operator right`.


def charge_operator(operator: str, left: Value, right: Value) -> None:
    """Charge what an arithmetic operator is about to make. Raises OverBudget, Opaque."""
    match operator, left, right:
        case "*" | "**", int(), int():
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INT_BITS:
                raise OverBudget("digits")
        case "*", (str() | list() | tuple()) as many, int(times) if times > 0:
            charge(len(many) * times * (1 if isinstance(many, str) else NODE))
        case "*", int(), str() | list() | tuple():
            charge_operator("*", right, left)
        case "%", str(), _:
            if _SIMPLE_FORMAT.fullmatch(left) is None:
                raise Opaque("format")
            charge_plain(right)
        case "+", str() | list() | tuple(), str() | list() | tuple():
            charge((len(left) + len(right)) * (1 if isinstance(left, str) else NODE))
        case _:
            pass


# Filters.


def concat(parts: list[Value]) -> str:
    """The operator `~`."""
    texts = [as_text(part) for part in parts]
    charge(sum(map(len, texts)))
    return taint.joined(texts)


@pass_environment
def _join(environment: Environment, value: Iterable[Value], d: str = "", attribute: str | None = None) -> str:
    items = value if attribute is None else map(stock.make_attrgetter(environment, attribute), value)
    texts = [as_text(item) for item in items]
    _joined(d, texts)
    return taint.join(d, texts)


def _replace(s: Value, old: str, new: str, count: int | None = None) -> str:
    text, times = as_text(s), -1 if count is None else count
    _replaced(text, old, new, times)
    return taint.replace(text, old, new, times)


def _trim(value: Value, chars: str | None = None) -> str:
    text = as_text(value)
    _needled(text, chars)
    return taint.strip(text, chars)


def _indent(s: Value, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = as_text(s)
    columns = len(width) if isinstance(width, str) else width
    charge(len(text) + (len(text.splitlines()) + 1) * columns)
    return stock.do_indent(text, width, first, blank)


def _list(value: Iterable[Value]) -> list[Value]:
    if isinstance(value, (str, range)):
        charge(NODE * len(value))
    return list(value)


def _tojson(
    value: Value,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' own filter writes it: not escaped for HTML, as stock jinja2 would."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise OverBudget("indent")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    chunks = []
    for chunk in encoder.iterencode(value):
        charge(len(chunk))
        chunks.append(chunk)
    return "".join(chunks)


def _guarded(function: Filter, *, taints: bool = False) -> Filter:
    """A stock filter over plain values only: others would let it show, or compare, whatever they hold.

    `taints`: what it makes of anything but clean values counts as the caller's, as a whole.
    """
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)  # it also carries over which argument jinja2 is to pass
    def guarded(*args: Value, **kwargs: Value) -> Value:
        charge(1)
        for value in (*args[passed:], *kwargs.values()):
            if not isinstance(value, PLAIN):
                raise Opaque(type(value).__name__)
        made = function(*args, **kwargs)
        return taint.spoilt(made) if taints and not taint.is_clean(*args[passed:], *kwargs.values()) else made

    return guarded


_PASSING = """abs count d default dictsort first float int items last length map max min reject rejectattr reverse
    select selectattr sort unique"""
"""Stock filters that make no text, but give on what they were given."""
_MAKING = "capitalize lower string title upper"
_OURS: Mapping[str, Filter] = {
    "e": as_text,  # a prompt is no HTML, and nothing in it is marked as such
    "escape": as_text,
    "join": _join,
    "list": _list,
    "replace": _replace,
    "safe": as_text,
    "trim": _trim,
}
FILTERS: Mapping[str, Filter] = {
    **{name: _guarded(stock.FILTERS[name]) for name in _PASSING.split()},
    **{name: _guarded(stock.FILTERS[name], taints=True) for name in _MAKING.split()},
    **{name: _guarded(function) for name, function in _OURS.items()},
    "indent": _guarded(_indent, taints=True),
    "tojson": _guarded(_tojson, taints=True),
}
TESTS: Mapping[str, Filter] = {"lower": _guarded(stock_tests.test_lower), "upper": _guarded(stock_tests.test_upper)}
"""The stock tests that turn their value into text; the others take any value."""
