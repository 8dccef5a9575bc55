"""`/score` and `/rerank` as clients of vLLM, Jina and Cohere call them, before a worker that scores by length."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlane.gateway.model_text.tokenizer import TextModel
from tests.gateway.pooling.pooling_worker import BEGIN, END, PoolingWorker, scoring_card
from tests.support.gateway.served import CHAT, COMPLETIONS, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio
SCORE, RERANK = ("/v1/score", "/score"), ("/v1/rerank", "/rerank", "/v2/rerank")
QUERY, DOCUMENTS = "Who?", ["short", "quite a long one", "longer"]
MARKS = 4


CARD = scoring_card()
MODEL = TextModel(CARD)


def count(text: str) -> int:
    return len(MODEL.start(text, None))


@pytest.fixture(scope="module")
async def standing(file_url: str) -> AsyncIterator[Served]:
    async with serving(settings(file_url), card=CARD, make=PoolingWorker) as opened:
        yield opened


@pytest.fixture
async def served(standing: Served) -> Served:
    await standing.renew()
    await standing.tenant(limits={"tokens_per_day": 10_000_000})
    return standing


def scores(*texts: str) -> list[float]:
    return [(count(text) + 1) / 4 for text in texts]


async def ask(served: Served, path: str, **body: object) -> httpx.Response:
    return await served.post(path, {"model": "tiny", **body})


@pytest.mark.parametrize("path", RERANK)
async def test_documents_come_back_from_the_best_with_their_places_and_the_tokens_of_all_pairs(
    served: Served, path: str
) -> None:
    answer = await ask(served, path, query=QUERY, documents=DOCUMENTS)
    await served.landed()

    whole, expected = answer.json(), scores(*DOCUMENTS)
    charged = sum(count(QUERY) + count(document) + MARKS for document in DOCUMENTS)
    order = sorted(range(3), key=lambda index: -expected[index])
    assert whole["results"] == [
        {"index": index, "relevance_score": expected[index], "document": {"text": DOCUMENTS[index]}} for index in order
    ]
    assert whole["usage"] == {"prompt_tokens": charged, "total_tokens": charged}
    assert (whole["model"], whole["id"].startswith("rerank-")) == ("tiny", True)
    assert await served.ledger() == [("finished", charged, 0)]
    assert (await served.limits())["tokens_per_day"].reserved == 0


@pytest.mark.parametrize(
    ("given", "length", "has_documents"),
    [
        ({"top_n": 2}, 2, True),
        ({"top_n": 0}, 3, True),
        ({"top_n": 9, "return_documents": True}, 3, True),
        ({"top_n": None, "return_documents": False}, 3, False),
        ({"documents": [{"text": text, "title": "t"} for text in DOCUMENTS], "rank_fields": ["text"]}, 3, True),
        ({"query": {"text": QUERY}, "user": "u", "use_activation": True}, 3, True),
    ],
)
async def test_options_of_a_ranking(served: Served, given: dict[str, Any], length: int, has_documents: bool) -> None:
    answer = await ask(served, RERANK[0], **{"query": QUERY, "documents": DOCUMENTS, **given})

    results = answer.json()["results"]
    assert len(results) == length, answer.text
    assert ["document" in one for one in results] == [has_documents] * length
    assert "x-fairlane-ignored" not in answer.headers or given.get("user")


@pytest.mark.parametrize("path", SCORE)
@pytest.mark.parametrize(
    ("first", "second"), [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
async def test_pairs_are_scored_in_their_order_by_every_name(
    served: Served, path: str, first: str, second: str
) -> None:
    to_one = (await ask(served, path, **{first: QUERY, second: DOCUMENTS})).json()
    each = (await ask(served, path, **{first: DOCUMENTS, second: DOCUMENTS})).json()
    pair = (await ask(served, path, **{first: QUERY, second: DOCUMENTS[0]})).json()

    for whole, texts in ((to_one, DOCUMENTS), (each, DOCUMENTS), (pair, DOCUMENTS[:1])):
        found = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores(*texts))]
        assert (whole["object"], whole["data"]) == ("list", found)
    assert each["usage"]["prompt_tokens"] == sum(2 * count(text) + MARKS for text in DOCUMENTS)


@pytest.mark.parametrize(
    ("given", "query", "document"),
    [
        ({"truncate_prompt_tokens": 24}, 10, 10),
        ({"truncate_prompt_tokens": 24, "query": "Q"}, 1, 19),
        ({"truncate_prompt_tokens": 24, "documents": ["D"]}, 19, 1),
        ({"truncate_prompt_tokens": -1}, 254, 254),
        ({"max_tokens_per_doc": 5, "max_tokens_per_query": 7}, 7, 5),
    ],
)
async def test_the_longer_text_of_a_pair_is_cut_at_its_end(
    served: Served, given: dict[str, Any], query: int, document: int
) -> None:
    answer = await ask(served, RERANK[0], **{"query": "q" * 5_000, "documents": ["d" * 5_000], **given})

    assert answer.status_code == 200, answer.text
    [lease] = served.worker.seen
    assert lease.job.inputs == (query + 3, document + 1)


async def test_control_tokens_in_a_text_are_text(served: Served) -> None:
    await ask(served, RERANK[0], query=f"a{END}b", documents=[BEGIN])

    [lease] = served.worker.seen
    marks = {MODEL.start("", None), *MODEL.pair_marks}
    inner = lease.job.prompt[1 : lease.job.inputs[0] - 2] + lease.job.prompt[lease.job.inputs[0] : -1]
    assert not {token for mark in marks for token in mark} & {*inner}


async def test_many_pairs_are_few_jobs(served: Served) -> None:
    answer = await ask(served, RERANK[0], query="q", documents=["d"] * 2_048)

    assert len(answer.json()["results"]) == 2_048
    assert len(served.worker.seen) == -(-2_048 // (CARD.context_length // (2 + MARKS)))


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (RERANK[0], {"documents": DOCUMENTS}, "query", "invalid_request_error"),
    (RERANK[0], {"query": QUERY}, "documents", "invalid_request_error"),
    (RERANK[0], {"query": QUERY, "documents": []}, "documents", "invalid_request_error"),
    (RERANK[0], {"query": QUERY, "documents": ["d"] * 2_049}, "documents", "invalid_request_error"),
    (RERANK[0], {"query": QUERY, "documents": [{"image": "x"}]}, "documents", "invalid_request_error"),
    (RERANK[0], {"query": QUERY, "documents": [5]}, "documents", "invalid_request_error"),
    (RERANK[0], {"query": QUERY, "documents": DOCUMENTS, "top_n": -1}, "top_n", "invalid_request_error"),
    (RERANK[0], {"query": "q", "documents": ["d"], "rank_fields": ["a"]}, "rank_fields", "invalid_request_error"),
    (RERANK[0], {"query": "q", "documents": ["d"], "softmax": True}, "softmax", "invalid_request_error"),
    (RERANK[0], {"query": QUERY, "documents": ["d" * 5_000]}, "documents", "context_length_exceeded"),
    (RERANK[0], {"query": "q" * 400, "documents": ["d" * 400]}, "documents", "context_length_exceeded"),
    (SCORE[0], {"text_1": QUERY}, "text_2", "invalid_request_error"),
    (SCORE[0], {"text_2": QUERY}, "text_1", "invalid_request_error"),
    (SCORE[0], {"text_1": DOCUMENTS[:2], "text_2": DOCUMENTS}, "text_1", "invalid_request_error"),
    (CHAT, {"messages": [{"role": "user", "content": "a"}]}, "model", "invalid_request_error"),
    (COMPLETIONS, {"prompt": "a"}, "model", "invalid_request_error"),
    ("/v1/embeddings", {"input": "a"}, "model", "invalid_request_error"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "code"), WRONG)
async def test_what_is_wrong_is_named(served: Served, path: str, body: dict[str, Any], param: str, code: str) -> None:
    answer = await ask(served, path, **body)

    assert error_of(answer) == (400, code), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    if param == "model":
        assert "scores pairs of texts and makes no " in answer.json()["error"]["message"]


async def test_the_tokens_of_all_pairs_together_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.gateway.api.scores.MAX_PAIR_TOKENS", 10)

    answer = await ask(served, RERANK[0], query="q", documents=["d"] * 2)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == "documents"
