"""The JSON that the tenant API answers with in Anthropic's words, as OpenAPI shows it; `gateway.answers.messages`
makes it."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.control.admin.views import LimitBlockView
from fairlane.gateway.control.openapi.schemas import Limited


class TextContent(TypedDict):
    """What the model says."""

    type: Literal["text"]
    text: str


class ThinkingContent(TypedDict):
    """What the model thinks; empty where the request wants it left out."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(TypedDict):
    """Tokens of a request, as they are charged: those of the prompt are `input_tokens` and `cache_read_input_tokens`
    together."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard", "priority", "batch"]


class AnthropicMessage(TypedDict):
    """A message; a stream tells it in events, from `message_start` to `message_stop`."""

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
    """How many tokens a prompt has."""

    input_tokens: int


class AnthropicErrorBody(TypedDict):
    """What went wrong: Anthropic's type, and our own code for programs, the field or limit that is the cause."""

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
    """Every refusal on Anthropic's paths, in a plain answer and in a stream."""

    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str | None
