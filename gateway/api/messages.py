"""`POST /v1/messages`: a conversation in Anthropic's format, rendered with the model's chat template.

`POST /v1/messages/count_tokens`: the number of tokens of its prompt. Nothing is generated, reserved or charged."""

from dataclasses import replace

from starlette.types import Receive, Scope, Send

from fairlane.gateway.answers.messages import MessagesAnswer, error_frame
from fairlane.gateway.dialects.anthropic.requests import parse_count, parse_messages
from fairlane.gateway.errors import ANTHROPIC_PATH
from fairlane.gateway.http import body_budget, response
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.middleware.tenant import Journal
from fairlane.gateway.pipeline.admission import too_long
from fairlane.gateway.pipeline.bounds import Bounds
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


class CountTokens:
    """`POST /v1/messages/count_tokens`. Bodies are parsed and bounded as for `MESSAGES`."""

    def __init__(self, preparer: Preparer, bounds: Bounds) -> None:
        self._preparer = preparer
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope["state"]["caller"]
        journal: Journal = scope["state"]["journal"]
        hold = scope["state"][body_budget.STATE]
        try:
            body = await read_body(
                receive,
                scope["headers"],
                max_bytes=self._bounds.room.most_bytes(_COUNTED.most_prompts),
                timeout_s=self._bounds.body_timeout_s,
                arrived=scope["state"][response.STATE].take_body(),
                hold=hold,
                tenant=caller.tenant_id,
            )
            journal.body_bytes = len(body)
            request, model, [prompt] = await self._preparer.understand(_COUNTED, body, caller)
        finally:
            hold.release()
        if len(prompt) > model.context_length:  # as for `POST /tokenize`
            raise too_long(len(prompt), request, model, prompt_param=_COUNTED.prompt_param)
        await send_json(send, {"input_tokens": len(prompt)}, [])
