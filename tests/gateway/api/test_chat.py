"""Chat as tenants and the official SDK see it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway.served import ASKED, CHAT, SAID, Served, serving, settings

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
