"""Answers that a limit or a stop string cuts in the middle of a character or of a call."""

from typing import Any

import pytest

from tests.support.gateway.served import CHAT, COMPLETIONS, Served

pytestmark = pytest.mark.anyio
TURNS = [{"role": "user", "content": "Hi"}]
PATHS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TURNS},
    COMPLETIONS: {"prompt": "Hi"},
    "/v1/messages": {"messages": TURNS},
    "/v1/responses": {"input": "Hi"},
}
SAYS = "Yes 🙈"


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_character_that_the_limit_cuts_is_not_sent(served: Served, path: str, stream: bool) -> None:
    served.worker.say(SAYS)
    most = len(served.worker.script) - 2  # one less than its last character has
    limit = "max_output_tokens" if "input" in PATHS[path] else "max_tokens"

    answer = await served.post(path, {"model": "tiny", **PATHS[path], limit: most, "stream": stream})

    assert answer.status_code == 200
    assert "Y" in answer.text
    assert "\ufffd" not in answer.text
    assert r"\ufffd" not in answer.text
