"""`close_json` on every call for generation: it reaches a worker that closes outputs, and is a hint for others."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.support.gateway.served import CHAT, COMPLETIONS, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SAID = [{"role": "user", "content": "What?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": SAID, "response_format": {"type": "json_object"}}),
    "a tool": (CHAT, {"messages": SAID, "tools": [TOOL]}),
    "completions": (COMPLETIONS, {"prompt": "a", "structured_outputs": {"json_object": True}}),
    "responses": ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_object"}}}),
    "messages": ("/v1/messages", {"messages": SAID, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
}


@pytest.fixture(params=[(), ("close_json",)], ids=["our engine", "another"])
async def served(valkey_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    card = msgspec.structs.replace(tool_card("Hermes"), lacks=request.param or msgspec.UNSET)
    async with serving(settings(valkey_url), card=card) as opened:
        await opened.tenant()
        yield opened


async def test_it_reaches_the_worker_or_is_named_as_ignored(served: Served, request: pytest.FixtureRequest) -> None:
    closes = "our engine" in request.node.name
    for path, body in CALLS.values():
        for asked in (True, False, None):
            answer = await served.post(path, {"model": "Hermes", **body, "close_json": asked})
            job = served.worker.seen[-1].job

            assert answer.status_code == 200, answer.text
            assert job.close_json is bool(asked and closes)
            assert bool(job.grammar) is (job.close_json or "tools" not in body)
            assert answer.headers.get("x-fairlane-ignored", "") == ("close_json" if asked and not closes else "")
            served.worker.seen.clear()
