"""What a model's card alone answers: tokens of texts and conversations, and texts of tokens."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio

TEXT = "The capital of France is Paris."
TOKENIZE, DETOKENIZE, EMBEDDINGS = "/tokenize", "/detokenize", "/v1/embeddings"
CARD = byte_level_card()
MODEL = TextModel(CARD)


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(limits={"tokens_per_day": 100_000})
    return fresh_gateway


async def told(served: Served, path: str, body: dict[str, Any]) -> Any:
    answer = await served.post(path, {"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_text_counts_as_a_completion_charges_it(served: Served) -> None:
    counted = await told(served, TOKENIZE, {"prompt": TEXT})
    completed = await told(served, COMPLETIONS, {"prompt": TEXT, "max_tokens": 1})

    assert counted["count"] == len(counted["tokens"]) == completed["usage"]["prompt_tokens"]
    assert counted["max_model_len"] == (await served.get("/v1/models/tiny")).json()["max_model_len"]
    assert "token_strs" not in counted


async def test_a_conversation_counts_as_a_chat_charges_it(served: Served) -> None:
    counted = await told(served, TOKENIZE, {**ASKED, "add_generation_prompt": True, "return_token_strs": True})
    answered = await told(served, CHAT, {**ASKED, "max_tokens": 1})

    assert counted["count"] == len(counted["token_strs"]) == answered["usage"]["prompt_tokens"]
    assert await told(served, TOKENIZE, {**ASKED, "max_tokens": 5}) == {
        name: value for name, value in counted.items() if name != "token_strs"
    }


async def test_the_beginning_of_the_models_turn_counts_only_if_it_is_there(served: Served) -> None:
    whole, ended = ASKED, {**ASKED, "add_generation_prompt": False}
    continued = {**ASKED, "continue_final_message": True}

    counts = [(await told(served, TOKENIZE, body))["count"] for body in (whole, ended, continued)]

    assert counts == sorted(set(counts), reverse=True)


async def test_tools_count_too(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"enum": list(range(8))}}}]
    plain, offered = ASKED, {**ASKED, "tools": tools, "metadata": {"pad": "x" * 500}}
    long = [*ASKED["messages"], {"role": "user", "content": "\u00e9" * 20_000}]

    assert (await told(served, TOKENIZE, offered))["count"] >= (await told(served, TOKENIZE, plain))["count"]
    assert error_of(await served.post(TOKENIZE, {**offered, "messages": long})) == (400, "context_length_exceeded")


async def test_a_text_comes_back(served: Served) -> None:
    counted = await told(served, TOKENIZE, {"prompt": TEXT, "add_special_tokens": False, "return_token_strs": True})

    assert "".join(counted["token_strs"]) == TEXT
    assert await told(served, DETOKENIZE, {"tokens": counted["tokens"]}) == {"prompt": TEXT}
    assert await told(served, DETOKENIZE, {"tokens": []}) == {"prompt": ""}


@given(st.text(max_size=200))
async def test_any_text_comes_back(text: str) -> None:
    assert MODEL.spelled_out(MODEL.encode(text, marked=False)) == text


async def test_nothing_of_it_is_charged(served: Served) -> None:
    await told(served, TOKENIZE, {"prompt": TEXT})
    await told(served, DETOKENIZE, {"tokens": [1, 2, 3]})

    assert await served.ledger() == []
    assert (await served.limits())["tokens_per_day"].used == 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": 5}, "prompt"),
        (TOKENIZE, {"prompt": TEXT, "messages": ASKED["messages"]}, "prompt"),
        (TOKENIZE, {"messages": []}, "messages"),
        (TOKENIZE, {**ASKED, "add_generation_prompt": 1}, "add_generation_prompt"),
        (TOKENIZE, {**ASKED, "add_special_tokens": 0}, "add_special_tokens"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": "1"}, "tokens"),
        (DETOKENIZE, {"tokens": [1, True]}, "tokens"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens"),
        (DETOKENIZE, {"tokens": [CARD.vocab_size]}, "tokens"),
        (DETOKENIZE, {"tokens": [1] * (CARD.context_length + 1)}, "tokens"),
        (EMBEDDINGS, {"input": TEXT}, "model"),
        *((path, {"text_1": TEXT, "text_2": TEXT}, "model") for path in ("/v1/score", "/score")),
        *((path, {"query": TEXT, "documents": [TEXT]}, "model") for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": [[1, 2], [3]], "dimensions": 0}, "dimensions"),
    ],
)
async def test_what_is_wrong_is_named(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    answer = await served.post(path, {"model": "tiny", **body})

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == param


async def test_a_text_that_no_context_holds_is_not_tokenised(served: Served) -> None:
    answer = await served.post(TOKENIZE, {"model": "tiny", "prompt": TEXT * 2_000})

    assert error_of(answer) == (400, "context_length_exceeded")


async def test_a_text_over_the_context_is_refused_with_its_count(served: Served) -> None:
    asked = {"model": "tiny", "add_special_tokens": False}
    fits = await served.post(TOKENIZE, {**asked, "prompt": "q" * CARD.context_length})
    text = await served.post(TOKENIZE, {**asked, "prompt": "q" * (CARD.context_length + 1)})
    chat = {"messages": [{"role": "user", "content": "q" * CARD.context_length}]}
    conversation = await served.post(TOKENIZE, {"model": "tiny", **chat})

    # The length alone does not show that the text is too long: it was tokenised.
    assert MODEL.vocabulary.least_tokens("q" * (CARD.context_length + 1)) < CARD.context_length
    assert fits.json()["count"] == CARD.context_length
    for refused, param in ((text, "prompt"), (conversation, "messages")):
        assert error_of(refused) == (400, "context_length_exceeded")
        assert refused.json()["error"]["param"] == param
    assert f"resulted in {CARD.context_length + 1} tokens" in text.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"), [(TOKENIZE, {"prompt": TEXT}), (DETOKENIZE, {"tokens": [1]}), (EMBEDDINGS, {"input": TEXT})]
)
async def test_each_is_a_tenants_own(served: Served, path: str, body: dict[str, Any]) -> None:
    await served.tenant("scoped", scopes={"endpoints": ["/tokenize"]})
    await served.tenant("other", models=["elsewhere"])
    served.keys["nobody"] = "fl-none"
    asked = {"model": "tiny", **body}

    assert error_of(await served.post(path, asked, tenant="nobody")) == (401, "invalid_api_key")
    assert error_of(await served.post(path, {**asked, "model": "other"})) == (404, "model_not_found")
    assert error_of(await served.post(path, asked, tenant="other")) == (403, "model_not_allowed")
    if path != TOKENIZE:
        assert error_of(await served.post(path, asked, tenant="scoped")) == (403, "endpoint_not_allowed")


async def test_wrong_ones_count_as_refused_requests(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"refused_per_minute": 2})) as served:
        await served.tenant()
        statuses = [(await served.post(TOKENIZE, {"model": "tiny"})).status_code for _ in range(4)]

    assert statuses == [400, 400, 429, 429]
