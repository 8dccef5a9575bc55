"""The answers, checked by the official SDK's own types where it has them."""

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from fairlane.gateway.answers.builder import AnswerBuilder
from fairlane.gateway.answers.choices import ChatAnswer, CompletionAnswer
from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.answers.logprobs import TokenNames, chat_logprobs, completion_logprobs
from fairlane.gateway.api.completions import ReasoningField, chat
from fairlane.gateway.dialects.openai.requests import ChatRequest, GenerationRequest
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http.sse import EventStream
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.protocol.messages import FinishReason, PositionLogprobs
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.one_request import job
from tests.support.gateway.tool_models import tool_card

MODEL = TextModel(byte_level_card())
NAMES = TokenNames(MODEL)
SHAPES: list[type[AnswerBuilder]] = [ChatAnswer, CompletionAnswer]


class Out:
    """A client that takes all at once."""

    def __init__(self) -> None:
        self.started = True
        self.frames = b""

    def put(self, frames: bytes) -> bool:
        self.frames += frames
        return True


def drawn(text: str, *, logprob: float = -0.5) -> tuple[list[int], list[PositionLogprobs]]:
    ids = list(MODEL.encode(text))
    return ids, [PositionLogprobs(logprob, ((token, logprob), (65, -math.inf))) for token in ids]


def said(index: int, text: str, finish_reason: FinishReason | None = None) -> TextChunk:
    ids, logprobs = drawn(text) if text else ([], [])
    return TextChunk(index, text, tuple(ids), tuple(logprobs), finish_reason)


def generated(n: int = 2) -> LiveJob:
    """A job whose choices have five tokens together."""
    done = job("1", n=n)
    done.cached_tokens, done.choices[0].published = 3, 5
    return done


def whole(shape: type[AnswerBuilder], *chunks: TextChunk, of: LiveJob | None = None, **asked: Any) -> dict[str, Any]:
    answer = built(shape, of or generated(), None, **asked)
    for chunk in chunks:
        assert answer.feed([chunk])
    return answer.whole()


def streamed(
    shape: type[AnswerBuilder], *chunks: TextChunk, of: LiveJob | None = None, **asked: Any
) -> list[dict[str, Any]]:
    """What the frames hold, but for the last, which says only that it is."""
    out = Out()
    answer = built(shape, of or generated(), cast(EventStream, out), **asked)
    for chunk in chunks:
        assert answer.feed([chunk])
    frames = (out.frames + answer.ending()).decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def built(
    shape: type[AnswerBuilder],
    of: LiveJob,
    out: EventStream | None,
    *,
    model: str = "tiny",
    text: TextModel = MODEL,
    **asked: Any,
) -> AnswerBuilder:
    served = ServedModel(model, "tiny@0", text, (), {})
    request = GenerationRequest(model=model, **asked)
    if issubclass(shape, ChatAnswer):
        request = ChatRequest(model=model, messages=(), **asked)
    return shape(request, served, "priority", [of], out)


THINKING = TextModel(tool_card("Qwen 3"))


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("both", {"reasoning_content", "reasoning"}),
    ],
)
def test_reasoning_is_in_the_fields_that_are_set(field: ReasoningField, names: set[str]) -> None:
    shape = chat(field).answer
    chunks = TextChunk(0, "<think>\nIt is ", (), (), None), TextChunk(0, "so.\n</think>\n\nYes.", (), (), "stop")

    told = whole(shape, *chunks, text=THINKING)["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed(shape, *chunks, text=THINKING)]

    for name in names:
        assert told[name] == "".join(delta.get(name, "") for delta in deltas) == "It is so.\n"
    assert {name for each in (told, *deltas) for name in each if name.startswith("reasoning")} == names


def texts(chunks: Sequence[dict[str, Any]]) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]


def test_a_whole_chat_is_what_the_sdk_reads() -> None:
    told = whole(ChatAnswer, said(0, "Par"), said(0, "is", "stop"), said(1, "", "length"), logprobs=2)

    read = ChatCompletion.model_validate(told, strict=True)

    assert (read.object, read.id, read.model) == ("chat.completion", "chatcmpl-1", "tiny")
    assert [choice.message.content for choice in read.choices] == ["Paris", ""]
    assert [choice.finish_reason for choice in read.choices] == ["stop", "length"]
    assert read.choices[0].logprobs is not None
    assert read.choices[0].logprobs.content is not None
    assert "".join(token.token for token in read.choices[0].logprobs.content) == "Paris"
    assert read.service_tier == "priority"
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.completion_tokens, read.usage.total_tokens) == (10, 5, 15)
    assert read.usage.prompt_tokens_details is not None
    assert read.usage.prompt_tokens_details.cached_tokens == 3


def test_a_whole_completion_is_what_the_sdk_reads() -> None:
    read = Completion.model_validate(whole(CompletionAnswer, said(0, "Paris", "stop"), logprobs=0), strict=True)

    assert (read.object, read.choices[0].text, read.choices[0].finish_reason) == ("text_completion", "Paris", "stop")
    assert read.choices[0].logprobs is not None
    assert "".join(read.choices[0].logprobs.tokens or []) == "Paris"


def test_a_chat_stream_opens_with_the_role_and_ends_with_a_reason() -> None:
    told = streamed(ChatAnswer, said(1, "Par"), said(1, "", "stop"))

    chunks = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in told]

    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk.choices[0].index for chunk in chunks] == [1, 1, 1]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Par", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert {chunk.service_tier for chunk in chunks} == {"priority"}
    assert all("usage" not in chunk for chunk in told)


def test_a_completion_stream_has_no_opening() -> None:
    [told] = streamed(CompletionAnswer, said(2, "a", "length"))

    assert Completion.model_validate(told).choices[0].text == "a"
    assert Completion.model_validate(told).choices[0].index == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_usage_is_null_until_the_chunk_that_tells_it(shape: type[AnswerBuilder]) -> None:
    *told, last = streamed(shape, said(0, "a"), said(0, "b", "stop"), include_usage=True)

    assert {chunk["usage"] for chunk in told} == {None}
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 15


def test_a_limit_that_cut_an_answer_short_is_named() -> None:
    cut = generated()
    cut.limited_by = "tokens_per_day"

    last = streamed(ChatAnswer, said(0, "a", "length"), of=cut)[-1]

    assert last["fairlane"] == {"limited_by": "tokens_per_day"}
    assert whole(ChatAnswer, said(0, "a", "length"), of=cut)["fairlane"] == {"limited_by": "tokens_per_day"}
    assert "fairlane" not in streamed(ChatAnswer, said(0, "a", "stop"), of=cut)[-1]
    assert "fairlane" not in whole(ChatAnswer, said(0, "a", "length"))


def test_the_log_probabilities_of_a_stream_are_those_of_the_whole() -> None:
    chunks = said(0, "Paris"), said(0, " is", "stop")

    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed(CompletionAnswer, *chunks, logprobs=1)]
    [choice] = whole(CompletionAnswer, *chunks, logprobs=1)["choices"]

    assert {name: [entry for part in parts for entry in part[name]] for name in parts[0]} == choice["logprobs"]


def test_chat_logprobs_name_each_token_with_its_bytes() -> None:
    ids = list(MODEL.encode("é🙂"))
    told = chat_logprobs(NAMES, ids, [PositionLogprobs(-0.25, ((ids[0], -0.25),))] * len(ids))

    assert bytes(byte for entry in told["content"] for byte in entry["bytes"]).decode() == "é🙂"
    assert told["content"][0]["logprob"] == -0.25
    assert told["content"][0]["top_logprobs"][0]["token"] == MODEL.token_name(ids[0])[0]


def test_completion_logprobs_say_where_each_token_begins() -> None:
    ids, logprobs = drawn("Paris is")
    told = completion_logprobs(NAMES, ids, logprobs, text_offset=10)

    assert told["tokens"] == [MODEL.token_text(token) for token in ids]
    assert told["text_offset"][0] == 10
    assert told["text_offset"][-1] + len(told["tokens"][-1]) == 10 + len("Paris is")
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(told["text_offset"])


def test_parts_of_a_character_are_named_by_their_bytes() -> None:
    ids = [
        token
        for byte in "é🙂".encode()
        for token in range(MODEL.card.vocab_size)
        if MODEL.token_bytes(token) == bytes([byte])
    ]
    logprobs = [PositionLogprobs(-0.5, ((ids[0], -0.5), (ids[1], -0.6)))] * len(ids)

    told = chat_logprobs(NAMES, ids, logprobs)["content"]
    legacy = completion_logprobs(NAMES, ids, logprobs, 3)
    chunks = [TextChunk(0, "", (token,), (drawn,), None) for token, drawn in zip(ids, logprobs, strict=True)]
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed(CompletionAnswer, *chunks, logprobs=2)]

    assert [entry["token"] for entry in told[:3]] == [r"\xc3", r"\xa9", r"\xf0"]
    assert [entry["bytes"] for entry in told[:3]] == [[0xC3], [0xA9], [0xF0]]
    assert [entry["token"] for entry in told[0]["top_logprobs"]] == [r"\xc3", r"\xa9"]
    assert legacy["tokens"][:2] == [r"bytes:\xc3", r"bytes:\xa9"]
    assert set(legacy["top_logprobs"][0]) == {r"bytes:\xc3", r"bytes:\xa9"}
    assert legacy["text_offset"] == [3, 4, 4, 5, 5, 5]
    assert [offset - 3 for offset in legacy["text_offset"]] == [part["text_offset"][0] for part in parts]


def test_what_cannot_come_is_a_number_that_json_can_say() -> None:
    ids, logprobs = drawn("Paris", logprob=-math.inf)

    assert chat_logprobs(NAMES, ids, logprobs)["content"][0]["logprob"] == -9999.0
    assert completion_logprobs(NAMES, ids, logprobs, 0)["token_logprobs"][0] == -9999.0
    assert -9999.0 in completion_logprobs(NAMES, ids, logprobs, 0)["top_logprobs"][0].values()


def test_no_tokens_no_logprobs() -> None:
    assert chat_logprobs(NAMES, [], []) == {"content": [], "refusal": None}
    assert completion_logprobs(NAMES, [], [], 4)["text_offset"] == []


def test_tokens_and_their_logprobs_have_to_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        chat_logprobs(NAMES, [1, 2], [PositionLogprobs(-1.0, ())])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("text", ["a", '"\\\n\r\t', "\x00text\x00", "é\u2028🙂"])
def test_a_chunk_that_is_nothing_but_text_differs_only_in_its_text(
    shape: type[AnswerBuilder], include_usage: bool, text: str
) -> None:
    chunk = TextChunk(3, text, (), (), None)

    *_, plain, last = streamed(
        shape, chunk, TextChunk(3, text, (), (), "stop"), model='"\x00text\x00"', include_usage=include_usage
    )[: -1 if include_usage else None]

    assert texts([plain, last]) == [text, text]
    last["choices"][0]["finish_reason"] = None
    assert plain == last
