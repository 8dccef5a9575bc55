"""What the official SDK makes of refusals: it waits as long as it is told and then succeeds, or does not try again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from fairlane.quotas.windows import Slicing
from tests.support.gateway.served import Served, serving, settings

pytestmark = pytest.mark.anyio

MINUTE_MS = 1_000
ASKED: dict[str, Any] = {"model": "tiny", "prompt": [5], "max_tokens": 9, "extra_body": {"ignore_eos": True}}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url), slicing=Slicing(MINUTE_MS)) as found:
        yield found


@dataclass
class Wire:
    """Every answer that the SDK got, when, and when it asked."""

    asked_s: list[float] = field(default_factory=list)
    answers: list[tuple[float, Any]] = field(default_factory=list)

    def sdk(self, served: Served, retries: int = 3) -> openai.AsyncOpenAI:
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._asks], "response": [self._hears]}
        client = openai.DefaultAsyncHttpxClient(event_hooks=hooks)
        return openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key=served.keys["acme"], max_retries=retries, http_client=client
        )

    @property
    def statuses(self) -> list[int]:
        return [answer.status_code for _, answer in self.answers]

    async def _asks(self, _: Any) -> None:
        self.asked_s.append(asyncio.get_running_loop().time())

    async def _hears(self, answer: Any) -> None:
        self.answers.append((asyncio.get_running_loop().time(), answer))


@pytest.mark.parametrize("limits", [{"requests_per_minute": 1}, {"tokens_per_minute": 10}])
async def test_it_waits_as_long_as_a_full_minute_says_and_then_succeeds(served: Served, limits: dict[str, int]) -> None:
    await served.tenant(limits=limits)
    wire = Wire()
    async with wire.sdk(served) as sdk:
        await sdk.completions.create(**ASKED)

        answer = await sdk.completions.create(**ASKED)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9
    assert wire.statuses == [200, 429, 200]
    refused_s, refusal = wire.answers[1]
    said_s = float(refusal.headers["retry-after-ms"]) / 1e3
    assert wire.asked_s[2] - refused_s >= 0.99 * said_s
    assert said_s <= 1.1 * (MINUTE_MS / 1e3) + 0.1


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ({"tokens_per_day": 1}, 400),
        ({"tokens_per_minute": 9}, 400),
        ({"max_output_tokens": 8}, 400),
        ({"max_prompt_tokens": 0}, 400),
    ],
)
async def test_it_does_not_retry_what_can_never_fit(served: Served, limits: dict[str, int], status: int) -> None:
    await served.tenant(limits=limits)
    wire = Wire()

    with pytest.raises(openai.APIStatusError) as refused:
        async with wire.sdk(served) as sdk:
            await sdk.completions.create(**ASKED)

    assert refused.value.status_code == status
    assert wire.statuses == [status]


async def test_it_does_not_wait_for_a_spent_day(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 10})
    wire = Wire()
    async with wire.sdk(served) as sdk:
        await sdk.completions.create(**ASKED)

        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.completions.create(**ASKED)

    assert refused.value.code == "insufficient_quota"
    assert wire.statuses == [200, 429]


async def test_a_key_that_does_not_work_is_not_tried_again(served: Served) -> None:
    served.keys["acme"] = "fl-nobody-nothing"
    wire = Wire()

    with pytest.raises(openai.AuthenticationError):
        async with wire.sdk(served) as sdk:
            await sdk.completions.create(**ASKED)

    assert wire.statuses == [401]
