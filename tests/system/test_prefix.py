"""Over HTTP and with the real model: a tenant finds its own prompts again, and nobody else's."""

import random

import openai
import pytest

from tests.support.system.harness import MODEL, Server

pytestmark = pytest.mark.system

WORDS = ("north", "river", "seven", "copper", "window", "quiet", "engine", "paper", "harvest", "signal", "marble")


def found(client: openai.OpenAI, prompt: str) -> int:
    """Tokens of a prompt that were cached, by the usage of its answer."""
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, temperature=0)
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens is not None
    assert details.cached_tokens < answer.usage.prompt_tokens
    return details.cached_tokens


def prompts(seed: int) -> list[str]:
    """Some begin like others."""
    chooser = random.Random(seed)
    roots = [" ".join(chooser.choices(WORDS, k=40)) for _ in range(2)]
    return [f"{chooser.choice(roots)} {' '.join(chooser.choices(WORDS, k=6))}" for _ in range(4)]


def test_whatever_one_tenant_sends_another_finds_only_its_own(server: Server) -> None:
    """All the second one is told is the same whether the first has sent the same prompts, others, or none."""

    def told(tenant: str, others: list[str]) -> list[int]:
        with server.sdk(server.tenant(f"{tenant}-first")) as first, server.sdk(server.tenant(tenant)) as second:
            for prompt in others:
                found(first, prompt)
            return [found(second, prompt) for prompt in prompts(1)]

    alone = told("unseen", [])

    assert any(alone)
    assert alone == told("copied", prompts(1))
    assert alone == told("unlike", prompts(2))


def test_tenants_of_a_declared_group_find_each_others(server: Server) -> None:
    keys = [server.tenant(name, share_group="family") for name in ("mother", "child")]
    with server.sdk(keys[0]) as mother, server.sdk(keys[1]) as child:
        prompt = prompts(3)[0]
        assert found(mother, prompt) == 0
        assert found(child, prompt) >= 16


def test_the_next_turn_finds_the_last_one_and_the_ledger_counts_it(server: Server) -> None:
    with server.sdk(server.tenant("turns")) as client:
        prompt = prompts(4)[0]
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=24, temperature=0, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        cached = found(client, f"{prompt}{answer.choices[0].text} And then?")

    assert cached > answer.usage.prompt_tokens
    with server.admin() as admin:
        report = admin.get("/tenants/turns/usage").raise_for_status().json()
    assert report["total"]["cached_tokens"] == cached
