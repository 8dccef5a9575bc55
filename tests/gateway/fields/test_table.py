"""Every field of the table in docs/api.md is treated as the table says, and the table knows every field of the SDKs."""

from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from fairlane.gateway.control.openapi.calls import NEUTRAL
from fairlane.gateway.control.openapi.fields import Treatment, treatments
from fairlane.gateway.dialects.openai.field_types import EMPTY
from fairlane.gateway.dialects.openai.neutral import HintValues
from tests.support.api_page import TREATED
from tests.support.gateway.served import Served

pytestmark = pytest.mark.anyio
TURNS = [{"role": "user", "content": "Hi"}]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": TURNS}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "messages": ("/v1/messages", {"messages": TURNS}),
}
ODD = {"odd": 1}
TABLE: Mapping[str, Mapping[str, Treatment]] = {name: treatments(body, NEUTRAL[body]) for name, body in TREATED.items()}
SDKS = {
    "chat": chat_create_params.CompletionCreateParamsBase,
    "completions": completion_create_params.CompletionCreateParamsBase,
    "responses": response_create_params.ResponseCreateParamsBase,
    "messages": message_create_params.MessageCreateParamsBase,
    "embeddings": embedding_create_params.EmbeddingCreateParams,
}


def fields(treatment: Treatment) -> list[tuple[str, str]]:
    return [(name, field) for name in CALLS for field, how in TABLE[name].items() if how == treatment]


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(unknown_fields="refuse")
    return fresh_gateway


@pytest.mark.parametrize("name", SDKS)
def test_it_knows_every_field_of_the_sdks(name: str) -> None:
    assert get_type_hints(SDKS[name]).keys() - TABLE[name].keys() - {"stream"} == set()


async def test_hints_are_ignored_and_named(served: Served) -> None:
    for name, field in fields("hint"):
        path, body = CALLS[name]
        answer = await served.post(path, {"model": "tiny", **body, field: ODD})
        assert (answer.status_code, answer.headers["x-fairlane-ignored"]) == (200, field), (name, field)


async def test_what_cannot_be_honoured_is_refused_by_name(served: Served) -> None:
    for name, field in fields("refused"):
        path, body = CALLS[name]
        answer = await served.post(path, {"model": "tiny", **body, field: ODD})
        assert answer.status_code == 400, (name, field)
        assert answer.json()["error"]["message"].startswith(f"`{field}`"), (name, field)


@pytest.mark.parametrize("name", CALLS)
async def test_what_asks_for_nothing_is_accepted(served: Served, name: str) -> None:
    path, body = CALLS[name]
    neutral = NEUTRAL[TREATED[name]]
    nothing: dict[str, object] = dict.fromkeys(TABLE[name].keys() - body.keys() - {"model"})
    for empty in EMPTY:
        nothing |= dict.fromkeys(neutral, empty)
        answer = await served.post(path, {**nothing, "model": "tiny", **body})
        assert (answer.status_code, answer.headers.get("x-fairlane-ignored")) == (200, None), answer.text
    for field, values in neutral.items():
        for value in values:
            answer = await served.post(path, {"model": "tiny", **body, field: value})
            assert answer.status_code == 200, (field, value)
            assert "x-fairlane-ignored" not in answer.headers or not isinstance(values, HintValues)
