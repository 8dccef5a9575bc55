"""Reads the body of a chat into a valid request."""

from typing import Any

from fairlane.gateway.dialects.media_marks import Mark
from fairlane.gateway.dialects.openai.chat_tools import read_functions
from fairlane.gateway.dialects.openai.message_parts import Part, medium_of, read_parts
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT
from fairlane.gateway.dialects.openai.reading import Reading, checked
from fairlane.gateway.dialects.openai.rendering import USUAL_RENDERING, Rendering, with_effort, with_switch
from fairlane.gateway.dialects.openai.request_bodies import ChatBody, Message
from fairlane.gateway.dialects.openai.requests import ChatRequest, Turn, common_fields
from fairlane.gateway.dialects.openai.tools import ToolCall, text_input
from fairlane.gateway.errors import invalid

# Media in messages of these roles is an error; in others it is omitted.
_ASKING_ROLES = frozenset({"system", "developer", "user"})
# Fields that `Rendering` has, besides the effort.
_RENDERING_FIELDS = frozenset({"chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message"})
_RENDERING_FIELDS |= {"add_special_tokens"}
# Other servers' fields for the reasoning.
_SWITCHES = frozenset({"enable_thinking", "thinking", "reasoning"})


def parse_chat(body: bytes, reading: Reading | None = None) -> ChatRequest:
    """Parse a chat body. Raises ApiError naming the field."""
    return read_chat(checked(ChatBody, NEUTRAL_CHAT, body, reading), reading or Reading())


def read_chat(chat: ChatBody, reading: Reading) -> ChatRequest:
    """Convert a body whose fields are valid one by one. Raises ApiError naming the field."""
    if chat.top_logprobs and not chat.logprobs:
        raise invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`.")
    tools, choice = read_functions(chat.functions, chat.function_call, chat.tools, chat.tool_choice)
    more: dict[str, Any] = {}
    if chat.functions:  # whose answers hold one call at most
        more = {"tools_param": "functions", "choice_param": "function_call", "parallel_tool_calls": False}
        more["schema_param"] = "functions.[{index}].{field}"
    return ChatRequest(
        messages=tuple([_turn(message, index, reading) for index, message in enumerate(chat.messages)]),
        tools=tools,
        tool_choice=choice,
        rendering=with_effort(_switched(chat, _rendering(chat)), chat.reasoning_effort, "reasoning_effort"),
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        includes_reasoning=chat.include_reasoning is not False and not (chat.reasoning and chat.reasoning.exclude),
        **{**common_fields(chat), **more},
    )


def _rendering(chat: ChatBody) -> Rendering:
    last = chat.messages[-1]
    is_begun = last.role == "assistant" and bool(last.prefix or last.partial)
    if _RENDERING_FIELDS.isdisjoint(chat.model_fields_set) and not is_begun:
        return USUAL_RENDERING
    continues = bool(chat.continue_final_message) or is_begun
    if continues and chat.add_generation_prompt:
        raise invalid("add_generation_prompt", "`add_generation_prompt` contradicts `continue_final_message`.")
    if continues and (last.tool_calls or last.function_call):
        raise invalid("continue_final_message", "`continue_final_message` cannot continue a message with calls.")
    return Rendering(
        variables=chat.chat_template_kwargs or {},
        documents=tuple(chat.documents or ()),
        begins_turn=chat.add_generation_prompt is not False,
        continues=continues,
        is_marked=bool(chat.add_special_tokens),
    )


def _switched(chat: ChatBody, asked: Rendering) -> Rendering:
    if _SWITCHES.isdisjoint(chat.model_fields_set):
        return asked
    asked = with_switch(asked, chat.enable_thinking, "enable_thinking")
    if chat.thinking is not None:
        asked = with_switch(asked, chat.thinking.type != "disabled", "thinking")
    if chat.reasoning is None:
        return asked
    return with_effort(
        with_switch(asked, chat.reasoning.enabled, "reasoning"), chat.reasoning.effort, "reasoning.effort"
    )


def _turn(message: Message, index: int, reading: Reading) -> Turn:
    role, content, thought = message.role, message.content, ""
    calls = _calls(message, index) if message.tool_calls or message.function_call is not None else ()
    if isinstance(content, list):
        param, is_history = f"messages.[{index}].content", role not in _ASKING_ROLES

        def place(part: Part) -> Mark:
            return reading.found.mark(medium_of(part, param, may_omit=is_history))

        content, thought = read_parts(content, place, is_history=is_history)
    elif content is None:
        if role == "user" and "content" not in message.model_fields_set:
            raise invalid(f"messages.[{index}].content", "`content` is required in a message of this role.")
        content = message.refusal or message.audio
    return Turn(
        role=role,
        content=(content or None) if calls else content,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=calls,
        reasoning=message.reasoning_content
        or message.reasoning
        or thought
        or message.reasoning_details
        or message.thinking_blocks
        or None,
    )


def _calls(message: Message, index: int) -> tuple[ToolCall, ...]:
    calls: tuple[ToolCall, ...] = ()
    for place, call in enumerate(message.tool_calls or ()):
        if call.custom is not None:
            calls += (ToolCall(name=call.custom.name or "", arguments=text_input(call.custom.input), id=call.id),)
        elif call.function is not None:
            calls += (ToolCall(name=call.function.name or "", arguments=call.function.arguments, id=call.id),)
        else:
            param = f"messages.[{index}].tool_calls.[{place}].function"
            raise invalid(param, f"`{param}` is required.")
    if message.function_call is not None and message.function_call.name:  # the older form of a single call
        calls += (ToolCall(name=message.function_call.name, arguments=message.function_call.arguments),)
    if calls and message.role != "assistant":
        field = "tool_calls" if message.tool_calls else "function_call"
        raise invalid(f"messages.[{index}].{field}", "Only a message of the role 'assistant' can contain calls.")
    return calls
