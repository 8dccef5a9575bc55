"""An output limit beyond the context: cut to what is left, and named in a header."""

import re
from typing import Any

import httpx
import pytest

from tests.support.gateway.served import Served

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
pytestmark = pytest.mark.anyio
TURNS = [{"role": "user", "content": "Hi"}]
IGNORED = "x-fairlane-ignored"
BEYOND = 32_000
WORDS = (
    re.compile(r"This model's maximum context length is \d+ tokens"),
    re.compile(r"prompt is too long[^0-9]*\d+ tokens? > \d+"),
)
"""By which clients of OpenAI's API, and of Anthropic's, recognise the refusal and shorten the conversation."""
BODIES = [
    (CHAT, {"messages": TURNS}, "max_tokens"),
    (CHAT, {"messages": TURNS}, "max_completion_tokens"),
    (COMPLETIONS, {"prompt": "Hi"}, "max_tokens"),
    (RESPONSES, {"input": "Hi"}, "max_output_tokens"),
    (MESSAGES, {"messages": TURNS}, "max_tokens"),
]


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


async def ask(served: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    return await served.post(path, {"model": "tiny", **body})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "field"), BODIES)
async def test_it_is_cut_to_what_is_left_and_named(
    served: Served, path: str, body: dict[str, Any], field: str, stream: bool
) -> None:
    unstated = await ask(served, path, body)
    left = served.worker.seen[-1].job.max_tokens

    answer = await ask(served, path, {**body, field: BEYOND, "stream": stream})

    assert (unstated.status_code, answer.status_code) == (200, 200)
    assert IGNORED not in unstated.headers
    assert answer.headers[IGNORED] == field
    assert served.worker.seen[-1].job.max_tokens == left


async def test_what_fits_is_not_named(served: Served) -> None:
    answer = await ask(served, CHAT, {"messages": TURNS, "max_tokens": 40})

    assert IGNORED not in answer.headers


async def test_each_of_several_prompts_gets_what_it_has_room_for(served: Served) -> None:
    await ask(served, COMPLETIONS, {"prompt": "x" * 200})
    left = served.worker.seen[-1].job.max_tokens

    answer = await ask(served, COMPLETIONS, {"prompt": ["x", "x" * 200], "max_tokens": left + 1})

    assert answer.headers[IGNORED] == "max_tokens"
    assert sorted(lease.job.max_tokens for lease in served.worker.seen[-2:]) == [left, left + 1]


@pytest.mark.parametrize(("path", "body", "field"), BODIES)
async def test_a_prompt_beyond_the_context_is_refused_by_its_own_field(
    served: Served, path: str, body: dict[str, Any], field: str
) -> None:
    (prompt,) = body
    long = "x" * 20_000
    given = [{"role": "user", "content": long}] if prompt == "messages" else long

    answer = await ask(served, path, {prompt: given, field: BEYOND})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", prompt)
    assert WORDS[path == MESSAGES].search(error["message"])
