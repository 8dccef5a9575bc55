"""How a model's authors draw its tokens, by its card: so where a request says nothing, and as the request says else."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.served import CHAT, COMPLETIONS, Served, serving, settings

pytestmark = pytest.mark.anyio

DRAWN: dict[str, int | float] = {"temperature": 0.25, "top_p": 0.75, "top_k": 20, "repetition_penalty": 1.5}
ASKED = {"model": "tiny", "max_tokens": 4}
CHATS: dict[str, dict[str, Any]] = {
    CHAT: {**ASKED, "messages": [{"role": "user", "content": "What?"}]},
    COMPLETIONS: {**ASKED, "prompt": "The capital of France"},
    "/v1/messages": {**ASKED, "messages": [{"role": "user", "content": "What?"}]},
    "/v1/responses": {"model": "tiny", "max_output_tokens": 16, "input": "What?"},
}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    card = msgspec.structs.replace(byte_level_card(), drawn=DRAWN)
    async with serving(settings(valkey_url), card=card) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


def drawn(served: Served) -> list[tuple[float, float, int, float]]:
    """Of each job that the worker saw."""
    told = [lease.job.sampling for lease in served.worker.seen]
    return [(one.temperature, one.top_p, one.top_k, one.repetition_penalty) for one in told]


@pytest.mark.parametrize("path", CHATS)
async def test_a_request_that_says_nothing_is_drawn_as_the_models_authors_say(served: Served, path: str) -> None:
    assert (await served.post(path, CHATS[path])).status_code == 200

    assert drawn(served) == [(0.25, 0.75, 20, 1.5)]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_a_request_says_counts_also_where_it_is_what_others_have_as_usual(served: Served, path: str) -> None:
    said = {"temperature": 1, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1}
    assert (await served.post(path, {**CHATS[path], **said})).status_code == 200
    assert (await served.post(path, {**CHATS[path], "top_p": 0})).status_code == 200
    assert (await served.post(path, {**CHATS[path], "temperature": None})).status_code == 200

    assert drawn(served) == [(1.0, 1.0, 0, 1.0), (0.25, 1.0, 1, 1.5), (0.25, 0.75, 20, 1.5)]


async def test_a_response_repeats_what_it_was_drawn_by(served: Served) -> None:
    asked = CHATS["/v1/responses"]
    silent = (await served.post("/v1/responses", asked)).json()
    stated = (await served.post("/v1/responses", {**asked, "temperature": 0.5, "top_p": 1})).json()

    assert (silent["temperature"], silent["top_p"]) == (0.25, 0.75)
    assert (stated["temperature"], stated["top_p"]) == (0.5, 1.0)


async def test_a_model_says_how_it_is_drawn(served: Served) -> None:
    assert (await served.get("/v1/models/tiny")).json()["default_sampling"] == DRAWN


async def test_a_model_whose_authors_say_nothing_has_no_such_field(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        await opened.post(CHAT, CHATS[CHAT])

        assert "default_sampling" not in (await opened.get("/v1/models/tiny")).json()
        assert drawn(opened) == [(1.0, 1.0, 0, 1.0)]
