"""What one rendering of a chat template may use: weight of the values it makes, and CPU time."""

import time
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from types import GeneratorType

from jinja2.runtime import Undefined

from fairlane.gateway.text.template_taint import Value, given

NODE = 8
"""Weight of one element of a list or dict, beside its own."""
MAX_INT_BITS = 4096
_CLOCK_EVERY = 64
"""Charges between two looks at the clock, each a system call."""
_LARGE = 4096
"""After a charge of more it is looked at too."""
_VIEWS = (KeysView, ValuesView, ItemsView)
_SCALARS = (str, bool, int, float, type(None), Undefined)
PLAIN = (*_SCALARS, list, tuple, dict, range, *_VIEWS)
"""Kinds of values whose size can be told, and that can be turned into text."""


class OverBudget(RuntimeError):
    """The rendering has used up its weight or its time."""


class Opaque(RuntimeError):
    """A template used a namespace, macro or the like where only plain values may stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one rendering. A character weighs 1."""

    weight: int = 1_000_000
    weight_per_input_char: int = 16
    """Templates copy a message several times while they put a prompt together."""
    cpu_s: float = 1.0


class Budget:
    """What is left of a rendering's bounds."""

    def __init__(self, bounds: Bounds, input_chars: int) -> None:
        self.left = bounds.weight + bounds.weight_per_input_char * input_chars
        self._cpu_s = bounds.cpu_s
        self._ends_s: float | None = None
        """From the first look at the clock on: what is over before costs nothing to speak of, and the look does."""
        self.charges = 0

    def look_at_clock(self) -> None:
        """Raises OverBudget where its time is over."""
        now_s = time.thread_time()
        self._ends_s = self._ends_s or now_s + self._cpu_s
        if now_s > self._ends_s:
            raise OverBudget("time")


_current: ContextVar[Budget] = ContextVar("template_budget")


class budget:  # noqa: N801 - a verb's noun, as contextlib's own are
    """Everything inside, in this thread or task, is charged to one new budget."""

    __slots__ = ("_budget", "_token")

    def __init__(self, bounds: Bounds, input_chars: int) -> None:
        self._budget = Budget(bounds, input_chars)

    def __enter__(self) -> None:
        self._token = _current.set(self._budget)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def charge(weight: int) -> None:
    """Charge what is about to be made. Raises OverBudget."""
    current = _current.get()
    current.left -= weight
    current.charges += 1
    if current.left < 0:
        raise OverBudget("weight")
    if weight > _LARGE or current.charges % _CLOCK_EVERY == 0:
        current.look_at_clock()


def charge_plain(value: object) -> None:
    """Charge a value's weight as a tree. Raises OverBudget, and Opaque for anything but plain values."""
    left: list[Value] = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            charge(len(item) + 1)
        elif isinstance(item, int):
            charge(1 + item.bit_length() // 8)
        elif isinstance(item, dict):
            charge(1 + 2 * NODE * len(item))
            left += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, *_VIEWS)):
            charge(1 + NODE * len(item))
            left.extend(item)
        elif isinstance(item, PLAIN):
            charge(1)
        else:
            raise Opaque(type(item).__name__)


def admit(value: Value) -> Value:
    """A value that a template has just made, charged; a lazy one is made whole first."""
    if isinstance(value, GeneratorType):
        value = list(_charged(value))
    if isinstance(value, PLAIN):
        charge_plain(value)
    else:
        charge(1)  # a namespace, a macro: nothing looks into it as a whole
    return value


def _charged(values: Iterator[Value]) -> Iterator[Value]:
    for value in values:
        charge(NODE)
        yield value


def as_text(value: Value) -> str:
    """A plain value as text. Raises Opaque for others: they would show whatever they hold."""
    if isinstance(value, str):
        return value
    charge_plain(value)
    return str(value) if isinstance(value, _SCALARS) else given(str(value))
