"""Fields that change the tokens of a prompt: special ones around it, and how many of it are kept."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, processors

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import ModelCard
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.served import CHAT, COMPLETIONS, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio
START = "<|im_start|>"
# Tokens that the worker's KV pool holds.
ROOM = 4_096


def marking_card() -> ModelCard:
    """A model whose tokenizer begins each text with a special token."""
    card = byte_level_card()
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    special = [(START, tokenizer.token_to_id(START))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=special)
    return replace(card, tokenizer_json=tokenizer.to_str(), context_length=2 * ROOM)


CARD = marking_card()
MODEL = TextModel(CARD)
TURN = f"{START}user\nHi<|im_end|>\n{START}assistant\n"
LONG = "q" * (2 * ROOM + 100)


@pytest.fixture(scope="module")
async def file_gateway(file_url: str) -> AsyncIterator[Served]:
    async with serving(settings(file_url), card=CARD) as opened:
        yield opened


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


def turns(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


async def prompt_of(served: Served, path: str, body: dict[str, Any]) -> tuple[int, ...]:
    """The prompt that the worker gets, which is what is charged."""
    answer = await served.post(path, {"model": "tiny", "max_tokens": 4, **body})
    assert answer.status_code == 200, answer.text
    prompt = served.worker.seen[-1].job.prompt
    assert answer.json()["usage"]["prompt_tokens"] == len(prompt)
    return tuple(prompt)


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        (COMPLETIONS, {"prompt": "Hi"}, f"{START}Hi"),
        (COMPLETIONS, {"prompt": "Hi", "add_special_tokens": None}, f"{START}Hi"),
        (COMPLETIONS, {"prompt": "Hi", "add_special_tokens": True}, f"{START}Hi"),
        (COMPLETIONS, {"prompt": "Hi", "add_special_tokens": False}, "Hi"),
        (CHAT, {"messages": turns("Hi")}, TURN),
        (CHAT, {"messages": turns("Hi"), "add_special_tokens": False}, TURN),
        (CHAT, {"messages": turns("Hi"), "add_special_tokens": True}, START + TURN),
    ],
)
async def test_special_tokens_are_added(served: Served, path: str, body: dict[str, Any], prompt: str) -> None:
    assert MODEL.spelled_out(await prompt_of(served, path, body)) == prompt


@pytest.mark.parametrize(
    ("kept", "max_tokens", "left"),
    [
        (1, 4, 1),
        (50, 4, 50),
        (-1, 4, ROOM - 4),
        (-1, None, ROOM - 1),
        (-1, 2 * ROOM, ROOM - 1),
        (ROOM - 4, 4, ROOM - 4),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_end_of_a_prompt_is_kept(
    served: Served, path: str, kept: int, max_tokens: int | None, left: int
) -> None:
    body = {"messages": turns(LONG)} if path == CHAT else {"prompt": LONG}
    whole = MODEL.encode(TURN.replace("Hi", LONG) if path == CHAT else LONG, marked=path != CHAT, last=ROOM)

    prompt = await prompt_of(served, path, {**body, "truncate_prompt_tokens": kept, "max_tokens": max_tokens})

    assert prompt == whole[-left:]


@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": 100}, {"truncate_prompt_tokens": None}])
@pytest.mark.parametrize("prompt", ["Hi", [5, 6, 7]])
async def test_a_shorter_prompt_stays_as_it_is(served: Served, prompt: Any, fields: dict[str, Any]) -> None:
    plain = await prompt_of(served, COMPLETIONS, {"prompt": prompt})

    assert await prompt_of(served, COMPLETIONS, {"prompt": prompt, **fields}) == plain


async def test_what_is_kept_leaves_room_for_every_choice(served: Served) -> None:
    body = {"model": "tiny", "prompt": LONG, "truncate_prompt_tokens": -1, "max_tokens": 4, "n": 8}
    answer = await served.post(COMPLETIONS, body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == ROOM - 8


async def test_a_count_is_of_what_is_kept(served: Served) -> None:
    counts = []
    for kept in (3, -1):
        body = {"model": "tiny", "messages": turns(LONG), "truncate_prompt_tokens": kept}
        counts.append((await served.post("/tokenize", body)).json()["count"])

    assert counts == [3, ROOM - 1]


async def test_token_ids_are_cut_too(served: Served) -> None:
    ids = [5] * ROOM + [6, 7]

    assert await prompt_of(served, COMPLETIONS, {"prompt": ids, "truncate_prompt_tokens": 3}) == (5, 6, 7)


async def test_what_is_kept_must_fit_too(served: Served) -> None:
    body = {"model": "tiny", "prompt": LONG, "truncate_prompt_tokens": 2 * ROOM + 1}

    assert error_of(await served.post(COMPLETIONS, body)) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("field", "value"),
    [*(("truncate_prompt_tokens", wrong) for wrong in (0, -2, 1.5, "1", True)), ("add_special_tokens", 1)],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_wrong_value_is_named(served: Served, path: str, field: str, value: Any) -> None:
    body = {"messages": turns("Hi")} if path == CHAT else {"prompt": "Hi"}

    answer = await served.post(path, {"model": "tiny", **body, field: value})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
