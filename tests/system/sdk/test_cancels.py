"""Clients that leave: nothing goes on without them, and what they were told is charged once."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.system.harness import ADMIN_KEY, MODEL, Server
from tests.support.system.sdk import ASKED, BANANAS, COMPLETED, RESPONDED
from tests.system.sdk.conftest import NewTenant

pytestmark = [pytest.mark.system, pytest.mark.anyio]

LONG: dict[str, Any] = {"messages": BANANAS, "max_tokens": 600, "extra_body": {"ignore_eos": True}}
LONG_RESPONSE: dict[str, Any] = {**RESPONDED, "input": BANANAS[0]["content"], "max_output_tokens": 600}
LIMIT_S = 30


@dataclass
class Account:
    """A tenant of one test."""

    server: Server
    id: str
    key: str

    def is_submitted(self) -> bool:
        """Whether the tenant's request has a record: until then a client that leaves is never charged."""
        with self.server.admin() as admin:
            return bool(admin.get("/requests", params={"tenant": self.id}).json()["data"])

    def settled(self) -> int:
        """Tokens that were charged, once nothing is held any more and nothing goes on."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            with self.server.admin() as admin:
                day = admin.get(f"/tenants/{self.id}/quota").json()["limits"]["tokens_per_day"]
                total = admin.get(f"/tenants/{self.id}/usage").json()["total"]
            if day["reserved"] == 0 and in_flight(self.server) == 0 and total["requests"]:
                assert day["used"] == total["prompt_tokens"] + total["output_tokens"]
                assert total["requests"] == 1
                return int(total["output_tokens"])
            time.sleep(0.05)  # polled: nothing tells a client that it was settled
        raise AssertionError("not settled")


def in_flight(server: Server) -> float:
    """Requests that the gateway has admitted and not ended."""
    page = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {ADMIN_KEY}"}).raise_for_status()
    families = text_string_to_metric_families(page.text)
    return sum(s.value for family in families for s in family.samples if s.name == "fairlane_gateway_in_flight")


@pytest.fixture
def new_account(server: Server, new_tenant: NewTenant) -> Callable[[], Account]:
    def make() -> Account:
        tenant = new_tenant(limits={"tokens_per_day": 100_000})
        return Account(server, tenant.id, tenant.key)

    return make


@pytest.fixture
def account(new_account: Callable[[], Account]) -> Account:
    return new_account()


def test_a_stream_that_is_closed(server: Server, account: Account) -> None:
    with server.sdk(account.key) as client:
        stream = client.chat.completions.create(**{**ASKED, **LONG}, stream=True)
        for _ in range(4):
            next(stream)
        stream.close()

    assert 3 <= account.settled() < 600


def test_a_helper_that_is_left(server: Server, account: Account) -> None:
    asked = {**ASKED, **LONG}
    with server.sdk(account.key) as client, client.chat.completions.stream(**asked) as stream:
        for event in stream:
            if event.type == "content.delta":
                break

    assert 1 <= account.settled() < 600


def test_a_response_that_is_left(server: Server, account: Account) -> None:
    asked = {**COMPLETED, "max_tokens": 600, "extra_body": {"ignore_eos": True}}
    with (
        server.sdk(account.key) as client,
        client.completions.with_streaming_response.create(**asked, stream=True) as response,
    ):
        next(response.iter_lines())

    assert 1 <= account.settled() < 600


def left_events(client: openai.OpenAI) -> None:
    stream = client.responses.create(**LONG_RESPONSE, stream=True)
    next(event for event in stream if event.type == "response.output_text.delta")
    stream.close()


def left_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(**LONG_RESPONSE) as stream:
        next(event for event in stream if event.type == "response.output_text.delta")


@pytest.mark.parametrize("leave", [left_events, left_helper])
def test_events_of_a_response_that_are_left(
    server: Server, account: Account, leave: Callable[[openai.OpenAI], None]
) -> None:
    with server.sdk(account.key) as client:
        leave(client)

    assert 1 <= account.settled() < 600


def test_a_stream_of_messages_that_is_left(server: Server, account: Account) -> None:
    with (
        server.anthropic_sdk(account.key) as client,
        client.messages.stream(model=MODEL, messages=cast(Any, BANANAS), max_tokens=600) as stream,
    ):
        next(stream.text_stream)

    assert 1 <= account.settled() < 600


def test_a_timeout_in_a_plain_answer(server: Server, new_account: Callable[[], Account]) -> None:
    patient = {"x-stainless-read-timeout": "60"}  # else the server's own 504 may come first
    for timeout_s in (0.5, 2.0, 8.0):  # a busy gateway may not have submitted the request in the first
        account = new_account()
        with server.sdk(account.key, max_retries=0) as client, pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**{**ASKED, **LONG, "timeout": timeout_s, "extra_headers": patient})
        if account.is_submitted():
            break

    assert account.settled() < 600


def test_a_client_that_is_closed(server: Server, account: Account) -> None:
    client = server.sdk(account.key)
    next(client.chat.completions.create(**{**ASKED, **LONG}, stream=True))
    client.close()

    assert account.settled() < 600


async def test_a_task_that_is_cancelled(server: Server, account: Account) -> None:
    async with server.async_sdk(account.key) as client:
        asking = asyncio.create_task(client.chat.completions.create(**{**ASKED, **LONG}))
        await until_submitted(account)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    assert account.settled() < 600


async def test_an_asynchronous_stream_that_is_left(server: Server, account: Account) -> None:
    async with (
        server.async_sdk(account.key) as client,
        await client.chat.completions.create(**{**ASKED, **LONG}, stream=True, n=3) as stream,
    ):
        await anext(aiter(stream))

    assert account.settled() < 1_800


async def test_calls_and_forms_are_left_as_easily(server: Server, account: Account) -> None:
    asked = {**ASKED, "max_tokens": 600, "extra_body": {"guided_regex": "[a-z ]{2000}"}}
    async with (
        server.async_sdk(account.key) as client,
        await client.chat.completions.create(**asked, stream=True) as stream,
    ):
        await anext(aiter(stream))

    assert account.settled() < 600


async def until_submitted(account: Account) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not account.is_submitted():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
