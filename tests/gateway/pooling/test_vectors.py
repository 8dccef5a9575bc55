"""`/v1/embeddings` and `/pooling` before a worker whose vectors are the lengths of their inputs."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlane.gateway.model_text.tokenizer import TextModel
from tests.gateway.pooling.pooling_worker import PoolingWorker, embedding_card
from tests.support.gateway.served import Served, error_of, serving, settings

pytestmark = pytest.mark.anyio
EMBEDDINGS, POOLING = "/v1/embeddings", "/pooling"
CARD = embedding_card()
TEXTS = ["short", "quite a long one"]


@pytest.fixture(scope="module")
async def standing(file_url: str) -> AsyncIterator[Served]:
    async with serving(settings(file_url), card=CARD, make=PoolingWorker) as opened:
        yield opened


@pytest.fixture
async def served(standing: Served) -> Served:
    await standing.renew()
    await standing.tenant(limits={"tokens_per_day": 10_000_000})
    return standing


async def ask(served: Served, path: str, **body: object) -> httpx.Response:
    return await served.post(path, {"model": "tiny", **body})


async def test_pooling_has_vllms_form_and_the_vectors_of_embeddings(served: Served) -> None:
    pooled = (await ask(served, POOLING, input=TEXTS, task="embed")).json()
    embedded = (await ask(served, EMBEDDINGS, input=TEXTS)).json()
    packed = (await ask(served, POOLING, input=TEXTS, encoding_format="base64")).json()
    by_base64 = (await ask(served, EMBEDDINGS, input=TEXTS, encoding_format="base64")).json()
    await served.landed()

    assert (pooled["object"], pooled["model"], pooled["id"].startswith("pool-")) == ("list", "tiny", True)
    assert [(one["index"], one["object"]) for one in pooled["data"]] == [(0, "pooling"), (1, "pooling")]
    for whole, other in ((pooled, embedded), (packed, by_base64)):
        assert [one["data"] for one in whole["data"]] == [one["embedding"] for one in other["data"]]
    counted = sum(len(TextModel(CARD).input(text)) for text in TEXTS)
    assert pooled["usage"] == embedded["usage"] == {"prompt_tokens": counted, "total_tokens": counted}
    assert await served.ledger() == [("finished", counted, 0)] * 4


@pytest.mark.parametrize("path", [EMBEDDINGS, POOLING])
@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ({"input": ["q" * 5_000, "a"], "truncate_prompt_tokens": 7}, (7, 1)),
        ({"input": ["q" * 5_000], "truncate_prompt_tokens": -1}, (CARD.context_length,)),
        ({"input": [[5] * 5_000, [5]], "truncate_prompt_tokens": 7}, (7, 1)),
    ],
)
async def test_a_longer_input_keeps_its_start(
    served: Served, path: str, given: dict[str, Any], lengths: tuple[int, ...]
) -> None:
    answer = await ask(served, path, **given)

    assert answer.status_code == 200, answer.text
    assert [lease.job.inputs for lease in served.worker.seen] == [lengths]


@pytest.mark.parametrize(
    ("path", "given", "param"),
    [
        (POOLING, {"input": "a", "task": "token_embed"}, "task"),
        (POOLING, {"input": "a", "dimensions": 1}, "dimensions"),
        (EMBEDDINGS, {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (EMBEDDINGS, {"input": "a", "truncation_side": "left"}, "truncation_side"),
        (EMBEDDINGS, {"input": "a", "use_activation": False}, "use_activation"),
    ],
)
async def test_what_is_wrong_is_named(served: Served, path: str, given: dict[str, Any], param: str) -> None:
    answer = await ask(served, path, **given)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == param
