"""`POST /v1/chat/completions`: a conversation through the model's own template."""

from typing import Any

from gateway.logprobs import chat_logprobs
from gateway.prepare import Kind, Tokens
from gateway.schemas import ChatRequest, parse_chat
from gateway.text import TextModel
from scheduler.messages import TokenLogprob

PATH = "/v1/chat/completions"


def _prompts(text: TextModel, request: ChatRequest) -> list[Tokens]:
    return [text.chat_prompt(request.messages)]


def _logprobs(
    text: TextModel, token_ids: Tokens, logprobs: tuple[TokenLogprob, ...], text_offset: int
) -> dict[str, Any]:
    return chat_logprobs(text, token_ids, logprobs)  # chat tells no offsets


CHAT = Kind(
    name="chat",
    id_prefix="chatcmpl-",
    operation="chat",
    prompt_param="messages",
    most_prompts=1,
    parse=parse_chat,
    prompts=_prompts,
    logprobs=_logprobs,
)
