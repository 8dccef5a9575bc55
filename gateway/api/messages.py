"""`POST /v1/messages`: a conversation in Anthropic's format, and token counting."""

from dataclasses import replace

from fairlane.gateway.answers.messages import MessagesAnswer, error_frame
from fairlane.gateway.dialects.anthropic.requests import MessagesRequest, parse_count, parse_messages
from fairlane.gateway.errors import ANTHROPIC_PATH
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.prepare import Kind, conversation

MESSAGES_PATH = ANTHROPIC_PATH
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"
MESSAGES = Kind(
    operation="chat",
    prompt_param="messages",
    most_prompts=1,
    parse=parse_messages,
    prompts=conversation,
    answer=MessagesAnswer,
    error_frame=error_frame,
)
_COUNTED = replace(MESSAGES, parse=parse_count)


async def counted(_: bytes, __: Caller) -> Kind[MessagesRequest]:
    """Return the kind of `POST /v1/messages/count_tokens`."""
    return _COUNTED
