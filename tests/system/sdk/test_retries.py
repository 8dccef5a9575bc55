"""When the SDK tries again by itself: as often and as late as it is told."""

from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from tests.support.ports import free_port
from tests.support.system.harness import Server
from tests.support.system.sdk import ASKED, COMPLETED, SAID, chat, complete, content
from tests.system.sdk.conftest import NewKey

pytestmark = [pytest.mark.system, pytest.mark.anyio]

ONE: dict[str, Any] = {"prompt": [504], "max_tokens": 1}


@dataclass
class Wire:
    """All answers that the SDK got, and what is done when one comes."""

    statuses: list[int] = field(default_factory=list)
    headers: list[httpx.Headers] = field(default_factory=list)
    on_refusal: Any = None

    def hear(self, answer: httpx.Response) -> None:
        self.statuses.append(answer.status_code)
        self.headers.append(answer.headers)
        if answer.is_error and self.on_refusal is not None:
            self.on_refusal()

    def sdk(self, server: Server, key: str, retries: int = 3) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(event_hooks={"response": [self.hear]})
        return server.sdk(key, max_retries=retries, http_client=http)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.mark.parametrize("asked", [{"temperature": 3}, {"model": "gpt-4"}, {"max_tokens": 0}], ids=str)
def test_what_is_wrong_is_asked_once(server: Server, key: str, wire: Wire, asked: dict[str, Any]) -> None:
    with wire.sdk(server, key) as client, pytest.raises(openai.APIStatusError):
        chat(client, **asked)

    assert len(wire.statuses) == 1


def test_a_wrong_key_is_tried_once(server: Server, wire: Wire) -> None:
    with wire.sdk(server, "fl-nobody-nothing") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()

    assert wire.statuses == [401]


def test_a_spent_day_is_not_waited_for(server: Server, new_key: NewKey, wire: Wire) -> None:
    with wire.sdk(server, new_key(limits={"tokens_per_day": 2})) as client:
        complete(client, **ONE)
        with pytest.raises(openai.RateLimitError):
            complete(client, **ONE)

    assert wire.statuses == [200, 429]


def test_a_taken_place_is_waited_for(server: Server, new_key: NewKey, wire: Wire) -> None:
    key = new_key(limits={"concurrent_requests": 1})
    with server.sdk(key) as holder, wire.sdk(server, key) as client:
        stream = holder.chat.completions.create(
            **{**ASKED, "max_tokens": 600}, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        wire.on_refusal = stream.close
        answer = client.chat.completions.with_raw_response.create(**ASKED)

    assert wire.statuses[0] == 429
    assert wire.statuses[-1] == 200
    assert answer.retries_taken == len(wire.statuses) - 1
    assert int(wire.headers[0]["retry-after-ms"]) >= 1
    assert content(answer.parse()) == SAID


def test_a_passed_deadline_is_not_tried_again(server: Server, key: str, wire: Wire) -> None:
    with wire.sdk(server, key) as client, pytest.raises(openai.APIStatusError):
        complete(client, max_tokens=4_000, extra_body={"deadline_ms": 5})

    assert len(wire.statuses) == 1


def test_a_timeout_is_the_sdks_own_error(server: Server, key: str) -> None:
    patient = {"x-stainless-read-timeout": "60"}  # the server is told so: its own word on a deadline may come first
    with server.sdk(key, max_retries=0, timeout=0.05) as client, pytest.raises(openai.APITimeoutError):
        complete(client, max_tokens=400, extra_body={"ignore_eos": True}, extra_headers=patient)


def test_an_address_without_a_server_is_a_connection_error(key: str) -> None:
    nobody = openai.OpenAI(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key=key, max_retries=0)
    with nobody as client, pytest.raises(openai.APIConnectionError):
        complete(client)


async def test_the_asynchronous_client_keeps_to_it_too(server: Server, new_key: NewKey) -> None:
    async with server.async_sdk(new_key(limits={"tokens_per_day": 2}), max_retries=3) as client:
        asked = {**COMPLETED, **ONE}
        await client.completions.create(**asked)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(**asked)

    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
