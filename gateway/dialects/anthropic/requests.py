"""Converts a valid Anthropic body to a chat request.

Adjacent turns of one role are merged, since many chat templates require alternating roles."""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace

from fairlane.gateway.dialects.anthropic.request_bodies import (
    NEUTRAL_MESSAGES,
    NEUTRAL_PROMPT,
    ClearThinking,
    KeptTurns,
    MessagesBody,
    PromptBody,
    ThinkingBody,
    ToolChoiceBody,
)
from fairlane.gateway.dialects.anthropic.tools import ClientTool, CustomTool
from fairlane.gateway.dialects.anthropic.turns import turns_of
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.rendering import USUAL_RENDERING, Rendering
from fairlane.gateway.dialects.openai.requests import ChatRequest, Turn, merge_turns, stated_fields
from fairlane.gateway.dialects.openai.tools import Mode, ToolChoice, checked_choice, served_tools
from fairlane.gateway.errors import invalid

Display = Literal["hidden", "omitted", "shown"]
_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
# Claude Code starts its system prompt with a billing block that differs with every request. It is removed, since
# nothing after a difference is found in the prefix cache.
_ATTRIBUTION = "x-anthropic-billing-header:"


class MessagesRequest(ChatRequest, frozen=True, kw_only=True):
    """A valid `POST /v1/messages`."""

    # How thinking appears in the response: not at all, as an empty block, or as text.
    thinking: Display = "hidden"


def parse_messages(body: bytes, reading: Reading | None = None) -> MessagesRequest:
    """Parse a body. Raises ApiError naming the field."""
    asked = checked(MessagesBody, NEUTRAL_MESSAGES, body, reading)
    prompt = _prompt(asked, reading or Reading())
    if asked.service_tier == "standard_only":
        prompt["service_tier"] = "default"
    return MessagesRequest(max_tokens=asked.max_tokens, stop=tuple(filter(None, asked.stop_sequences or ())), **prompt)


def parse_count(body: bytes, reading: Reading | None = None) -> MessagesRequest:
    """Parse a body whose prompt is only counted."""
    return MessagesRequest(**_prompt(checked(PromptBody, NEUTRAL_PROMPT, body, reading), reading or Reading()))


def _prompt(body: PromptBody, reading: Reading) -> dict[str, Any]:
    may_call = body.tool_choice is None or body.tool_choice.type != "none"
    offered: list[CustomTool | ClientTool] = served_tools(
        body.tools or (), "tools.[{index}]", reading, may_call=may_call
    )
    tools = tuple([tool.tool() for tool in offered])
    choice = checked_choice(tools, _choice(body.tool_choice), "name")
    system = "\n".join(block.text for block in body.system or () if not block.text.startswith(_ATTRIBUTION))
    turns = [Turn(role="system", content=system)] if system else []
    for index, message in enumerate(body.messages):
        turns += turns_of(message, index, reading)
    for edit in (body.context_management and body.context_management.edits) or ():
        turns = _cleared(turns, edit)
    merged = merge_turns(turns, _belongs)
    continues = merged[-1].role == "assistant"
    if continues and merged[-1].tool_calls:
        raise invalid("messages", "The last of `messages` contains a call: its result is missing.")
    return {
        **stated_fields(body),
        "messages": tuple(merged),
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        "rendering": _rendering(body, continues=continues),
        "structure": _structure(body),
        "thinking": _display(body.thinking),
        "schema_param": "tools.[{index}].input_schema",
    }


def _choice(asked: ToolChoiceBody | None) -> ToolChoice:
    if asked is None:
        return ToolChoice()
    if (asked.name is not None) != (asked.type == "tool"):
        raise invalid("tool_choice.name", "`name` is only allowed with the type 'tool'.")
    return ToolChoice(_MODES[asked.type], None if asked.name is None else (asked.name,))


def _structure(body: PromptBody) -> Structure | None:
    asked = None if body.output_config is None else body.output_config.format
    if body.output_format is None:
        return None if asked is None else Structure("json_schema", asked.schema_, "output_config.format.schema")
    if asked is not None:
        raise invalid("output_format", "`output_format` and `output_config.format` are both given.")
    return Structure("json_schema", body.output_format.schema_, "output_format.schema")


def _rendering(body: PromptBody, *, continues: bool) -> Rendering:
    effort = None if body.output_config is None else body.output_config.effort
    variables = body.chat_template_kwargs or {}
    if effort is None and body.thinking is None and not continues and not variables:
        return USUAL_RENDERING
    reasons = None if body.thinking is None else body.thinking.type != "disabled"
    return Rendering(
        effort=effort,
        effort_param="output_config.effort",
        reasons=reasons,
        reasons_param="thinking",
        variables=variables,
        continues=continues,
    )


def _display(thinking: ThinkingBody | None) -> Display:
    if thinking is None or thinking.type == "disabled":
        return "hidden"
    return "omitted" if thinking.display == "omitted" else "shown"


def _cleared(turns: Sequence[Turn], edit: ClearThinking) -> list[Turn]:
    thought = [index for index, turn in enumerate(turns) if turn.reasoning is not None]
    kept = 1 if edit.keep is None else edit.keep.value if isinstance(edit.keep, KeptTurns) else len(thought)
    cleared = list(turns)
    for index in thought[: max(0, len(thought) - kept)]:
        cleared[index] = replace(cleared[index], reasoning=None)
    return cleared


def _belongs(group: Sequence[Turn], turn: Turn) -> bool:
    return group[-1].role == turn.role != "tool" and not group[-1].tool_calls
