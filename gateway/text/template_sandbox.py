"""Running chat templates, which are code from outside, with bounds that hold whatever they do.

jinja2's immutable sandbox keeps a template from reaching the process, but not from using up its memory and time. So a
rendering has a budget of weight, where a character weighs 1 and an element of a list or dict a little more:

- Every value that a template makes is charged, as a tree, before the template gets it: none outweighs the budget.
- What could grow by more than a sum is charged before it is made: `*`, `**`, `~`, `replace`, `join`, `tojson`…
- Each turn of a loop and each call is charged, with the text it can bring.
- Filters and methods are those of `template_filters`; all others are refused.
- Charges also look at the CPU time that the rendering has taken.

The charges are put into the template's syntax tree, as filters under names that no template can spell.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from fairlane.gateway.text import template_taint as taint
from fairlane.gateway.text.template_budget import NODE, admit, as_text, charge
from fairlane.gateway.text.template_filters import (
    FILTERS,
    TESTS,
    charge_method,
    charge_operator,
    concat,
    is_free_method,
)
from fairlane.gateway.text.template_taint import Value

_ADMIT, _CONCAT, _TICK = "admit value", "concat values", "tick of a loop"
_CALL_VARS = frozenset({"_loop_vars", "_block_vars"})
"""What jinja2 passes along with a call inside a loop or block."""
_LOOP_METHODS = frozenset({"cycle", "changed"})


class _Attributes(Namespace):
    """jinja2's `namespace`, for names that are not Python's own."""

    def __setitem__(self, name: str, value: Value) -> None:
        if name.startswith("_"):
            raise SecurityError("a namespace holds no name that begins with an underscore")
        super().__setitem__(name, value)


def _namespace(**values: Value) -> Namespace:
    made = _Attributes()
    for name, value in values.items():
        made[name] = value
    return made


def _dict(**values: Value) -> dict[str, Value]:
    return values


def _range(*bounds: int) -> range:
    made = range(*bounds)
    charge(NODE * len(made))
    return made


def _tick(weight: int) -> bool:
    charge(weight)
    return True


@pass_context  # and so never called while a template is compiled
def _shown(_: Context, value: Value) -> str:
    if isinstance(value, str):
        charge(len(value) + 1)
    return as_text(value)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates, as transformers sets it up. Compile and render inside a `budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(taint.joined)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_shown,
            optimized=False,  # constants are folded at run time, where it is charged
        )
        self.filters = {**FILTERS, _ADMIT: admit, _CONCAT: concat, _TICK: _tick}
        self.tests = {**self.tests, **TESTS}
        self.globals = {}
        self._allowed: set[Callable[..., Value]] = set()
        for name, function in (("dict", _dict), ("namespace", _namespace), ("range", _range)):
            self.allow(name, function)

    def allow(self, name: str, function: Callable[..., Value]) -> None:
        """Give templates a function. It must take bounded time, and its result is charged like any value."""
        self.globals[name] = function
        self._allowed.add(function)

    def is_safe_callable(self, obj: Value) -> bool:
        """Only what is known to be bounded."""
        if isinstance(obj, (Macro, LoopContext)) or is_free_method(obj):
            return True
        if isinstance(obj, MethodType):
            return isinstance(obj.__self__, LoopContext) and obj.__name__ in _LOOP_METHODS
        return obj in self._allowed

    def call(self, context: Context, obj: Value, /, *args: Value, **kwargs: Value) -> Value:
        """Call what a template calls; its result is charged by the syntax tree around it."""
        charge(1)
        if not self.is_safe_callable(obj):
            raise SecurityError("not callable from a template")  # jinja2's own message shows the whole object
        if isinstance(obj, (Macro, LoopContext, MethodType)):  # whose text is joined of texts that know their taint
            return super().call(context, obj, *args, **kwargs)
        said = {name: kwargs[name] for name in kwargs.keys() - _CALL_VARS}
        if not is_free_method(obj):
            made = super().call(context, obj, *args, **kwargs)
            return made if taint.is_clean(*args, *said.values()) else taint.spoilt(made)
        charge_method(obj, args, said)
        if isinstance(obj.__self__, str) and not taint.is_clean(obj.__self__, *args, *said.values()):
            return taint.call_method(obj, args, said)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """Charge an operator for what it makes, then apply it."""
        if operator == "+" and isinstance(left, str) and isinstance(right, str):  # what most of a template consists of
            charge(len(left) + len(right))
            return taint.add(left, right)
        charge_operator(operator, left, right)
        apply = partial(super().call_binop, context, operator, left, right)
        if taint.is_clean(left, right) or not (isinstance(left, str) or isinstance(right, str)):
            return apply()
        return taint.operate(operator, left, right, apply)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _charge_children(tree)
        tree.set_environment(self)
        return tree


def _charged(node: nodes.Node) -> nodes.Node:
    """A part of a template's syntax tree, with the charges put into it."""
    _charge_children(node)
    match node:
        case nodes.For():
            _pay_first(node.body, node.lineno)
            if node.test is not None:  # turns that the loop's own condition leaves out pay too
                node.test = nodes.And(_payment(1, node.lineno), node.test, lineno=node.lineno)
        case nodes.Macro() | nodes.CallBlock():
            _pay_first(node.body, node.lineno)
        case nodes.Concat():
            return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)
        case nodes.Call() | nodes.Filter() | nodes.List() | nodes.Dict() | nodes.Compare() | nodes.Test():
            return _filtered(node, _ADMIT)
        case nodes.Tuple(ctx="load") | nodes.Getitem(arg=nodes.Slice()):  # not the names that `set` gives values to
            return _filtered(node, _ADMIT)
    return node


def _charge_children(node: nodes.Node) -> None:
    for name, child in node.iter_fields():
        if isinstance(node, nodes.CallBlock) and name == "call":
            _charge_children(child)  # it has to stay a call
        elif isinstance(child, nodes.Node):
            setattr(node, name, _charged(child))
        elif isinstance(child, list):
            child[:] = [_charged(item) if isinstance(item, nodes.Node) else item for item in child]


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _payment(weight: int, lineno: int) -> nodes.Filter:
    return _filtered(nodes.Const(weight, lineno=lineno), _TICK)


def _pay_first(body: list[nodes.Node], lineno: int) -> None:
    text = sum(len(data.data) for part in body for data in part.find_all(nodes.TemplateData))
    body.insert(0, nodes.ExprStmt(_payment(1 + text, lineno), lineno=lineno))


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model said, for training; here it only encloses."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body as it stands."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
