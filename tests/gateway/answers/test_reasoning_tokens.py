"""The tokens of reasoning in a chat's usage: those whose text is reasoning, however they arrive."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.answers.choices import ChatAnswer
from fairlane.gateway.answers.chunks import TextChunk
from fairlane.gateway.dialects.openai.requests import ChatRequest
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http.sse import EventStream
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.one_request import job
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card

MODELS = {family: TextModel(tool_card(family)) for family in TOOL_MODELS}
THOUGHT = "Is a < b? Ünlikely 🙂, or </thin air"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
# What comes before and after the reasoning, by family.
AROUND: list[tuple[str, str, str]] = [
    ("Qwen 3", "<think>\n", "</think>\n\nYes: a < b."),
    ("Qwen 3", "<think>", "</think>"),
    ("Qwen 3", "\n<think>\n\n", ""),
    ("DeepSeek", "<think>", "</think>Yes."),
    ("gpt-oss", "<|channel|>analysis<|message|>", f"{FINAL}Yes."),
]


class Out:
    """A client that takes all at once."""

    started = True

    def put(self, frames: bytes) -> bool:
        return bool(frames)


def chunks(model: TextModel, ids: Sequence[int], sizes: Iterator[int], stop: Sequence[str]) -> Iterator[TextChunk]:
    shows_marks = model.output_format.shows_marks(())
    stream = TokenStream(model, stop, control_text=shows_marks, by_token=model.output_format.may_reason)
    at = 0
    while at < len(ids):
        size = next(sizes)
        piece = stream.push(ids[at : at + size])
        yield TextChunk(0, piece.text, tuple(ids[at : at + size]), (), None, cuts=piece.cuts)
        at += size
    yield TextChunk(0, stream.flush().text, (), (), "stop")


def counted(model: TextModel, ids: Sequence[int], sizes: Sequence[int], out: Any, stop: Sequence[str]) -> int:
    request = ChatRequest(model="tiny", messages=(), stop=tuple(stop))
    served = ServedModel("tiny", "tiny@0", model, (), {})
    answer = ChatAnswer(request, served, "default", [job("1")], cast(EventStream | None, out))
    for chunk in chunks(model, ids, iter([*sizes, *[1] * len(ids)]), stop):
        answer.feed([chunk])
    if out is None:
        answer.whole()
    details = answer.usage().as_json()["completion_tokens_details"]
    return int(details["reasoning_tokens"])


@pytest.mark.parametrize(("family", "before", "after"), AROUND)
@pytest.mark.parametrize("stop", [(), ("or not",)])
@given(sizes=st.lists(st.integers(1, 9), max_size=20))
@settings(max_examples=20, deadline=None)
def test_they_are_those_of_the_reasonings_text(
    family: str, before: str, after: str, stop: Sequence[str], sizes: list[int]
) -> None:
    model = MODELS[family]
    parts = [model.encode(text, marked=False) for text in (before, THOUGHT, after)]
    ids = [token for part in parts for token in part]

    assert {counted(model, ids, sizes, out, stop) for out in (None, Out())} == {len(parts[1])}


@pytest.mark.parametrize("family", ["Hermes", "Qwen 3", "gpt-oss"])
def test_an_answer_without_reasoning_has_none(family: str) -> None:
    model = MODELS[family]

    assert counted(model, model.encode("Yes: a < b.", marked=False), (), None, ()) == 0
