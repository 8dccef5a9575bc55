"""One model's output format: how to parse its calls and reasoning, and how to make it call."""

import logging
from collections.abc import Collection, Mapping, Sequence

from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.dialects.tools.grammar import CallGrammar
from fairlane.gateway.dialects.tools.messages import MessageReader
from fairlane.gateway.dialects.tools.reader import SyntaxReader
from fairlane.gateway.dialects.tools.syntax import CallSyntax, generic, syntax_of, syntaxes
from fairlane.gateway.dialects.tools.template_reader import ResponseTemplate

_PROBE = Tool(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})

log = logging.getLogger(__name__)


class OutputFormat:
    """One model's output format. Immutable, and safe to use from several threads."""

    def __init__(
        self,
        template: str,
        added: Mapping[str, int],
        special: Collection[str],
        response_template: str | None = None,
        ends: Collection[str] = (),
    ) -> None:
        """`template`: the source of the chat template. `added`: ids of the tokenizer's added tokens, by name;
        `special`: names of the special ones among them. `response_template`: the model's own, as JSON, which takes
        precedence. `ends`: names of the tokens that end a response."""
        self._template = None if response_template is None else _readable(response_template)
        syntax = syntax_of(template) or generic()
        written = syntax if self._template is None else _written(self._template, syntax)
        self.syntax = written or syntax
        # The spelling of the model's calls is known, so a grammar can force one.
        self.can_force = written is not None
        reasoning = self.syntax.reasoning
        reasons = self.syntax.body == "messages" or any(mark in template for mark in reasoning or ())
        self._reasoning = reasoning if reasons else None
        own = [name for name in special if self._template is not None and self._template.names(name)]
        # Literal texts that have a meaning in the output.
        self.markers = frozenset(own if self._template is not None else self.syntax.markers)
        self.needs_control_text = not self.markers.isdisjoint(special)
        self._grammar = CallGrammar(self.syntax.ending_at(ends), added, special, self._reasoning)

    def needs_reader(self, tools: Sequence[Tool]) -> bool:
        return bool(tools) or self._reasoning is not None or self._template is not None

    def shows_marks(self, tools: Sequence[Tool]) -> bool:
        return self.needs_control_text and self.needs_reader(tools)

    def reader(self, prompt_tail: str, tools: Sequence[Tool]) -> OutputReader:
        if self._template is not None:
            return self._template.reader(prompt_tail, tools)
        if self.syntax.body == "messages":
            return MessageReader(prompt_tail, tools)
        return SyntaxReader(self.syntax, tools, reasoning=self._reasoning, is_reasoning=self._is_reasoning(prompt_tail))

    def forced(self, tools: Sequence[Tool], *, parallel: bool, prompt_tail: str = "") -> str:
        """Return a grammar in llguidance's Lark: one or, if `parallel`, up to MAX_CALLS calls of these tools, with
        arguments by their schemas, and reasoning before them if the model has any."""
        return self._grammar.forced(tools, parallel=parallel, is_reasoning=self._is_reasoning(prompt_tail))

    def lenient(self, tools: Sequence[Tool], *, parallel: bool = True, prompt_tail: str = "") -> str | None:
        """Return a grammar of text or calls, in which calls of strict tools follow the schema; None if there is nothing
        to enforce: no tool is strict, and parallel calls are allowed."""
        is_free = parallel and not any(tool.strict for tool in tools)
        if is_free or not tools or not self.can_force:
            return None
        return self._grammar.lenient(tools, parallel=parallel, is_reasoning=self._is_reasoning(prompt_tail))

    def answering(self, tools: Sequence[Tool], *, parallel: bool, prompt_tail: str = "") -> str | None:
        """Return a grammar in Lark of the grammar `@answer`, with reasoning before it and calls in its place; None if
        the model has neither."""
        if not self.needs_reader(tools):
            return None
        tools = tools if self.can_force else ()
        return self._grammar.answering(tools, parallel=parallel, is_reasoning=self._is_reasoning(prompt_tail))

    def _is_reasoning(self, prompt_tail: str) -> bool:
        return self._reasoning is not None and prompt_tail.rstrip().endswith(self._reasoning[0])


def _readable(response_template: str) -> ResponseTemplate | None:
    try:
        return ResponseTemplate(response_template)
    except Exception as error:  # noqa: BLE001 - it is foreign, as its patterns are
        log.warning("a model's response template is unusable (%s)", type(error).__name__)
        return None


def _written(template: ResponseTemplate, first: CallSyntax) -> CallSyntax | None:
    for syntax in dict.fromkeys((first, *syntaxes())):
        tags = "<parameter=a>\n1\n</parameter>\n"
        text = syntax.before + syntax.spell(_PROBE.name, tags if syntax.body == "xml" else '{"a": 1}') + syntax.after
        if _reads(template, text):
            return syntax
    return None


def _reads(template: ResponseTemplate, text: str) -> bool:
    reader = template.reader("", (_PROBE,))
    calls = [*reader.push(text).calls, *reader.end().calls]
    return [(call.name, call.arguments) for call in calls] == [(_PROBE.name, '{"a": 1}')]
