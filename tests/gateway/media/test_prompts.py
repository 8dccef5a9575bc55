"""Prompts with images in unusual places."""

import hashlib
from collections.abc import AsyncIterator

import pytest

from fairlane.scheduler.protocol.media import MEDIA_IDS, media_id
from tests.gateway.media.files import png
from tests.gateway.media.test_conversations import CHAT, Engine, chat, image, job, shown, text, vision
from tests.support.gateway.served import Served

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
