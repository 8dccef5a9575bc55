"""The calls that count a prompt's tokens: the body is read and bounded as for a generation, and nothing is charged."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.admission import too_long
from fairlane.gateway.pipeline.context import Bounds, RequestContext
from fairlane.gateway.pipeline.prepare import Kind, Preparer, ignored_header


@dataclass(eq=False)
class CountTokens:
    """The endpoint that counts the prompts of one kind of request."""

    preparer: Preparer
    bounds: Bounds
    kind_of: Callable[[bytes, Caller], Awaitable[Kind[Any]]]
    # Fields of the answer in addition to the count.
    shown: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, context: RequestContext) -> None:
        bounds = self.bounds
        try:
            body = await context.read_body(max_bytes=bounds.room.most_bytes(1), timeout_s=bounds.body_timeout_s)
            kind = await self.kind_of(body, context.caller)
            request, model, [prompt] = await self.preparer.understand(kind, body, context)
        finally:
            context.exchange.release()
        if len(prompt) > model.context_length:  # as for `POST /tokenize`
            raise too_long(len(prompt), request, model, prompt_param=kind.prompt_param)
        await send_json(context.send, {**self.shown, "input_tokens": len(prompt)}, ignored_header(request.ignored))
