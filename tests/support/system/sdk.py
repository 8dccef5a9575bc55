"""What the cases with the official SDKs share: what is asked, and which fields the SDK's own types know."""

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from typing_extensions import is_typeddict

from tests.support.system.harness import MODEL

QUESTION = {"role": "user", "content": "What is the capital of France?"}
SAID = "The capital of France is Paris."
"""What the model says to it, the likeliest token at each step."""
ASKED: dict[str, Any] = {"model": MODEL, "messages": [QUESTION], "temperature": 0, "max_tokens": 8}
BANANAS = [{"role": "user", "content": "Say the word banana ten times."}]
"""The model cannot stop."""
PROMPT = "The capital of France is"
COMPLETED: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 4}
RESPONDED: dict[str, Any] = {"model": MODEL, "input": QUESTION["content"], "temperature": 0, "max_output_tokens": 8}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""A schema of which every instance is short."""

OfField = dict[str, Any]
T = TypeVar("T")
AT_ONCE = 8


def function(name: str, schema: Mapping[str, Any] = CITY, **more: Any) -> OfField:
    """A tool."""
    described = {"name": name, "description": f"The {name} of a city.", "parameters": schema, **more}
    return {"type": "function", "function": described}


def chat(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    """The answer to the question, with these fields instead of or beside the usual ones."""
    answer: ChatCompletion = client.chat.completions.create(**{**ASKED, **fields})
    return answer


def chat_chunks(client: openai.OpenAI, **fields: Any) -> list[ChatCompletionChunk]:
    """The same, streamed."""
    return list(client.chat.completions.create(**{**ASKED, **fields, "stream": True}))


def complete(client: openai.OpenAI, **fields: Any) -> Completion:
    """How the prompt goes on."""
    answer: Completion = client.completions.create(**{**COMPLETED, **fields})
    return answer


def complete_chunks(client: openai.OpenAI, **fields: Any) -> list[Completion]:
    """The same, streamed."""
    return list(client.completions.create(**{**COMPLETED, **fields, "stream": True}))


def respond(client: openai.OpenAI, **fields: Any) -> Response:
    """The response to the question, with these fields instead of or beside the usual ones."""
    answer: Response = client.responses.create(**{**RESPONDED, **fields})
    return answer


def response_events(client: openai.OpenAI, **fields: Any) -> list[ResponseStreamEvent]:
    """The same, streamed."""
    return list(client.responses.create(**{**RESPONDED, **fields, "stream": True}))


@contextmanager
def answers_to(cases: Sequence[OfField], ask: Callable[..., T]) -> Iterator[Callable[[OfField], T]]:
    """Send a request for every case, AT_ONCE at a time; yield a function that returns the answer to one of the cases.

    The model computes a batch in little more time than one request."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = {id(fields): pool.submit(ask, **fields) for fields in cases}
        yield lambda fields: asked[id(fields)].result()


def content(answer: ChatCompletion, index: int = 0) -> str:
    """What a choice says."""
    return answer.choices[index].message.content or ""


def texts(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """What a choice of a stream says."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def output_tokens(answer: ChatCompletion | Completion) -> int:
    """As its usage says."""
    assert answer.usage is not None
    return answer.usage.completion_tokens


def refused(call: Callable[..., object], *arguments: Any, **fields: Any) -> openai.APIStatusError:
    """The error that a call ends with."""
    with pytest.raises(openai.APIStatusError) as caught:
        call(*arguments, **fields)
    return caught.value


def known_paths(kind: Any) -> set[str]:
    """The fields of a request, and of all objects within it, that the SDK's types know: `messages.content.text`."""
    return set(_typed_paths(kind, "", ()))


def _typed_paths(kind: Any, path: str, above: tuple[Any, ...]) -> Iterator[str]:
    if not is_typeddict(kind):
        for argument in typing.get_args(kind):
            yield from _typed_paths(argument, path, above)
    elif kind not in above:
        for name, inner in typing.get_type_hints(kind).items():
            named = f"{path}.{name}".lstrip(".")
            yield named
            yield from _typed_paths(inner, named, (*above, kind))


def used_paths(value: object, path: str = "") -> set[str]:
    """The same of what is sent."""
    if isinstance(value, list):
        return set().union(*[used_paths(item, path) for item in value])
    if not isinstance(value, dict):
        return set()
    named = {name: f"{path}.{name}".lstrip(".") for name in value}
    return set(named.values()).union(*[used_paths(inner, named[name]) for name, inner in value.items()])
