"""One model's way of answering: how to read its calls and reasoning, and how to make it call."""

import logging
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

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
    """One model's. Immutable, and safe to use from several threads."""

    def __init__(
        self,
        template: str,
        added: Mapping[str, int],
        special: Collection[str],
        response_template: str | None = None,
        ends: Collection[str] = (),
    ) -> None:
        """`template`: the source of the chat template. `added`: ids of the tokenizer's added tokens, by name;
        `special`: names of those that it marks as special. `response_template`: the model's own, as JSON; it wins.
        `ends`: names of the tokens that end an answer."""
        self._template = None if response_template is None else _readable(response_template)
        syntax = syntax_of(template) or replace(generic(), bare=True)
        written = syntax if self._template is None else _written(self._template, syntax)
        self.syntax = written or syntax
        self.can_force = written is not None
        """It is known how the model's calls are spelled, so that a grammar can make it call."""
        reasoning = self.syntax.reasoning
        reasons = self.syntax.body == "messages" or any(mark in template for mark in reasoning or ())
        self._reasoning = reasoning if reasons else None
        own = [name for name in special if self._template is not None and self._template.names(name)]
        self.markers = frozenset(own if self._template is not None else self.syntax.markers)
        """What has a meaning in an answer."""
        self.needs_control_text = not self.markers.isdisjoint(special)
        """A reader has to see special tokens by name."""
        self._grammar = CallGrammar(self.syntax.ending_at(ends), added, special, self._reasoning)

    def needs_reader(self, tools: Sequence[Tool]) -> bool:
        """Whether answers hold anything but content, where these tools may be called."""
        return bool(tools) or self._reasoning is not None or self._template is not None

    def shows_marks(self, tools: Sequence[Tool]) -> bool:
        """Whether a reader has to see special tokens by name."""
        return self.needs_control_text and self.needs_reader(tools)

    def reader(self, prompt_tail: str, tools: Sequence[Tool]) -> OutputReader:
        """What reads one choice. `prompt_tail`: the end of its prompt; `tools`: those that may be called."""
        if self._template is not None:
            return self._template.reader(prompt_tail, tools)
        if self.syntax.body == "messages":
            return MessageReader(prompt_tail, tools)
        return SyntaxReader(self.syntax, tools, reasoning=self._reasoning, is_reasoning=self._is_reasoning(prompt_tail))

    def forced(self, tools: Sequence[Tool], *, parallel: bool, prompt_tail: str = "") -> str:
        """A grammar in llguidance's Lark: one or, where `parallel`, up to MAX_CALLS calls of these tools, with
        arguments by their schemas; the model may reason before, where it does so."""
        return self._grammar.forced(tools, parallel=parallel, is_reasoning=self._is_reasoning(prompt_tail))

    def lenient(self, tools: Sequence[Tool], *, parallel: bool = True, prompt_tail: str = "") -> str | None:
        """The same for an answer that may be text, or calls that keep to the schema where the tool is strict; None
        where there is nothing to be kept to: no tool is strict, and there may be many calls."""
        is_free = parallel and not any(tool.strict for tool in tools)
        if is_free or not tools or not self.can_force:
            return None
        return self._grammar.lenient(tools, parallel=parallel, is_reasoning=self._is_reasoning(prompt_tail))

    def answering(self, tools: Sequence[Tool], *, parallel: bool, prompt_tail: str = "") -> str | None:
        """A grammar in Lark of the grammar `@answer`, of reasoning before it and of calls in its place; None where
        neither can be."""
        if not self.needs_reader(tools):
            return None
        tools = tools if self.can_force else ()
        return self._grammar.answering(tools, parallel=parallel, is_reasoning=self._is_reasoning(prompt_tail))

    def _is_reasoning(self, prompt_tail: str) -> bool:
        """The prompt ends within the model's reasoning."""
        return self._reasoning is not None and prompt_tail.rstrip().endswith(self._reasoning[0])


def _readable(response_template: str) -> ResponseTemplate | None:
    try:
        return ResponseTemplate(response_template)
    except Exception as error:  # noqa: BLE001 - it is foreign, as its patterns are
        log.warning("a model's response template cannot be used (%s)", type(error).__name__)
        return None


def _written(template: ResponseTemplate, first: CallSyntax) -> CallSyntax | None:
    """A syntax whose calls a response template reads; None where none is known. `first`: the likeliest."""
    for syntax in dict.fromkeys((first, *syntaxes())):
        tags = "<parameter=a>\n1\n</parameter>\n"
        text = syntax.before + syntax.spell(_PROBE.name, tags if syntax.body == "xml" else '{"a": 1}') + syntax.after
        if _reads(template, text):
            return syntax
    return None


def _reads(template: ResponseTemplate, text: str) -> bool:
    """Whether it finds the one call that this text is."""
    reader = template.reader("", (_PROBE,))
    calls = [*reader.push(text).calls, *reader.end().calls]
    return [(call.name, call.arguments) for call in calls] == [(_PROBE.name, '{"a": 1}')]
