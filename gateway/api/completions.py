"""Chat completions, rendered with the model's chat template, and plain completions, with one job per prompt."""

from dataclasses import replace
from typing import Literal

from fairlane.gateway.answers.choices import ChatAnswer, CompletionAnswer
from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.request_bodies import MAX_SEQUENCES
from fairlane.gateway.dialects.openai.requests import ChatRequest, CompletionRequest, parse_completion
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.prepare import Kind, Tokens, conversation

CHAT_PATH = "/v1/chat/completions"
CHAT = Kind(
    operation="chat",
    prompt_param="messages",
    most_prompts=1,
    parse=parse_chat,
    prompts=conversation,
    answer=ChatAnswer,
)
ReasoningField = Literal["reasoning_content", "reasoning", "both"]


def chat(reasoning_field: ReasoningField) -> Kind[ChatRequest]:
    """Return the kind of chats whose answers carry reasoning in this field."""
    fields = ("reasoning_content", "reasoning") if reasoning_field == "both" else (reasoning_field,)
    return replace(CHAT, answer=type("ChatAnswer", (ChatAnswer,), {"REASONING": fields}))


def _completion_prompts(text: TextModel, request: CompletionRequest) -> list[Tokens]:
    if request.suffix:
        return [text.fill_in(prompt, request.suffix, marked=request.is_marked) for prompt in request.prompts]
    last = request.truncate_prompt_tokens
    return [text.prompt(prompt, marked=request.is_marked, last=last) for prompt in request.prompts]


COMPLETION_PATH = "/v1/completions"
COMPLETION = Kind(
    operation="text_completion",
    prompt_param="prompt",
    most_prompts=MAX_SEQUENCES,
    parse=parse_completion,
    prompts=_completion_prompts,
    answer=CompletionAnswer,
)
