"""Prompts with images in unusual places."""

import hashlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
from msgspec.structs import replace

from fairlane.gateway.dialects.media_marks import Mark, Media, MediaFound, Medium, ReadMedium, joined, source_of
from fairlane.gateway.dialects.openai.requests import Turn, rewritten
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.media.reader import MediaItem
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.media import MEDIA_IDS, MediaForm, MediaKind, media_id
from tests.gateway.media.files import png
from tests.gateway.media.test_conversations import CHAT, Engine, chat, image, job, shown, text, vision
from tests.support.gateway.families import STRICT_TEMPLATES, prompt_text, strict_model
from tests.support.gateway.served import Served
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with vision(valkey_url, Engine()) as served:
        yield served


def alike() -> tuple[bytes, bytes]:
    """Two images whose digests begin alike."""
    seen = dict[int, bytes]()
    for number in range(10**6):
        data = png(48 if number % 2 else 160) + number.to_bytes(4, "big")
        other = seen.setdefault(media_id(hashlib.sha256(data).digest()), data)
        if len({other[19], data[19]}) == 2:
            return other, data
    raise AssertionError


async def test_images_whose_digests_begin_alike_keep_their_places(served: Served) -> None:
    first, second = alike()

    said = await served.post(CHAT, chat(image(first), text("and"), image(second), text("now.")))

    assert said.status_code == 200
    assert [(span.digest, span.length) for span in job(served).media] == [
        (hashlib.sha256(data).digest(), data[19] // 16) for data in (first, second)
    ]
    assert "and" in shown(served)
    assert len({token for token in job(served).prompt if token >= MEDIA_IDS}) == 2


async def test_an_image_before_the_answer_is_no_part_of_the_vocabulary(served: Served) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    said = await served.post(CHAT, chat(image(png(48)), tools=[tool]))

    assert said.status_code == 200
    [model] = served.resources.fleet.cache.models.values()
    assert max({**model.text.vocabulary._later, **model.text.vocabulary._first}) < 2**30


async def test_images_stand_in_a_message_that_is_continued(served: Served) -> None:
    turns = chat(text("a"), image(png(48)))["messages"]
    turns.append({"role": "assistant", "content": [text("Look: "), image(png(32)), text("12 ")]})
    said = await served.post(
        CHAT, {"model": "tiny", "messages": turns, "add_generation_prompt": False, "continue_final_message": True}
    )
    assert said.status_code == 200, said.text
    assert shown(served).endswith("Look: <2>12 ")


MODELS = [*map(strict_model, STRICT_TEMPLATES), *(TextModel(tool_card(name)) for name in TOOL_MODELS)]
CALL = ToolCall(name="look", arguments="{}", id="aaaaaaaaa")
# Each `#` is an image.
CONVERSATIONS = [
    [("user", "#"), ("user", "and #"), ("assistant", "1# 2"), ("user", "7#8#")],
    [("system", "Mind #."), ("user", "##"), ("system", "#9"), ("assistant", "#"), ("user", "  #  ")],
    [("user", "a"), ("call", ""), ("tool", "#1"), ("user", "#"), ("tool", "no call #")],
    [("assistant", "#"), ("assistant", "#"), ("tool", "#")],
]


def written(turns: list[tuple[str, str]]) -> tuple[list[Turn], Media]:
    """The turns with marks, and their media."""
    found, made, items = MediaFound(), list[Turn](), list[ReadMedium]()
    for role, words in turns:
        parts = list[str | Mark]()
        for place, piece in enumerate(words.split("#")):
            if place:
                source = source_of("image", "https://a/b", "p")
                parts.append(found.mark(Medium(param="p", type="image", source=source, may_omit=True)))
                digest = hashlib.sha256(bytes([len(items)])).hexdigest()
                items.append(ReadMedium(MediaItem("image", "image/png", b"", digest), 1 + len(items)))
            parts += [piece] if piece else []
        calls, of = ((CALL,), None) if role == "call" else ((), CALL.id if role == "tool" else None)
        name = "assistant" if role == "call" else role
        made.append(Turn(role=name, content=joined(parts), tool_calls=calls, tool_call_id=of))
    return made, Media(key=found.key, given=tuple(found.given), read=tuple(items))


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("turns", CONVERSATIONS)
@pytest.mark.parametrize("model", MODELS, ids=[*STRICT_TEMPLATES, *TOOL_MODELS])
def test_every_template_keeps_all_images(model: TextModel, turns: list[tuple[str, str]], leads: bool) -> None:
    forms: dict[MediaKind, MediaForm] = {"image": MediaForm(before=(7,), after=(8,), leads=leads)}
    model = TextModel(replace(model.card, media=forms, context_length=4096))
    messages, media = written(turns)
    rewrite = partial(media.leading, forms=forms)

    prompt = model.chat_prompt(rewritten(messages, rewrite), media=media)

    spans = media.spans(prompt)
    assert sorted(span.length for span in spans) == [*range(1, len(media.read) + 1)]
    assert all((prompt[span.offset - 1], prompt[span.offset + span.length]) == (7, 8) for span in spans)
    assert media.key not in prompt_text(model, tuple([token for token in prompt if token < MEDIA_IDS]))
