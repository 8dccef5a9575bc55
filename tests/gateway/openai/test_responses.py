"""The answers, checked by the official SDK's own types where it has them."""

import math
from typing import Literal

import msgspec
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from fairlane.gateway.api.completions import chat_logprobs, completion_logprobs
from fairlane.gateway.http import sse
from fairlane.gateway.openai.responses import AnswerChoice, Answers, Usage
from fairlane.gateway.text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import PositionLogprobs
from tests.support.gateway.cards import byte_level_card

USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3)
MODEL = TextModel(byte_level_card())
CHAT = Answers(kind="chat", id="chatcmpl-1", model="tiny", created_s=1_700_000_000, service_tier="priority")
PLAIN = Answers(kind="completion", id="cmpl-1", model="tiny", created_s=1_700_000_000, service_tier="default")


def drawn(text: str, *, logprob: float = -0.5) -> tuple[list[int], list[PositionLogprobs]]:
    ids = list(MODEL.encode(text))
    return ids, [PositionLogprobs(logprob, ((token, logprob), (65, -math.inf))) for token in ids]


def test_a_whole_chat_is_what_the_sdk_reads() -> None:
    ids, logprobs = drawn("Paris")
    choices = [
        AnswerChoice(0, "Paris", "stop", chat_logprobs(MODEL, ids, logprobs)),
        AnswerChoice(1, "", "length"),
    ]

    read = ChatCompletion.model_validate(CHAT.whole(choices, USAGE), strict=True)

    assert (read.object, read.id, read.model, read.created) == ("chat.completion", "chatcmpl-1", "tiny", 1_700_000_000)
    assert [choice.message.content for choice in read.choices] == ["Paris", ""]
    assert [choice.finish_reason for choice in read.choices] == ["stop", "length"]
    assert read.choices[0].logprobs is not None
    assert read.choices[0].logprobs.content is not None
    assert "".join(token.token for token in read.choices[0].logprobs.content) == "Paris"
    assert read.service_tier == "priority"
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.completion_tokens, read.usage.total_tokens) == (7, 5, 12)
    assert read.usage.prompt_tokens_details is not None
    assert read.usage.prompt_tokens_details.cached_tokens == 3


def test_a_whole_completion_is_what_the_sdk_reads() -> None:
    ids, logprobs = drawn("Paris")
    choice = AnswerChoice(0, "Paris", "stop", completion_logprobs(MODEL, ids, logprobs, text_offset=0))

    read = Completion.model_validate(PLAIN.whole([choice], USAGE), strict=True)

    assert (read.object, read.choices[0].text, read.choices[0].finish_reason) == ("text_completion", "Paris", "stop")
    assert read.choices[0].logprobs is not None
    assert "".join(read.choices[0].logprobs.tokens or []) == "Paris"


def test_a_chat_stream_opens_with_the_role_and_ends_with_a_reason() -> None:
    opening = CHAT.opening(1)
    assert opening is not None

    chunks = [
        ChatCompletionChunk.model_validate(chunk, strict=True)
        for chunk in (opening, CHAT.chunk(1, "Par"), CHAT.chunk(1, "", finish_reason="stop"))
    ]

    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk.choices[0].index for chunk in chunks] == [1, 1, 1]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Par", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert {chunk.service_tier for chunk in chunks} == {"priority"}
    assert all("usage" not in chunk for chunk in (opening, CHAT.chunk(1, "Par")))


def test_a_completion_stream_has_no_opening() -> None:
    assert PLAIN.opening(0) is None
    assert Completion.model_validate(PLAIN.chunk(2, "a", finish_reason="length")).choices[0].text == "a"
    assert Completion.model_validate(PLAIN.chunk(2, "a", finish_reason="length")).choices[0].index == 2


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_usage_is_null_until_the_chunk_that_tells_it(kind: str) -> None:
    answers = CHAT if kind == "chat" else PLAIN
    answers = Answers(kind=answers.kind, id="x", model="tiny", created_s=1, service_tier="default", include_usage=True)

    assert answers.chunk(0, "a")["usage"] is None
    last = answers.usage_chunk(USAGE)
    assert last["choices"] == []
    assert last["usage"] == USAGE.as_json()


def test_a_limit_that_cut_an_answer_short_is_named() -> None:
    assert CHAT.chunk(0, "", finish_reason="length", limited_by="tokens_per_day")["fairlane"] == {
        "limited_by": "tokens_per_day"
    }
    assert CHAT.whole([AnswerChoice(0, "a", "length")], USAGE, limited_by="tokens_per_day")["fairlane"] == {
        "limited_by": "tokens_per_day"
    }
    assert "fairlane" not in CHAT.chunk(0, "", finish_reason="length")


def test_chat_logprobs_name_each_token_with_its_bytes() -> None:
    ids = list(MODEL.encode("é🙂"))
    told = chat_logprobs(MODEL, ids, [PositionLogprobs(-0.25, ((ids[0], -0.25),))] * len(ids))

    assert bytes(byte for entry in told["content"] for byte in entry["bytes"]).decode() == "é🙂"
    assert told["content"][0]["logprob"] == -0.25
    assert told["content"][0]["top_logprobs"][0]["token"] == MODEL.token_text(ids[0])


def test_completion_logprobs_say_where_each_token_begins() -> None:
    ids, logprobs = drawn("Paris is")
    told = completion_logprobs(MODEL, ids, logprobs, text_offset=10)

    assert told["tokens"] == [MODEL.token_text(token) for token in ids]
    assert told["text_offset"][0] == 10
    assert told["text_offset"][-1] + len(told["tokens"][-1]) == 10 + len("Paris is")
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(told["text_offset"])


def test_what_cannot_come_is_a_number_that_json_can_say() -> None:
    ids, logprobs = drawn("Paris", logprob=-math.inf)

    assert chat_logprobs(MODEL, ids, logprobs)["content"][0]["logprob"] == -9999.0
    assert completion_logprobs(MODEL, ids, logprobs, 0)["token_logprobs"][0] == -9999.0
    assert -9999.0 in completion_logprobs(MODEL, ids, logprobs, 0)["top_logprobs"][0].values()


def test_no_tokens_no_logprobs() -> None:
    assert chat_logprobs(MODEL, [], []) == {"content": [], "refusal": None}
    assert completion_logprobs(MODEL, [], [], 4)["text_offset"] == []


def test_tokens_and_their_logprobs_have_to_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        chat_logprobs(MODEL, [1, 2], [PositionLogprobs(-1.0, ())])


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("text", ["a", '"\\\n\r\t', "\x00text\x00", "é\u2028🙂"])
def test_a_frame_made_around_a_text_is_the_frame_of_its_chunk(
    kind: Literal["chat", "completion"], include_usage: bool, text: str
) -> None:
    answers = Answers(
        kind=kind,
        id="x",
        model='"\x00text\x00"',
        created_s=1,
        service_tier="default",
        include_usage=include_usage,
    )

    before, after = answers.text_frame(3)

    assert before + msgspec.json.encode(text) + after == sse.data(answers.chunk(3, text))
