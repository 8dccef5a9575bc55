"""The official `openai` SDK, unmodified, against the real model."""

import openai
import pytest

from tests.support.system.harness import MODEL, Server

pytestmark = pytest.mark.system

QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture(scope="module")
def key(server: Server) -> str:
    return server.tenant("sdk")


def test_the_model_is_listed(server: Server, key: str) -> None:
    with server.sdk(key) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


def test_chat_knows_paris_and_counts_tokens(server: Server, key: str) -> None:
    with server.sdk(key) as client:
        answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].finish_reason == "stop"


def test_stream_and_plain_give_the_same_text_and_usage(server: Server, key: str) -> None:
    with server.sdk(key) as client:
        plain = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=QUESTION,
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
        )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].choices == []
    told, same = chunks[-1].usage, plain.usage
    assert told is not None
    assert same is not None
    assert (told.prompt_tokens, told.completion_tokens) == (same.prompt_tokens, same.completion_tokens)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_completions_plain_and_stream(server: Server, key: str) -> None:
    with server.sdk(key) as client:
        plain = client.completions.create(
            model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8, extra_body={"ignore_eos": True}
        )
        stream = client.completions.create(
            model=MODEL,
            prompt="The capital of France is",
            temperature=0,
            max_tokens=8,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    assert "Paris" in plain.choices[0].text
    assert text == plain.choices[0].text
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 8


def test_a_seed_makes_samples_repeatable_and_choices_differ(server: Server, key: str) -> None:
    def sample() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Tell me a story."}],
            temperature=1.0,
            seed=7,
            n=3,
            max_tokens=12,
        )
        return [choice.message.content for choice in answer.choices]

    with server.sdk(key) as client:
        first, second = sample(), sample()

    assert first == second
    assert len(set(first)) == 3


def test_a_stop_string_ends_the_text_before_it(server: Server, key: str) -> None:
    with server.sdk(key) as client:
        free = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
        cut = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=24, stop=["Paris"]
        )

    whole, short = free.choices[0].message.content or "", cut.choices[0].message.content or ""
    assert whole.startswith(short)
    assert "Paris" not in short
    assert cut.choices[0].finish_reason == "stop"
    assert free.usage is not None
    assert cut.usage is not None
    assert cut.usage.completion_tokens < free.usage.completion_tokens


def test_logprobs_are_those_of_the_chosen_tokens(server: Server, key: str) -> None:
    with server.sdk(key) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2
        )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    for entry in logprobs.content:
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob <= 0.0


def test_a_wrong_key_and_an_unknown_model_are_the_sdks_own_errors(server: Server, key: str) -> None:
    with server.sdk("fl-nobody-nothing") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with server.sdk(key) as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found"


def test_too_many_tokens_name_the_parameter(server: Server, key: str) -> None:
    with server.sdk(key) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=100_000)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "max_tokens"
