"""`POST /v1/messages`: a conversation in Anthropic's format, and token counting."""

from dataclasses import dataclass, replace

from fairlane.gateway.answers.messages import MessagesAnswer, error_frame
from fairlane.gateway.dialects.anthropic.requests import parse_count, parse_messages
from fairlane.gateway.errors import ANTHROPIC_PATH
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.pipeline.admission import too_long
from fairlane.gateway.pipeline.context import Bounds, RequestContext
from fairlane.gateway.pipeline.prepare import Kind, Preparer, conversation

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


@dataclass(eq=False)
class CountTokens:
    """`POST /v1/messages/count_tokens`. Bodies are parsed and bounded as for `MESSAGES`."""

    preparer: Preparer
    bounds: Bounds

    async def __call__(self, context: RequestContext) -> None:
        bounds = self.bounds
        try:
            max_bytes = bounds.room.most_bytes(_COUNTED.most_prompts)
            body = await context.read_body(max_bytes=max_bytes, timeout_s=bounds.body_timeout_s)
            request, model, [prompt] = await self.preparer.understand(_COUNTED, body, context.caller)
        finally:
            context.exchange.release()
        if len(prompt) > model.context_length:  # as for `POST /tokenize`
            raise too_long(len(prompt), request, model, prompt_param=_COUNTED.prompt_param)
        await send_json(context.send, {"input_tokens": len(prompt)}, [])
