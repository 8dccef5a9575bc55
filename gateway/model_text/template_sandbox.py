"""The jinja2 environment of chat templates: as transformers sets it up, without access to the process, and with
tracking of each character's origin.

Filters, methods and functions are a closed set, since each must keep the taint (`template_taint`). A step that would
make more than `template_taint.MAX_MADE` is refused. The sum of many steps, and their time, are unbounded: the operator
chooses the model, and the template with it."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, MethodType

from jinja2 import filters as stock
from jinja2 import nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from fairlane.gateway.model_text import template_taint as taint
from fairlane.gateway.model_text.template_taint import Value, as_text

# Columns of an indent, characters of a separator.
_MAX_JSON_FILL = 16
# The directives that keep the taint; those with a width could produce text of any length.
_TRACKED_FORMAT = re.compile(r"(?:[^%]|%[sd%])*")
_OF_TEXT = """capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace
    istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip
    split splitlines startswith strip swapcase title upper"""
_METHODS: Mapping[type, frozenset[str]] = {
    **dict.fromkeys((str, taint.Tainted), frozenset(_OF_TEXT.split())),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one chat template."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, functions: Mapping[str, Callable[..., Value]]) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=as_text)
        self.code_generator_class = _CodeGenerator
        self.filters = dict(_FILTERS)
        self.globals = {"dict": dict, "namespace": _Namespace, "range": safe_range, **functions}

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        return taint.join("", parts)

    def call(self, context: Context, obj: Value, /, *args: Value, **kwargs: Value) -> Value:
        """Call an object for a template. Raises SecurityError if that is not allowed or would produce too much."""
        of_loop = isinstance(obj, MethodType) and isinstance(obj.__self__, LoopContext)
        if of_loop or isinstance(obj, (Macro, LoopContext)):
            return super().call(context, obj, *args, **kwargs)
        for name in ("_loop_vars", "_block_vars"):  # jinja2's internal arguments in loops and blocks
            kwargs.pop(name, None)
        if isinstance(obj, BuiltinMethodType):
            return _call_method(obj, args, kwargs)
        if obj in self.globals.values():
            return taint.spoiling(obj)(*args, **kwargs)
        raise SecurityError("not callable from a template")

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        _check_operator(operator, left, right)
        return taint.operate(operator, left, right, self.binop_table[operator])


class _CodeGenerator(CodeGenerator):  # whose methods jinja2 names
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("concat(map(environment.finalize, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier, frame: Frame) -> None:  # noqa: N802
        """Reject `autoescape`: a prompt is not HTML, and escaped text would lose the taint."""
        self.fail("no autoescape in a chat template", node.lineno)


class _Generation(Extension):
    """Accepts `{% generation %}…{% endgeneration %}`, which marks model output for training."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    def __init__(self, /, *args: Value, **values: Value) -> None:
        super().__init__()
        for name, value in dict(*args, **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Value) -> None:
        if name.startswith("_"):
            raise SecurityError("names in a namespace must not begin with an underscore")
        super().__setitem__(name, value)


def _call_method(method: BuiltinMethodType, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
    owner, name = method.__self__, method.__name__
    if name not in _METHODS.get(type(owner), ()):
        raise SecurityError("not callable from a template")
    if not isinstance(owner, str):
        return method(*args, **kwargs)
    if name in ("join", "replace"):
        return (taint.join if name == "join" else taint.replace)(owner, *args, **kwargs)
    return taint.call_method(method, args, kwargs)


def _check_operator(operator: str, left: Value, right: Value) -> None:
    if operator == "*":
        many, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            taint.check_size(len(many) * times)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        taint.check_size(left.bit_length() * right)
    elif operator == "%" and isinstance(left, str) and _TRACKED_FORMAT.fullmatch(left) is None:
        raise SecurityError("a format other than %s and %d")


@pass_environment
def _join(environment: Environment, value: Iterable[Value], d: str = "", attribute: str | None = None) -> str:
    items = value if attribute is None else map(stock.make_attrgetter(environment, attribute), value)
    return taint.join(as_text(d), map(as_text, items))


def _replace(s: Value, old: Value, new: Value, count: int | None = None) -> str:
    return taint.replace(as_text(s), as_text(old), as_text(new), -1 if count is None else count)


def _indent(s: Value, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = as_text(s)
    taint.check_size(len(text) + (len(text.splitlines()) + 1) * (len(width) if isinstance(width, str) else width))
    return stock.do_indent(text, width, first, blank)


def _tojson(
    value: Value,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if max(indent or 0, *map(len, separators or ("", ""))) > _MAX_JSON_FILL:
        raise SecurityError("too wide")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_PASSING = """abs count d default dictsort first float int items last length list map max min reject rejectattr reverse
    select selectattr sort unique"""
_FILTERS: Mapping[str, Callable[..., Value]] = {
    **{name: stock.FILTERS[name] for name in _PASSING.split()},  # which produce no text
    **{name: taint.spoiling(stock.FILTERS[name]) for name in ("capitalize", "lower", "title", "upper")},
    **dict.fromkeys(("e", "escape", "safe", "string"), as_text),  # a prompt is not HTML
    "indent": taint.spoiling(_indent),
    "join": _join,
    "replace": _replace,
    "tojson": taint.spoiling(_tojson),
    "trim": lambda value, chars=None: taint.strip(as_text(value), chars),
}
