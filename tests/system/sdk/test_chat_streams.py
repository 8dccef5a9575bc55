"""Streams of chat: what their chunks hold, and what the SDK's helpers make of them."""

import json
from collections.abc import Sequence

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamEvent
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import ASKED, BANANAS, SAID, chat, chat_chunks, content, refused, texts

pytestmark = [pytest.mark.system, pytest.mark.anyio]

USAGE = {"include_usage": True}


class Answer(BaseModel):
    yes: bool


@pytest.fixture(scope="module")
def chunks(client: openai.OpenAI) -> list[ChatCompletionChunk]:
    return chat_chunks(client)


def test_its_pieces_are_the_whole_answer(chunks: list[ChatCompletionChunk]) -> None:
    assert texts(chunks) == SAID
    assert len(chunks) > 4


def test_all_chunks_say_the_same_of_the_answer(chunks: list[ChatCompletionChunk]) -> None:
    told = {(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint, chunk.service_tier) for chunk in chunks}

    assert len(told) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].model == MODEL


def test_the_first_names_the_role_and_the_last_the_end(chunks: list[ChatCompletionChunk]) -> None:
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_no_usage_is_told_unasked(chunks: list[ChatCompletionChunk]) -> None:
    assert {chunk.usage for chunk in chunks} == {None}


def test_the_usage_that_was_asked_for_comes_last_and_is_that_of_a_plain_answer(client: openai.OpenAI) -> None:
    plain, chunks = chat(client), chat_chunks(client, stream_options=USAGE)

    assert chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    told = chunks[-1].usage
    assert told is not None
    assert plain.usage is not None
    assert (told.prompt_tokens, told.completion_tokens) == (plain.usage.prompt_tokens, plain.usage.completion_tokens)


def test_usage_can_be_told_as_it_grows(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in chat_chunks(client, stream_options=options) if chunk.usage]

    assert counts == sorted(counts)
    assert len(set(counts)) > 4
    assert counts[-1] == 8


def test_choices_are_told_apart(client: openai.OpenAI) -> None:
    asked = {"n": 3, "temperature": 1, "seed": 5, "max_tokens": 6}
    plain, chunks = chat(client, **asked), chat_chunks(client, **asked)

    assert [texts(chunks, index) for index in range(3)] == [content(plain, index) for index in range(3)]
    ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1, 2]


def test_logprobs_are_those_of_a_plain_answer(client: openai.OpenAI) -> None:
    plain = chat(client, logprobs=True, top_logprobs=1).choices[0].logprobs
    told = [choice.logprobs for chunk in chat_chunks(client, logprobs=True, top_logprobs=1) for choice in chunk.choices]

    assert plain is not None
    assert [entry.token for part in told if part for entry in part.content or ()] == [
        entry.token for entry in plain.content or ()
    ]


def test_a_stop_string_is_never_told(client: openai.OpenAI) -> None:
    chunks = chat_chunks(client, stop=["capital of France"])

    assert texts(chunks) == "The "
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stream_is_refused_as_a_plain_request_is(client: openai.OpenAI) -> None:
    assert refused(chat_chunks, client, temperature=3).param == "temperature"


def test_it_is_an_event_stream_that_ends_with_done(client: openai.OpenAI) -> None:
    asked = client.chat.completions.with_streaming_response.create(**ASKED, stream=True)
    with asked as response:
        lines = [line for line in response.iter_lines() if line]

    assert response.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["choices"] for line in lines[:-1])


def test_a_raw_response_streams_too(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASKED, stream=True)

    assert raw.headers["x-fairlane-lane"] == "latency"
    assert texts(list(raw.parse())) == SAID


def kinds(events: Sequence[ChatCompletionStreamEvent]) -> list[str]:
    return [event.type for event in events]


def test_the_helper_tells_content_as_events(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASKED) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    said = [event for event in events if event.type == "content.delta"]
    assert "".join(event.delta for event in said) == said[-1].snapshot == SAID
    assert kinds(events)[-1] == "content.done"
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == (SAID, "stop")


def test_the_helper_tells_logprobs_as_events(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASKED, logprobs=True) as stream:
        events = list(stream)

    done = [event for event in events if event.type == "logprobs.content.done"]
    assert "".join(entry.token for entry in done[0].content).startswith(SAID)
    assert "logprobs.content.delta" in kinds(events)


def test_the_helper_parses_what_it_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**{**ASKED, "max_tokens": 24}, response_format=Answer) as stream:
        done = [event for event in stream if event.type == "content.done"]

    assert isinstance(done[0].parsed, Answer)


def test_the_helper_says_when_a_parsed_answer_was_cut(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 2}
    with (
        client.chat.completions.stream(**asked, response_format=Answer) as stream,
        pytest.raises(openai.LengthFinishReasonError),
    ):
        stream.until_done()


def test_the_helper_knows_the_usage(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASKED, stream_options={"include_usage": True}) as stream:
        usage = stream.get_final_completion().usage

    assert usage is not None
    assert usage.completion_tokens == 8


async def test_the_asynchronous_client_streams(server: Server, key: str) -> None:
    async with server.async_sdk(key, max_retries=0) as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(**ASKED, stream=True)]
        async with client.chat.completions.stream(**ASKED) as stream:
            final = await stream.get_final_completion()
        async with client.chat.completions.with_streaming_response.create(**ASKED, stream=True) as response:
            lines = [line async for line in response.iter_lines() if line]

    assert texts(chunks) == final.choices[0].message.content == SAID
    assert lines[-1] == "data: [DONE]"


def test_a_long_stream_that_waits_is_not_disturbed_by_what_keeps_it_alive(client: openai.OpenAI) -> None:
    chunks = chat_chunks(client, messages=BANANAS, max_tokens=24, extra_headers={"x-fairlane-progress": "1"})

    assert texts(chunks).lower().startswith("banana")
