"""Responses in Anthropic's format, as published in OpenAPI; `gateway.answers.messages` builds them."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from pydantic.config import JsonDict
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.admin.views import LimitBlockView
from fairlane.gateway.control.openapi.schemas import Limited
from fairlane.gateway.dialects.anthropic.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from fairlane.gateway.errors import ANTHROPIC_TYPES

_ERROR_TYPES: JsonDict = {"enum": ["invalid_request_error", *dict.fromkeys(ANTHROPIC_TYPES.values())]}


class MessageUsage(TypedDict):
    """Charged tokens of a request; `input_tokens` and `cache_read_input_tokens` together are its prompt."""

    input_tokens: Annotated[int, about("Prompt tokens")]
    cache_creation_input_tokens: Annotated[int, about("Always 0")]
    cache_read_input_tokens: Annotated[int, about("Prompt tokens that were in a cache")]
    output_tokens: Annotated[int, about("Output tokens")]
    service_tier: Annotated[Literal["standard", "priority", "batch"], about("The granted service tier")]


class AnthropicMessage(TypedDict):
    """A message; a stream sends it as events, from `message_start` to `message_stop`."""

    id: Annotated[str, about("Identifier")]
    type: Annotated[Literal["message"], about("Type of this object")]
    role: Annotated[Literal["assistant"], about("The message's author")]
    model: Annotated[str, about("The model's name")]
    content: Annotated[list[TextBlock | ThinkingBlock | ToolUseBlock], about("Its blocks, in order")]
    stop_reason: Annotated[
        Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"],
        about("Why the message ended"),
    ]
    stop_sequence: Annotated[str | None, about("The stop sequence that matched; null: none")]
    usage: Annotated[MessageUsage, about("Charged tokens")]
    fairlane: NotRequired[Limited]


class PromptTokens(TypedDict):
    """The number of a prompt's tokens."""

    input_tokens: Annotated[int, about("Prompt tokens")]


class AnthropicErrorBody(TypedDict):
    """An error: Anthropic's type, Fairlane's machine-readable code, and the field or limit that caused it."""

    type: Annotated[str, Field(json_schema_extra=_ERROR_TYPES), about("Anthropic's type of the error")]
    message: Annotated[str, about("Human-readable message")]
    code: Annotated[str, about("Machine-readable error code, from the table of errors")]
    param: NotRequired[Annotated[str, about("The request's field that caused the error; null if none did")]]
    limit: NotRequired[Annotated[LimitBlockView, about("The limit that caused the error, if any")]]


class AnthropicError(TypedDict):
    """The error response on Anthropic's paths, also within a stream."""

    type: Annotated[Literal["error"], about("Type of this object")]
    error: Annotated[AnthropicErrorBody, about("The error")]
    request_id: Annotated[str | None, about("The request's id, as in the header `request-id`")]
