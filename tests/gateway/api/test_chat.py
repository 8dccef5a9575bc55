"""Chat as tenants and the official SDK see it."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.gateway.answers import builder
from fairlane.gateway.answers.choices import ChatAnswer
from fairlane.gateway.api.completions import CHAT as KIND
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.model_text.tokenizer import TextModel
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


async def test_a_large_answer_is_built_outside_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    build = ChatAnswer.whole

    def whole(answer: ChatAnswer) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return build(answer)

    monkeypatch.setattr(ChatAnswer, "whole", whole)
    asked = {**ASKED, "logprobs": True, "top_logprobs": 1}
    small = await served.post(CHAT, asked)
    monkeypatch.setattr(builder, "LARGE_PARTS", 2 * len(served.worker.script) - 1)
    large = await served.post(CHAT, asked)

    assert threads[0] == threading.get_ident() != threads[1]
    assert large.json()["choices"] == small.json()["choices"]


async def test_a_job_says_which_tenant_it_is_of_by_when_that_was_made(served: Served) -> None:
    await served.post(CHAT, ASKED)
    before = served.worker.seen[-1].job
    await served.resources.accounts.tenants.delete("acme")
    served.resources.accounts.authenticator.forget()
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
        [tokens] = KIND.prompts(model, KIND.parse(body, Reading()))
        return b"".join(map(model.token_bytes, tokens)).decode()

    for choice, told in [
        ("auto", ["a1", "b2"]),
        ("none", []),
        ({"type": "function", "function": {"name": "b2"}}, ["b2"]),
    ]:
        assert [name for name in ("a1", "b2") if f"Tells {name}" in prompt(choice)] == told
