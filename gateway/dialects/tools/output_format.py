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
from fairlane.gateway.dialects.tools.text_inputs import TextInputReader

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
        reasoning = self.syntax.reasoning
        reasons = self.syntax.body == "messages" or any(mark in template for mark in reasoning or ())
        self._reasoning = reasoning if reasons else None
        # Whether the output can contain reasoning.
        self.may_reason = reasons or any(name in (response_template or "") for name in ("reasoning", "thinking"))
        own = [name for name in special if self._template is not None and self._template.names(name)]
        # Literal strings that have a meaning in the output.
        self.markers = frozenset(own if self._template is not None else self.syntax.markers)
        self.needs_control_text = not self.markers.isdisjoint(special)
        ending = self.syntax.ending_at(ends)
        self.grammar = CallGrammar(ending, added, special, self._reasoning, can_force=written is not None)

    def needs_reader(self, tools: Sequence[Tool]) -> bool:
        return bool(tools) or self._reasoning is not None or self._template is not None

    def shows_marks(self, tools: Sequence[Tool]) -> bool:
        return self.needs_control_text and self.needs_reader(tools)

    def opened(self, said: str) -> str | None:
        """Return the mark of the reasoning that a text leaves open, or None."""
        begin, end = self._reasoning or ("", "")
        return begin if said.rfind(begin) > said.rfind(end) else None

    def reader(self, prompt_tail: str, tools: Sequence[Tool]) -> OutputReader:
        reader = self._reader(prompt_tail, tools)
        custom = frozenset([tool.name for tool in tools if tool.takes_text])
        return TextInputReader(reader, custom) if custom else reader

    def _reader(self, prompt_tail: str, tools: Sequence[Tool]) -> OutputReader:
        if self._template is not None:
            return self._template.reader(prompt_tail, tools)
        if self.syntax.body == "messages":
            return MessageReader(prompt_tail, tools)
        is_reasoning = self.grammar.is_reasoning(prompt_tail)
        return SyntaxReader(self.syntax, tools, reasoning=self._reasoning, is_reasoning=is_reasoning)


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
