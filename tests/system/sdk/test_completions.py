"""Plain completions: every field that the SDK's own types know, whole and streamed."""

from collections.abc import Callable, Iterator
from functools import partial

import openai
import pytest
from openai.types import Completion, completion_create_params

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import (
    COMPLETED,
    PROMPT,
    OfField,
    answers_to,
    complete,
    complete_chunks,
    known_paths,
    output_tokens,
    refused,
    used_paths,
)

pytestmark = [pytest.mark.system, pytest.mark.anyio]

SAID = " Paris.\n\n"


def text(answer: Completion, index: int = 0) -> str:
    return answer.choices[index].text


HONOURED: list[tuple[OfField, Callable[[Completion], bool]]] = [
    ({}, lambda answer: text(answer) == SAID),
    ({"best_of": 1}, lambda answer: text(answer) == SAID),
    ({"echo": True}, lambda answer: text(answer) == PROMPT + SAID),
    ({"frequency_penalty": 2, "logit_bias": {"260": 10}}, lambda answer: text(answer).count(" the the the") == 0),
    ({"logit_bias": {"260": 100}}, lambda answer: text(answer) == " the the the the"),
    ({"echo": True, "logprobs": 1, "max_tokens": 0}, lambda answer: text(answer) == PROMPT),
    ({"logprobs": 0}, lambda answer: answer.choices[0].logprobs is not None),
    ({"logprobs": 2}, lambda answer: answer.choices[0].logprobs is not None),
    ({"max_tokens": 2}, lambda answer: output_tokens(answer) == 2),
    ({"n": 2, "temperature": 1, "seed": 3}, lambda answer: text(answer) != text(answer, 1)),
    ({"presence_penalty": 2}, lambda answer: text(answer).startswith(" Paris")),
    ({"prompt": [504, 3575, 282, 4649, 314]}, lambda answer: text(answer) == SAID),
    ({"prompt": [PROMPT, "One, two, three,"]}, lambda answer: (text(answer), text(answer, 1)[:5]) == (SAID, " four")),
    ({"prompt": [[504, 3575, 282, 4649, 314], [504]]}, lambda answer: len(answer.choices) == 2),
    ({"prompt": [PROMPT, PROMPT], "n": 2}, lambda answer: [c.index for c in answer.choices] == [0, 1, 2, 3]),
    ({"seed": 4, "temperature": 1, "top_p": 0.5}, lambda answer: bool(text(answer))),
    ({"stop": ["."]}, lambda answer: text(answer) == " Paris"),
    ({"stream": False, "suffix": "", "user": "someone"}, lambda answer: text(answer) == SAID),
    ({"stream_options": None, "best_of": None, "suffix": None}, lambda answer: text(answer) == SAID),
    ({"extra_body": {"ignore_eos": True, "top_k": 1, "service_tier": "flex"}}, lambda answer: text(answer) == SAID),
]
REFUSED: list[tuple[str, OfField]] = [
    ("best_of", {"best_of": 21}),
    ("logprobs", {"logprobs": 21}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": ["x"] * 129}),
    ("prompt", {"prompt": [-1]}),
    ("stream_options", {"stream_options": {"include_usage": True, "include_obfuscation": False}}),
    ("suffix", {"suffix": " is large."}),
]


def test_no_field_is_left_out() -> None:
    kinds = completion_create_params
    known = known_paths(kinds.CompletionCreateParamsNonStreaming) | known_paths(kinds.CompletionCreateParamsStreaming)
    cases = [COMPLETED, *(fields for fields, _ in HONOURED), *(fields for _, fields in REFUSED)]

    assert known - set().union(*map(used_paths, cases)) == set()


@pytest.fixture(scope="module")
def answer_to(client: openai.OpenAI) -> Iterator[Callable[[OfField], Completion]]:
    with answers_to([fields for fields, _ in HONOURED], partial(complete, client)) as asked:
        yield asked


@pytest.mark.parametrize(("fields", "says"), HONOURED, ids=[str(fields) for fields, _ in HONOURED])
def test_a_field_is_honoured(
    answer_to: Callable[[OfField], Completion], fields: OfField, says: Callable[[Completion], bool]
) -> None:
    answer = answer_to(fields)

    assert says(answer), answer
    assert (answer.object, answer.model) == ("text_completion", MODEL)


@pytest.mark.parametrize(("param", "fields"), REFUSED, ids=str)
def test_a_field_is_refused_by_its_name(client: openai.OpenAI, param: str, fields: OfField) -> None:
    error = refused(complete, client, **fields)

    assert (error.status_code, error.param) == (400, param)


def test_logprobs_tell_where_each_token_stands(client: openai.OpenAI) -> None:
    logprobs = complete(client, logprobs=2).choices[0].logprobs

    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == SAID
    assert logprobs.text_offset == [0, 6, 7, 8]
    for token, logprob, top in zip(
        logprobs.tokens or (), logprobs.token_logprobs or (), logprobs.top_logprobs or (), strict=True
    ):
        assert top[token] == logprob == max(top.values())


def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    chunks = complete_chunks(client, stream_options={"include_usage": True})

    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == SAID
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert {(chunk.id, chunk.created, chunk.object) for chunk in chunks} == {
        (chunks[0].id, chunks[0].created, "text_completion")
    }


def test_a_stream_of_several_prompts_tells_them_apart(client: openai.OpenAI) -> None:
    asked = {"prompt": [PROMPT, "One, two, three,"], "echo": True}
    plain, said = complete(client, **asked), ["", ""]
    for chunk in complete_chunks(client, **asked):
        for choice in chunk.choices:
            said[choice.index] += choice.text

    assert said == [text(plain), text(plain, 1)]


async def test_the_asynchronous_client_gives_the_same(server: Server, key: str) -> None:
    async with server.async_sdk(key, max_retries=0) as client:
        plain: Completion = await client.completions.create(**COMPLETED)
        chunks = [chunk async for chunk in await client.completions.create(**COMPLETED, stream=True)]

    assert text(plain) == "".join(choice.text for chunk in chunks for choice in chunk.choices) == SAID
