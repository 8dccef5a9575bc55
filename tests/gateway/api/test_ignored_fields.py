"""Fields that have no effect: named in a header of the answer, or refused by the tenant's setting."""

from typing import Any

import pytest

from tests.support.gateway.served import Served, serving, settings

pytestmark = pytest.mark.anyio
TURNS = [{"role": "user", "content": "Hi"}]
IGNORED = "x-fairlane-ignored"
BODIES = [
    ("/v1/chat/completions", {"messages": TURNS}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": TURNS}),
]


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_they_are_named_in_a_header(served: Served, path: str, body: dict[str, Any], stream: bool) -> None:
    answer = await served.post(path, {"model": "tiny", **body, "unheard_of": 1, "nothing": None, "stream": stream})

    assert answer.status_code == 200
    assert answer.headers[IGNORED] == "unheard_of"


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_tenant_may_have_them_refused(served: Served, path: str, body: dict[str, Any]) -> None:
    await served.tenant("strict", unknown_fields="refuse")

    refused = await served.post(path, {"model": "tiny", **body, "unheard_of": 1}, tenant="strict")
    served_plain = await served.post(path, {"model": "tiny", **body, "unheard_of": None}, tenant="strict")

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "unheard_of")
    assert served_plain.status_code == 200
    assert IGNORED not in served_plain.headers


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
LOOKED = [*TURNS, {"role": "tool", "tool_call_id": "1", "content": [IMAGE]}]


async def test_an_image_that_a_tool_returned_is_named_or_refused(served: Served, valkey_url: str) -> None:
    omitted = await served.post("/v1/chat/completions", {"model": "tiny", "messages": LOOKED})
    counted = await served.post("/tokenize", {"model": "tiny", "messages": LOOKED})
    async with serving(settings(valkey_url, section={"images_in_tool_results": "refuse"})) as strict:
        await strict.tenant()
        refused = await strict.post("/v1/chat/completions", {"model": "tiny", "messages": LOOKED})

    assert omitted.headers[IGNORED] == "messages.content.image_url"
    assert counted.json()["count"] == omitted.json()["usage"]["prompt_tokens"]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages.[1].content")


async def test_a_prompts_tokens_are_counted_whatever_else_is_sent(served: Served) -> None:
    counted = await served.post("/v1/messages/count_tokens", {"model": "tiny", "messages": TURNS, "unheard_of": 1})
    tokenized = await served.post("/tokenize", {"model": "tiny", "messages": TURNS, "unheard_of": 1})

    assert (counted.status_code, tokenized.status_code) == (200, 200)
