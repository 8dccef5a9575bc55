"""Chat as tenants and the official SDK see it."""

import json
from collections.abc import AsyncIterator

import pytest

from fairlane.gateway.api.completions import CHAT as KIND
from fairlane.gateway.text.tokenizer import TextModel
from tests.support.gateway.served import ASKED, CHAT, SAID, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant()
        yield opened


async def test_a_plain_answer_has_text_usage_and_terms(served: Served) -> None:
    answer = await served.post(CHAT, ASKED)

    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["choices"][0]["message"]["content"] == SAID
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] == len(served.worker.script)
    assert document["service_tier"] == "default"
    assert answer.headers["x-fairlane-lane"] == "latency"
    assert answer.headers["x-fairlane-class"] == "best-effort"
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_job_says_which_tenant_it_is_of_by_when_that_was_made(served: Served) -> None:
    await served.post(CHAT, ASKED)
    before = served.worker.seen[-1].job
    await served.resources.tenants.delete("acme")
    served.resources.authenticator.forget()
    await served.tenant("acme")
    await served.post(CHAT, ASKED)
    after = served.worker.seen[-1].job

    assert (before.tenant, after.tenant) == ("acme", "acme")
    assert 0 < before.tenant_since < after.tenant_since


async def test_a_chats_prompt_tells_of_the_tools_that_may_be_called() -> None:
    tools = [{"type": "function", "function": {"name": name, "description": f"Tells {name}"}} for name in ("a1", "b2")]
    model = TextModel(tool_card("Hermes"))

    def prompt(choice: object) -> str:
        body = json.dumps({**ASKED, "tools": tools, "tool_choice": choice}).encode()
        [tokens] = KIND.prompts(model, KIND.parse(body, 0))
        return b"".join(map(model.token_bytes, tokens)).decode()

    for choice, told in [
        ("auto", ["a1", "b2"]),
        ("none", []),
        ({"type": "function", "function": {"name": "b2"}}, ["b2"]),
    ]:
        assert [name for name in ("a1", "b2") if f"Tells {name}" in prompt(choice)] == told
