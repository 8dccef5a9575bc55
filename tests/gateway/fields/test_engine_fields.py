"""Fields that the engine of a model does not take, by its card: refused by name, and never left out in silence."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.served import CHAT, COMPLETIONS, Served, serving, settings

pytestmark = pytest.mark.anyio

LACKS = ("cache_salt", "ignore_eos", "logprobs", "min_p", "min_tokens", "stop_token_ids", "top_k")
ASKED = {"model": "tiny", "prompt": "The capital of France", "max_tokens": 4}
TOLD = {"model": "tiny", "messages": [{"role": "user", "content": "What?"}], "max_tokens": 4}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    card = msgspec.structs.replace(byte_level_card(), lacks=LACKS, exact=False)
    async with serving(settings(valkey_url), card=card) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        (COMPLETIONS, {**ASKED, "logprobs": 0}, "logprobs"),
        (COMPLETIONS, {**ASKED, "ignore_eos": True}, "ignore_eos"),
        (COMPLETIONS, {**ASKED, "min_tokens": 2}, "min_tokens"),
        (COMPLETIONS, {**ASKED, "stop_token_ids": [5]}, "stop_token_ids"),
        (COMPLETIONS, {**ASKED, "cache_salt": "of mine"}, "cache_salt"),
        (CHAT, {**TOLD, "logprobs": True}, "logprobs"),
        (CHAT, {**TOLD, "top_k": 5}, "top_k"),
        (CHAT, {**TOLD, "min_p": 0.1}, "min_p"),
        ("/v1/messages", {**TOLD, "top_k": 5}, "top_k"),
    ],
)
async def test_what_it_does_not_take_is_refused_by_its_name(
    served: Served, path: str, asked: dict[str, Any], param: str
) -> None:
    answer = await served.post(path, asked)

    assert answer.status_code == 400
    assert f"`{param}` cannot be served: the engine of this model does not take it." in answer.text


@pytest.mark.parametrize(
    "asked",
    [
        {
            **ASKED,
            "min_tokens": 0,
            "ignore_eos": False,
            "stop_token_ids": [],
            "top_k": -1,
            "min_p": 0,
            "logprobs": None,
        },
        {**ASKED, "seed": 5, "stop": ["."], "temperature": 0.5, "presence_penalty": 1, "repetition_penalty": 1.2},
    ],
)
async def test_all_else_is_served(served: Served, asked: dict[str, Any]) -> None:
    assert (await served.post(COMPLETIONS, asked)).status_code == 200


async def test_a_model_says_whether_its_tokens_are_exact(served: Served) -> None:
    assert (await served.get("/v1/models/tiny")).json()["exact"] is False


async def test_a_model_that_lacks_nothing_keeps_its_cards_name(valkey_url: str) -> None:
    """Cards are named by their bytes, and queues by cards: a new field must not part workers of two versions."""
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(byte_level_card()))

    assert not {"exact", "lacks", "drawn"} & encoded.keys()
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        assert (await opened.get("/v1/models/tiny")).json()["exact"] is True
        assert (await opened.post(COMPLETIONS, {**ASKED, "logprobs": 0})).status_code == 200
