"""Chat completions, rendered with the model's chat template, and plain completions, with one job per prompt."""

from fairlane.gateway.answers.choices import ChatAnswer, CompletionAnswer
from fairlane.gateway.dialects.openai.request_bodies import MAX_SEQUENCES
from fairlane.gateway.dialects.openai.requests import CompletionRequest, parse_chat, parse_completion
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


def _completion_prompts(text: TextModel, request: CompletionRequest) -> list[Tokens]:
    return [text.prompt(prompt) for prompt in request.prompts]


COMPLETION_PATH = "/v1/completions"
COMPLETION = Kind(
    operation="text_completion",
    prompt_param="prompt",
    most_prompts=MAX_SEQUENCES,
    parse=parse_completion,
    prompts=_completion_prompts,
    answer=CompletionAnswer,
)
