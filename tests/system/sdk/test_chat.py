"""What a chat answer holds, and how each of the SDK's ways to ask for one gives it."""

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import ASKED, BANANAS, SAID, chat, content, output_tokens

pytestmark = [pytest.mark.system, pytest.mark.anyio]


@pytest.fixture(scope="module")
def answer(client: openai.OpenAI) -> ChatCompletion:
    return chat(client, logprobs=True, top_logprobs=2)


def test_it_is_the_models_answer(answer: ChatCompletion) -> None:
    choice = answer.choices[0]

    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", SAID)
    assert (choice.message.refusal, choice.message.tool_calls, choice.finish_reason) == (None, None, "stop")


def test_it_says_who_gave_it(answer: ChatCompletion) -> None:
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model, answer.service_tier) == ("chat.completion", MODEL, "default")
    assert answer.created > 0
    assert (answer.system_fingerprint or "").startswith("fp_")


def test_its_usage_adds_up(answer: ChatCompletion) -> None:
    usage = answer.usage

    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert 0 <= (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_its_logprobs_are_those_of_the_chosen_tokens(answer: ChatCompletion) -> None:
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    entries = logprobs.content or []

    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode().startswith(SAID)
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token
        assert [top.logprob for top in entry.top_logprobs] == sorted([top.logprob for top in entry.top_logprobs])[::-1]
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0.0
        assert len(entry.top_logprobs) == 2


def test_without_a_limit_it_ends_by_itself(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=openai.omit)

    assert (content(answer), answer.choices[0].finish_reason) == (SAID, "stop")


def test_a_limit_cuts_it(client: openai.OpenAI) -> None:
    answer = chat(client, messages=BANANAS, max_tokens=5)

    assert (answer.choices[0].finish_reason, output_tokens(answer)) == ("length", 5)


@pytest.mark.parametrize(
    ("extra", "tokens"),
    [
        ({"ignore_eos": True}, 16),
        ({"min_tokens": 12, "ignore_eos": False}, range(12, 17)),
        ({"stop_token_ids": [260]}, 12),
        ({"top_k": 1}, 8),
        ({"min_p": 1.0}, 8),
        ({"repetition_penalty": 1.0}, 8),
        ({"cache_salt": "pepper"}, 8),
        ({"skip_special_tokens": True, "priority": 0, "add_generation_prompt": True}, 8),
    ],
    ids=str,
)
def test_vllms_fields_go_in_the_body(client: openai.OpenAI, extra: dict[str, object], tokens: int | range) -> None:
    """Sampled, where the field makes it the likeliest token after all."""
    hot = {"temperature": 1.5} if {"top_k", "min_p"} & extra.keys() else {}

    answer = chat(client, max_tokens=16, extra_body=extra, **hot)

    assert output_tokens(answer) in (tokens if isinstance(tokens, range) else range(tokens + 1))
    assert content(answer).startswith("The capital of")


def test_several_choices_are_one_prompt_and_all_their_tokens(client: openai.OpenAI) -> None:
    one = chat(client)
    three = chat(client, n=3, max_tokens=4)

    assert one.usage is not None
    assert three.usage is not None
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 12
    assert [choice.finish_reason for choice in three.choices] == ["length"] * 3


def test_a_raw_response_has_the_headers_and_the_same_answer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASKED, extra_headers={"x-request-id": "mine-7"})
    answer = raw.parse()

    assert isinstance(answer, ChatCompletion)
    assert content(answer) == SAID
    assert raw.request_id == raw.headers["x-request-id"] == "mine-7"
    assert raw.headers["x-fairlane-lane"] == "latency"
    assert raw.headers["x-fairlane-class"] in ("guaranteed", "best-effort")
    assert raw.retries_taken == 0


def test_an_answer_has_its_requests_id(client: openai.OpenAI) -> None:
    assert (chat(client, max_tokens=1)._request_id or "").startswith("req_")


def test_a_streamed_response_is_read_when_it_is_wanted(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(**ASKED) as response:
        assert response.headers["content-type"] == "application/json"
        assert content(response.parse()) == SAID


def test_options_of_one_client_reach_the_server(client: openai.OpenAI) -> None:
    other = client.with_options(default_headers={"x-fairlane-lane": "throughput"}, default_query={"trace": "1"})
    raw = other.chat.completions.with_raw_response.create(**{**ASKED, "max_tokens": 1})

    assert raw.headers["x-fairlane-lane"] == "throughput"


async def test_many_at_once_get_what_each_gets_alone(server: Server, key: str, client: openai.OpenAI) -> None:
    asked = [[{"role": "user", "content": f"What is the capital of {country}?"}] for country in ("France", "Japan")]
    alone = [content(chat(client, messages=messages)) for messages in asked]
    async with server.async_sdk(key, max_retries=0) as many:
        answers: list[ChatCompletion] = await asyncio.gather(
            *(many.chat.completions.create(**{**ASKED, "messages": messages}) for messages in asked * 4)
        )

    assert [content(answer) for answer in answers] == alone * 4


async def test_the_asynchronous_client_gives_the_same(server: Server, key: str, client: openai.OpenAI) -> None:
    async with server.async_sdk(key, max_retries=0) as asynchronous:
        answer: ChatCompletion = await asynchronous.chat.completions.create(**ASKED)
        raw = await asynchronous.chat.completions.with_raw_response.create(**ASKED)

    assert content(answer) == content(raw.parse()) == content(chat(client))
    assert raw.headers["x-fairlane-lane"] == "latency"
