"""Responses in Anthropic's format, as published in OpenAPI; `gateway.answers.messages` builds them."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.control.admin.views import LimitBlockView
from fairlane.gateway.control.openapi.schemas import Limited


class TextContent(TypedDict):
    """Text of the answer."""

    type: Literal["text"]
    text: str


class ThinkingContent(TypedDict):
    """The model's thinking; empty if the request omits it."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(TypedDict):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(TypedDict):
    """Charged tokens of a request; `input_tokens` and `cache_read_input_tokens` together are its prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard", "priority", "batch"]


class AnthropicMessage(TypedDict):
    """A message; a stream sends it as events, from `message_start` to `message_stop`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    fairlane: NotRequired[Limited]


class TokenCount(TypedDict):
    """The number of a prompt's tokens."""

    input_tokens: int


class AnthropicErrorBody(TypedDict):
    """An error: Anthropic's type, Fairlane's machine-readable code, and the field or limit that caused it."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
        "timeout_error",
    ]
    message: str
    code: str
    param: NotRequired[str]
    limit: NotRequired[LimitBlockView]


class AnthropicError(TypedDict):
    """The error response on Anthropic's paths, also within a stream."""

    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str | None
