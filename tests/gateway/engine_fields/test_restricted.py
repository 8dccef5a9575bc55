"""vLLM's restrictions of what may be drawn, and `best_of`."""

from typing import Any

import msgspec
import pytest

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import PositionLogprobs, TokenDelta
from tests.support.gateway.cards import byte_level_card, metaspace_card
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, SAID, Served, serving, settings

pytestmark = pytest.mark.anyio
COMPLETION = {"model": "tiny", "prompt": "The capital"}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(limits={"tokens_per_day": 1_000_000})
    return fresh_gateway


async def answer(served: Served, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    got = await served.post(path, {**(COMPLETION if path == COMPLETIONS else ASKED), **fields})
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


async def refused(served: Served, path: str = COMPLETIONS, **fields: Any) -> str:
    got = await served.post(path, {**(COMPLETION if path == COMPLETIONS else ASKED), **fields})
    assert got.status_code == 400, got.text
    param: str = got.json()["error"]["param"]
    return param


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_restrictions_reach_the_worker_as_tokens(served: Served, path: str) -> None:
    text = TextModel(served.worker.card)
    await answer(served, path, allowed_token_ids=[5, 7], bad_words=["Paris", "capital of"])

    sampling = served.worker.seen[-1].job.sampling
    assert sampling.allowed_token_ids == (5, 7)
    spelled = {"".join(map(text.token_text, word)) for word in sampling.bad_words}
    assert spelled >= {"Paris", "capital of"}
    assert spelled <= {"Paris", " Paris", "capital of", " capital of"}


async def test_a_word_is_also_refused_after_a_space_where_that_is_another_token() -> None:
    both = [TextModel(card) for card in (byte_level_card(), metaspace_card())]
    for text in both:
        for word in ("Paris", " Paris", "a"):
            found = text.bad_words([word])
            bare, spaced = (text.encode(form, marked=False) for form in (word.strip(), f" {word.strip()}"))
            other = len(spaced) == len(bare) and spaced[0] != bare[0]
            assert found == ((bare, spaced) if other else (bare,))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids.[0]"),
        ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words.[0]"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"bad_words": ["a" * 257]}, "bad_words.[0]"),
    ],
)
async def test_restrictions_have_bounds(served: Served, path: str, fields: dict[str, Any], param: str) -> None:
    assert await refused(served, path, **fields) == param


async def test_neutral_restrictions_ask_for_nothing(served: Served) -> None:
    await answer(served, allowed_token_ids=[], bad_words=[], best_of=None)
    await answer(served, allowed_token_ids=None, bad_words=None, best_of=1)

    assert {lease.job.sampling.allowed_token_ids for lease in served.worker.seen} == {()}


async def test_the_likeliest_choices_are_returned_and_all_are_charged(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices of each prompt are as likely as 2, 0, 3 and 1 in this order."""
    put, ranks = served.worker.outlet.put, (1, 3, 0, 2)

    def put_ranked(publications: Any) -> None:
        for each in publications:
            events = []
            for event in each.events:
                if isinstance(event, TokenDelta):
                    own = (PositionLogprobs(-1.0 - ranks[event.choice], ()),) if event.logprobs else ()
                    event = msgspec.structs.replace(event, logprobs=own)
                events.append(event)
            put([each._replace(events=tuple(events))])

    monkeypatch.setattr(served.worker.outlet, "put", put_ranked)
    found = await answer(served, prompt=["ab", "France"], n=2, best_of=4, max_tokens=3, logprobs=0, echo=True)
    plain = await answer(served, prompt=["ab", "France"], n=2, best_of=4, max_tokens=3)

    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert [choice["logprobs"]["token_logprobs"][-1] for choice in found["choices"]] == [-1.0, -2.0] * 2
    assert [choice["text"][:2] for choice in found["choices"]] == ["ab", "ab", "Fr", "Fr"]
    assert found["usage"]["completion_tokens"] == 2 * 4 * 3
    assert [choice["logprobs"] for choice in plain["choices"]] == [None] * 4
    await served.landed()
    assert {output for _, _, output in await served.ledger()} == {24}


async def test_best_of_has_bounds(served: Served) -> None:
    assert await refused(served, n=3, best_of=2) == "best_of"
    assert await refused(served, best_of=21) == "best_of"
    assert await refused(served, best_of=20) == "best_of"  # more than the worker runs at once
    assert await refused(served, n=16) == "n"
    assert await refused(served, best_of=2, stream=True) == "best_of"
    assert await refused(served, prompt=["a"] * 20, best_of=8) == "prompt"
    assert len((await answer(served, n=2, best_of=2))["choices"]) == 2


async def test_what_an_engine_lacks_is_refused_by_the_field_that_needs_it(valkey_url: str) -> None:
    card = msgspec.structs.replace(
        byte_level_card(), lacks=("bad_words", "allowed_token_ids", "logprobs", "prompt_logprobs")
    )
    async with serving(settings(valkey_url), card=card) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        assert await refused(opened, bad_words=["a"]) == "bad_words"
        assert await refused(opened, allowed_token_ids=[1]) == "allowed_token_ids"
        assert await refused(opened, best_of=2) == "best_of"
        assert await refused(opened, prompt_logprobs=0) == "prompt_logprobs"
        assert await refused(opened, CHAT, prompt_logprobs=0) == "prompt_logprobs"
        echoed = await answer(opened, echo=True, best_of=1, bad_words=[])
        assert echoed["choices"][0]["text"] == "The capital" + SAID
