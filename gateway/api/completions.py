"""`POST /v1/chat/completions`: a conversation through the model's own template.

`POST /v1/completions`: prompts as they are, one job each; their choices stand one after the other.

Log-probabilities in OpenAI's two shapes: a list of tokens for chat, parallel lists for plain completions.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from fairlane.gateway.openai.requests import ChatRequest, CompletionRequest, parse_chat, parse_completion
from fairlane.gateway.openai.wire import MAX_SEQUENCES
from fairlane.gateway.requests.prepare import Kind, Tokens
from fairlane.gateway.text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import PositionLogprobs

LOGPROB_MIN = -9999.0
"""What stands for a token that cannot come: JSON has no infinity, and OpenAI says it so."""


class Vocabulary(Protocol):
    """What token ids stand for; `gateway.text.tokenizer.TextModel` is one."""

    def token_text(self, token_id: int) -> str:
        """The token alone, as text; half a character reads U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token alone, as bytes."""


def chat_logprobs(
    vocabulary: Vocabulary, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]
) -> dict[str, Any]:
    """`logprobs` of a chat choice or of one of its chunks. Both sequences have one entry per token."""
    content = []
    for token_id, drawn in zip(token_ids, logprobs, strict=True):
        top = [_named(vocabulary, other, logprob) for other, logprob in drawn.top]
        content.append({**_named(vocabulary, token_id, drawn.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    vocabulary: Vocabulary, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], text_offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice or chunk. `text_offset`: characters of the choice before these tokens."""
    tokens = [vocabulary.token_text(token_id) for token_id in token_ids]
    lengths = [len(token) for token in tokens]
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(drawn.logprob) for drawn in logprobs],
        "top_logprobs": [
            {vocabulary.token_text(other): _finite(logprob) for other, logprob in drawn.top} for drawn in logprobs
        ],
        "text_offset": list(itertools.accumulate(lengths, initial=text_offset))[: len(tokens)],
    }


def _named(vocabulary: Vocabulary, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": vocabulary.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(vocabulary.token_bytes(token_id)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)


CHAT_PATH = "/v1/chat/completions"


def _chat_prompts(text: TextModel, request: ChatRequest) -> list[Tokens]:
    return [text.chat_prompt(request.messages)]


def _logprobs(
    text: TextModel, token_ids: Tokens, logprobs: tuple[PositionLogprobs, ...], text_offset: int
) -> dict[str, Any]:
    return chat_logprobs(text, token_ids, logprobs)  # chat tells no offsets


CHAT = Kind(
    name="chat",
    id_prefix="chatcmpl-",
    operation="chat",
    prompt_param="messages",
    most_prompts=1,
    parse=parse_chat,
    prompts=_chat_prompts,
    logprobs=_logprobs,
)


COMPLETION_PATH = "/v1/completions"


def _completion_prompts(text: TextModel, request: CompletionRequest) -> list[Tokens]:
    return [text.prompt(prompt) for prompt in request.prompts]


COMPLETION = Kind(
    name="completion",
    id_prefix="cmpl-",
    operation="text_completion",
    prompt_param="prompt",
    most_prompts=MAX_SEQUENCES,
    parse=parse_completion,
    prompts=_completion_prompts,
    logprobs=completion_logprobs,
)
