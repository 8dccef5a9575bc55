"""What tests of the Responses API look at: streams as the official SDK reads them, and what the model is asked."""

from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.gateway.served import Served

RESPONSES = "/v1/responses"
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


async def events(served: Served, **asked: Any) -> list[ResponseStreamEvent]:
    """All events of a stream, each of a type that the SDK knows."""
    async with served.sdk() as sdk:
        stream = await sdk.responses.create(stream=True, **asked)
        return [EVENT.validate_python(event.model_dump(by_alias=True), strict=True) async for event in stream]


def prompt(served: Served) -> str:
    """What the model was last asked."""
    model = next(iter(served.resources.fleet.cache.models.values()))
    return b"".join(map(model.text.token_bytes, served.worker.seen[-1].job.prompt)).decode()
