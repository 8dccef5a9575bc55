"""Floods of grammars: what the worker compiles and asks for each token, sent by tenants whose keys work."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests.support.system.harness import MODEL
from tests.system.attacks.bodies import PATH, Answers, Target
from tests.system.attacks.target import bearer

Json = dict[str, Any]
AMBIGUOUS = "start: s\ns: s s | X\nX: /[a-z ]/"
"""Each character doubles the ways in which the text so far can be read."""
SMALLEST_PRIME = 9_001
"""Compiled, an integer that is its multiple takes some 4 MB."""
SCHEMAS = 280
TENANTS = 4


def _primes(start: int) -> Iterator[int]:
    for number in itertools.count(start | 1, 2):
        if all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2)):
            yield number


def multiples() -> Iterator[Json]:
    """Tiny schemas that take much memory once they are compiled: a hundred, again and again."""
    hundred = [*itertools.islice(_primes(SMALLEST_PRIME), 100)]
    return ({"guided_json": {"type": "integer", "multipleOf": prime}} for prime in itertools.cycle(hundred))


def objects() -> Iterator[Json]:
    """Schemas of objects, no two alike."""
    for number in itertools.count():
        names = [f"name_{number}_{place}" for place in range(50)]
        properties: Json = {name: {"type": "string", "minLength": 1, "maxLength": 20} for name in names}
        yield {"guided_json": {"type": "object", "properties": properties, "required": names}}


@dataclass(frozen=True, slots=True)
class GrammarFlood:
    """One flood."""

    attacked: str
    fields: Callable[[], Iterator[Json]]
    """What each of its requests asks for besides its prompt."""
    requests: int
    """Of each tenant at a time."""
    tenants: int = 1
    victim: Callable[[], Iterator[Json]] = lambda: itertools.repeat({})
    """What each of the other tenant's requests asks for."""
    max_tokens: int = 64
    plain: Json = field(default_factory=dict)
    """What each of its control's requests asks for instead: as many rows of plain sampling."""

    @property
    def control(self) -> "GrammarFlood":
        """The same requests without their grammars."""
        return replace(self, fields=lambda: itertools.repeat(self.plain))

    async def attack(self, targets: Sequence[Target], seconds: float) -> Answers:
        """Send as many requests at a time as there are, and the next one when one is answered."""
        answers: Answers = Counter()
        fields, until = self.fields(), time.monotonic() + seconds

        async def send(client: httpx.AsyncClient, key: str) -> None:
            while time.monotonic() < until:
                body = {"model": MODEL, "prompt": "Say", "max_tokens": self.max_tokens, **next(fields)}
                try:
                    answer = await client.post(PATH, json=body, headers=bearer(key))
                    answers[str(answer.status_code)] += 1
                    if answer.status_code == 429:
                        await asyncio.sleep(0.1)
                except httpx.TimeoutException:
                    answers["late"] += 1
                except httpx.TransportError:
                    answers["reset"] += 1

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=targets[0].url, timeout=30.0, limits=limits) as client:
            sending = [send(client, target.key) for target in targets for _ in range(self.requests)]
            await asyncio.gather(*sending)
        return answers


_ROWS: Json = {"n": 16}


def _ambiguous() -> Iterator[Json]:
    return itertools.repeat({"guided_grammar": AMBIGUOUS, **_ROWS})


GRAMMARS: Mapping[str, GrammarFlood] = {
    "ambiguous-grammar": GrammarFlood("an ambiguous grammar with `n: 16`", _ambiguous, 1, plain=_ROWS),
    "ambiguous-grammars": GrammarFlood("eight of them at a time", _ambiguous, 8, plain=_ROWS),
    "multiples": GrammarFlood("100 schemas of multiples of a prime", multiples, 8, max_tokens=8),
    "schemas": GrammarFlood(f"{SCHEMAS} different schemas at a time", objects, SCHEMAS, max_tokens=8),
    "schemas-of-tenants": GrammarFlood(
        "different schemas of four tenants, against another's first", objects, 8, TENANTS, objects, max_tokens=8
    ),
}
