"""A seed makes the same answer again: alone, among others, streamed, in a form, from the cache or not."""

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import Choice

from tests.support import vllm
from tests.support.system.harness import Server
from tests.support.system.sdk import ASKED, CITY, chat, chat_chunks, complete, content, function, texts

pytestmark = [pytest.mark.system, pytest.mark.anyio]

STORY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 1.0,
    "seed": 7,
    "max_tokens": 12,
}
FORMS: dict[str, dict[str, Any]] = {
    "any": {},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    "narrow": {"top_p": 0.9, "extra_body": {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2}},
    "form": {"extra_body": {"guided_regex": "[a-z ]{24}"}},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}},
        "max_tokens": 24,
    },
    "calls": {"tools": [function("weather")], "tool_choice": "required", "max_tokens": 48},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
}

SAME = 1e-4 if vllm.IS_BEHIND else 0.0
"""Of log-probabilities: vLLM adds up in another order beside others, on some processors."""


def said(answer: ChatCompletion) -> list[object]:
    """All that the model chose."""
    found: list[object] = []
    for choice in answer.choices:
        called = [(call.type, getattr(call, "function", None)) for call in choice.message.tool_calls or ()]
        found.append((choice.message.content, called, choice.finish_reason))
        found += [
            (each.token, each.bytes, [(other.token, other.bytes) for other in each.top_logprobs])
            for each in _logprobs(choice)
        ]
    return found


def figures(answer: ChatCompletion) -> list[float]:
    """Its log-probabilities."""
    tokens = [each for choice in answer.choices for each in _logprobs(choice)]
    return [figure for each in tokens for figure in (each.logprob, *(other.logprob for other in each.top_logprobs))]


def _logprobs(choice: Choice) -> Sequence[ChatCompletionTokenLogprob]:
    return (choice.logprobs and choice.logprobs.content) or ()


@pytest.mark.parametrize(
    "form", ["any", *(pytest.param(form, marks=pytest.mark.thorough) for form in FORMS if form != "any")]
)
async def test_alone_and_among_others(server: Server, key: str, client: openai.OpenAI, form: str) -> None:
    asked = {**ASKED, **STORY, **FORMS[form]}
    alone = chat(client, **asked)
    async with server.async_sdk(key, max_retries=0, timeout=60) as many:
        others = [many.chat.completions.create(**{**ASKED, **STORY, "seed": seed}) for seed in range(3)]
        *_, among = await asyncio.gather(*others, many.chat.completions.create(**asked))

    assert said(among) == said(alone)
    assert figures(among) == pytest.approx(figures(alone), rel=0, abs=SAME)


def test_streamed(client: openai.OpenAI) -> None:
    assert texts(chat_chunks(client, **STORY)) == content(chat(client, **STORY))


def test_another_seed_is_another_answer(client: openai.OpenAI) -> None:
    assert len({content(chat(client, **{**STORY, "seed": seed})) for seed in (7, 8, 9)}) == 3


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    assert len({content(chat(client, **{**STORY, "seed": None})) for _ in range(3)}) == 3


def test_choices_differ_and_come_again(client: openai.OpenAI) -> None:
    first, second = (chat(client, **STORY, n=3) for _ in range(2))

    assert said(first) == said(second)
    assert len({content(first, index) for index in range(3)}) == 3


def test_a_prompt_from_the_cache_is_answered_as_a_new_one(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "You tell of the sea. " * 8}, *STORY["messages"]]
    asked = {**STORY, "messages": messages}
    new = chat(client, **asked, extra_body={"cache_salt": "new"})
    kept = chat(client, **asked, extra_body={"cache_salt": "new"})

    assert new.usage is not None
    assert kept.usage is not None
    assert new.usage.prompt_tokens_details is not None
    assert kept.usage.prompt_tokens_details is not None
    assert (new.usage.prompt_tokens_details.cached_tokens or 0) < (kept.usage.prompt_tokens_details.cached_tokens or 0)
    assert content(new) == content(kept)


def test_completions(client: openai.OpenAI) -> None:
    asked = {"temperature": 1, "seed": 11, "n": 2, "max_tokens": 12}
    first, second = (complete(client, **asked) for _ in range(2))

    assert [choice.text for choice in first.choices] == [choice.text for choice in second.choices]


def test_a_fingerprint_says_what_computed_it(client: openai.OpenAI) -> None:
    assert chat(client, max_tokens=1).system_fingerprint == complete(client, max_tokens=1).system_fingerprint
