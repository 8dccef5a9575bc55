"""The text of a conversation's prompt, by one model's chat template."""

import contextlib
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.rendering import Rendering
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from fairlane.gateway.errors import invalid
from fairlane.gateway.model_text.chat_template import ChatTemplate, TemplateRefusal
from fairlane.gateway.model_text.conversation import Conversation
from fairlane.gateway.model_text.template_taint import Value
from fairlane.gateway.model_text.template_taint import replace as replace_tainted
from fairlane.gateway.model_text.template_variables import TemplateVariables
from fairlane.scheduler.protocol.messages import ModelCard

# Of the mark after a message that is continued: no caller can guess it.
_MARK_BYTES = 16


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
        fields = frozenset[str]() if self._template is None else self._template.fields
        self._conversation = Conversation(card.chat_template or "", fields, self._render, output_format.syntax)

    def text(self, messages: Sequence[Turn], tools: Sequence[Tool], asked: Rendering) -> str:
        """Render a conversation up to the model's response, with the caller's text tainted.

        Raises ApiError naming `messages` if the template rejects them or there is none, or another field that it does
        not support."""
        if self._template is None:
            raise invalid("messages", "This model has no usable chat template; use /v1/completions.")
        if asked.continues:
            return self._continued(messages, tools, asked)
        values = self._variables.values(asked)
        if tools and not self._reads_tools:
            messages, tools = self._conversation.with_tools(messages, tools), ()
        try:
            return self._rendered(messages, tools, values, begins_turn=asked.begins_turn)
        except TemplateRefusal as refusal:
            param, reason = "messages", refusal.reason
        if values:
            with contextlib.suppress(TemplateRefusal):
                self._rendered(messages, tools, {}, begins_turn=asked.begins_turn)
                param = self._variables.rejected(asked)
                reason = f"`{param}`: the model's chat template does not support this value."
        raise invalid(param, reason)

    def _continued(self, messages: Sequence[Turn], tools: Sequence[Tool], asked: Rendering) -> str:
        """Render a conversation up to the end of the last message's text, which is found by a random mark after it.

        A template that strips texts strips this one too."""
        last, mark = messages[-1], secrets.token_hex(_MARK_BYTES)
        content = last.content or ""
        marked = [*messages[:-1], replace(last, content=f"{content}{mark} ")]
        text = self.text(marked, tools, replace(asked, continues=False, begins_turn=False))
        end = text.rfind(mark)
        if end < 0:
            raise invalid(
                "messages", "The model's chat template does not show the last message, so it cannot be continued."
            )
        is_stripped = text[end + len(mark) :][:1] != " "
        blanks = len(content) - len(content.rstrip()) if is_stripped and content.strip() else 0
        return replace_tainted(text[: end - blanks], mark, "")  # a template may show a message twice

    def unread(self, asked: Rendering) -> Iterator[str]:
        """Yield the hints that have no effect on this model's prompts, by field."""
        return self._variables.unread(asked)

    def _rendered(
        self, messages: Sequence[Turn], tools: Sequence[Tool], values: Mapping[str, Value], *, begins_turn: bool
    ) -> str:
        offered = [tool.as_json() for tool in tools] if tools else None
        refusals = []
        for form in self._conversation.forms(messages):
            try:
                return self._render(form, offered, values, begins_turn=begins_turn)
            except TemplateRefusal as refusal:
                refusals.append(refusal)
        raise TemplateRefusal(refusals[0].reason)

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        values: Mapping[str, Value] | None = None,
        *,
        begins_turn: bool = True,
    ) -> str:
        if self._template is None:
            raise TemplateRefusal("This model has no chat template.")
        return self._template.render(messages, tools, values, begins_turn=begins_turn)

    def _read_template(self, card: ModelCard) -> ChatTemplate | None:
        if card.chat_template is None:
            self.problem = "it has no chat template"
            return None
        try:
            return ChatTemplate(card.chat_template, bos_token=card.bos_token or "", eos_token=card.eos_token or "")
        except TemplateRefusal as refusal:
            self.problem = refusal.reason
            return None
