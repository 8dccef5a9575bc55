"""Line 6: what the official SDK does with refusals, as a caller's own code would see it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

from benchmarks.common.line import Line, at_most
from benchmarks.gateway.instant import MODEL
from benchmarks.gateway.stand import StandError
from benchmarks.quotas.stand import WINDOW_MS, gateways

LINE = 6
TOLERANCE = 0.10
RETRIES = 4
TIMES = 3
"""How often it has to wait."""
HOPELESS: dict[str, dict[str, int]] = {
    "a spent day": {"tokens_per_day": 1},
    "more than a minute allows": {"tokens_per_minute": 3},
    "an answer that is too long": {"max_output_tokens": 3},
}
"""Each with limits that make it so, for an answer of ASKED_TOKENS."""
ASKED_TOKENS = 8


@dataclass
class Wire:
    """What went over the SDK's wire: when each request left, and what each answer said."""

    sent_s: list[float] = field(default_factory=list)
    answered: list[tuple[float, int, float]] = field(default_factory=list)
    """When, status, and the wait that it asks for, in s."""

    def sdk(self, url: str, key: str) -> openai.AsyncOpenAI:
        """The official SDK over this wire."""
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._sends], "response": [self._answers]}
        client = openai.DefaultAsyncHttpxClient(event_hooks=hooks)
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=RETRIES, http_client=client)

    async def _sends(self, _: Any) -> None:  # noqa: ANN401 - the HTTP library's own request
        self.sent_s.append(time.perf_counter())

    async def _answers(self, answer: Any) -> None:  # noqa: ANN401 - as above
        said_s = float(answer.headers.get("retry-after-ms", 0.0)) / 1e3
        self.answered.append((time.perf_counter(), answer.status_code, said_s))

    @property
    def misses(self) -> list[float]:
        """How far each wait was from what was said, as a part of it. Raises StandError where another try was needed."""
        if [status for _, status, _ in self.answered] != [429, 200]:
            raise StandError(f"the SDK was answered {[status for _, status, _ in self.answered]}")
        at_s, _, said_s = self.answered[0]
        return [abs((self.sent_s[1] - at_s) / said_s - 1.0)]


async def waits(url: str, key: str) -> float:
    """A minute that is full: how far from what it was told the SDK waits, at most."""
    misses: list[float] = []
    wire = Wire()
    await ask(wire.sdk(url, key))
    for _ in range(TIMES):
        wire.sent_s.clear()
        wire.answered.clear()
        await ask(wire.sdk(url, key))
        misses += wire.misses
    return max(misses)


async def tries(url: str, key: str) -> int:
    """How often the SDK sends what is refused for good, beyond once."""
    wire = Wire()
    try:
        await ask(wire.sdk(url, key))
    except openai.APIStatusError:
        return len(wire.sent_s) - 1
    raise StandError("what could never fit was answered")


async def ask(client: openai.AsyncOpenAI) -> None:
    """One short completion."""
    async with client:
        await client.completions.create(
            model=MODEL, prompt=[5], max_tokens=ASKED_TOKENS, extra_body={"ignore_eos": True}
        )


async def measure() -> Sequence[Line]:
    """Both figures, before one gateway."""
    async with gateways(1) as on:
        url = on.urls[0]
        _, key = await on.tenant("patient", {"requests_per_minute": 1})
        missed = await waits(url, key)
        again = 0
        for number, limits in enumerate(HOPELESS.values()):
            _, key = await on.tenant(f"hopeless-{number}", limits)
            again += await tries(url, key)
    sdk, minute_s, kinds = f"openai {openai.__version__}", WINDOW_MS / 1e3, ", ".join(HOPELESS)
    how = f"{sdk}: from a refusal to the request that succeeds, {TIMES} times, a minute of {minute_s:g} s"
    return [
        at_most(LINE, "wait beside retry-after, off by a part of", missed, TOLERANCE, how),
        at_most(LINE, "retries of a hopeless request", again, 0, f"{sdk}: {kinds}"),
    ]
