"""Completions between a prompt and a suffix, as models with fill-in-the-middle tokens make them."""

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer

from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import ModelCard
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.served import COMPLETIONS, Served, serving, settings

FAMILIES = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - as DeepSeek writes them
]
ASKED = {"model": "tiny", "prompt": "def stop(", "suffix": "):\n    return", "max_tokens": 3}


def filling(names: tuple[str, ...]) -> ModelCard:
    card = byte_level_card()
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return msgspec.structs.replace(
        card, tokenizer_json=tokenizer.to_str(), vocab_size=tokenizer.get_vocab_size(with_added_tokens=True)
    )


@pytest.mark.parametrize("names", FAMILIES)
def test_the_prompt_names_what_is_around_the_output(names: tuple[str, ...]) -> None:
    card = filling(names)
    text, tokenizer = TextModel(card), Tokenizer.from_str(card.tokenizer_json)
    prefix, suffix, middle = (tokenizer.token_to_id(name) for name in names)
    before, after = (text.encode(part, marked=False) for part in ("def stop(", "):"))

    assert text.fill_in("def stop(", "):", marked=True) == (prefix, *before, suffix, *after, middle)
    assert text.fill_in(before, "):", marked=False) == (prefix, *before, suffix, *after, middle)


def test_a_model_without_such_tokens_refuses_it() -> None:
    with pytest.raises(ApiError) as refused:
        TextModel(filling(FAMILIES[0][:2])).fill_in("a", "b", marked=True)
    assert refused.value.param == "suffix"


@pytest.mark.anyio
async def test_completions_take_it(valkey_url: str) -> None:
    async with serving(settings(valkey_url), card=filling(FAMILIES[0])) as served:
        await served.tenant()
        assert (await served.post(COMPLETIONS, ASKED)).status_code == 200
        [lease] = served.worker.seen
        assert lease.job.prompt == TextModel(served.worker.card).fill_in("def stop(", "):\n    return", marked=True)
        assert await param(served, echo=True) == "echo"
        assert await param(served, truncate_prompt_tokens=3) == "truncate_prompt_tokens"
        assert await param(served, suffix="a" * 4000) == "prompt"


@pytest.mark.anyio
async def test_a_neutral_one_asks_for_nothing(fresh_gateway: Served) -> None:
    await fresh_gateway.tenant()
    assert await param(fresh_gateway) == "suffix"
    for neutral in ("", None):
        answer = await fresh_gateway.post(COMPLETIONS, {**ASKED, "suffix": neutral, "echo": True})
        assert answer.json()["choices"][0]["text"].startswith("def stop(")


async def param(served: Served, **fields: object) -> str:
    answer = await served.post(COMPLETIONS, {**ASKED, **fields})
    assert answer.status_code == 400, answer.text
    named: str = answer.json()["error"]["param"]
    return named
