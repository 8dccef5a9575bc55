"""The text of a conversation's prompt, by one model's chat template."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fairlane.gateway.dialects.openai.rendering import Rendering
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.chat_template import ChatTemplate, TemplateRefusal
from fairlane.gateway.model_text.conversation import Conversation
from fairlane.gateway.model_text.template_taint import Value
from fairlane.gateway.model_text.template_variables import TemplateVariables
from fairlane.scheduler.protocol.messages import ModelCard


class ChatPrompts:
    """Renders conversations for one model. Immutable, and safe to use from several threads."""

    def __init__(self, card: ModelCard, output_format: OutputFormat, allowed: Collection[str]) -> None:
        """`allowed`: the template's variables that requests may set."""
        # Why there is no usable template; for operators, without request content.
        self.problem: str | None = None
        self._template = self._read_template(card)
        read = frozenset[str]() if self._template is None else self._template.reads
        self._reads_tools = "tools" in read
        self._variables = TemplateVariables(read, allowed, may_reason=output_format.may_reason)
        self._conversation = Conversation(card.chat_template or "", self._render, output_format.syntax)

    def text(self, messages: Sequence[Turn], tools: Sequence[Tool], asked: Rendering) -> str:
        """Render a conversation up to the model's response, with the caller's text tainted.

        Raises ApiError naming `messages` if the template rejects them or there is none, or another field that it does
        not support."""
        if self._template is None:
            raise invalid("messages", "This model has no usable chat template; use /v1/completions.")
        values = self._variables.values(asked)
        if tools and not self._reads_tools:
            messages, tools = self._conversation.with_tools(messages, tools), ()
        try:
            return self._rendered(messages, tools, values)
        except TemplateRefusal as refusal:
            param, reason = "messages", refusal.reason
        if values:
            with contextlib.suppress(TemplateRefusal):
                self._rendered(messages, tools, {})
                param = self._variables.rejected(asked)
                reason = f"`{param}`: the model's chat template does not support this value."
        raise invalid(param, reason)

    def unread(self, asked: Rendering) -> Iterator[str]:
        """Yield the hints that have no effect on this model's prompts, by field."""
        return self._variables.unread(asked)

    def _rendered(self, messages: Sequence[Turn], tools: Sequence[Tool], values: Mapping[str, Value]) -> str:
        offered = [tool.as_json() for tool in tools] if tools else None
        refusals = []
        for form in self._conversation.forms(messages):
            try:
                return self._render(form, offered, values)
            except TemplateRefusal as refusal:
                refusals.append(refusal)
        raise TemplateRefusal(refusals[0].reason)

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> str:
        if self._template is None:
            raise TemplateRefusal("This model has no chat template.")
        return self._template.render(messages, tools, values)

    def _read_template(self, card: ModelCard) -> ChatTemplate | None:
        if card.chat_template is None:
            self.problem = "it has no chat template"
            return None
        try:
            return ChatTemplate(card.chat_template, bos_token=card.bos_token or "", eos_token=card.eos_token or "")
        except TemplateRefusal as refusal:
            self.problem = refusal.reason
            return None
