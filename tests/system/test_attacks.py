"""Attacks by bodies in short: what they are answered, that others are served meanwhile, and that memory stays bounded.

The whole form, with what it does to others' times, is `python -m tests.system.attacks.whole`.
"""

import asyncio
from collections import Counter

import pytest

from tests.system.attacks.bodies import Target, attack
from tests.system.attacks.whole import MOST_BYTES, forget_peak, peak_bytes
from tests.system.harness import MODEL, Server

pytestmark = pytest.mark.system
HELD = 60
"""Connections with an unfinished body of 8 MB each: 480 MB, were they all taken."""


@pytest.mark.parametrize("name", ["unfinished", "unfinished-chunks", "texts", "ones", "digits", "keys", "nested"])
def test_an_attack_by_bodies_costs_others_nothing_but_time(server: Server, name: str) -> None:
    attacker, person = Target(server.url, server.tenant(f"attacker-{name}")), server.tenant(f"person-{name}")
    gateway = server.child("gateway")
    forget_peak(gateway)

    async def asks() -> None:
        async with server.async_sdk(person, max_retries=0, timeout=60) as client:
            for _ in range(3):
                await client.completions.create(model=MODEL, prompt="Hello", max_tokens=1)

    async def both() -> Counter[str]:
        answers, _ = await asyncio.gather(attack(attacker, name, 0.3, connections=4, held=HELD), asks())
        return answers

    answers = asyncio.run(both())

    assert answers
    assert answers.keys() <= {"400", "413", "429", "held"}
    assert peak_bytes(gateway) <= MOST_BYTES
    if name == "unfinished":
        assert answers["held"] <= 4
