"""Images in the lines of batches."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlane.scheduler.protocol.media import MediaForm
from tests.gateway.batches.test_message_batches import claude, over, request
from tests.gateway.batches.test_message_batches import results as message_results
from tests.gateway.media.files import png
from tests.gateway.media.test_conversations import AFTER, BEFORE, CHAT, Engine, chat, image, text, url_of
from tests.support.gateway.batch_files import begun, charged_as_told, ended, folder_settings, results
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.served import Served, serving, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def served(valkey_url: str, tmp_path: Path, engine: Engine) -> AsyncIterator[Served]:
    card = msgspec.structs.replace(byte_level_card(), media={"image": MediaForm(before=(BEFORE,), after=(AFTER,))})
    make = partial(HandWorker, engine=engine)
    async with serving(folder_settings(valkey_url, tmp_path), card=card, make=make) as served:
        await served.tenant()
        yield served
        await served.landed()
        await until(lambda: not served.resources.ports.bodies.held_bytes)


def line(custom_id: str, *parts: dict[str, Any]) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": chat(*parts)}).encode() + b"\n"


async def test_lines_with_images_are_measured_served_and_charged(served: Served, engine: Engine) -> None:
    engine.failures = 1  # its line is tried again
    content = line("a", text("a"), image(png(48))) + line("b", image(png(160))) + line("c", image(b"no image"))
    async with served.sdk() as sdk:
        batch = await ended(sdk, await begun(sdk, content, endpoint=CHAT))
        found, refused = await results(sdk, batch.output_file_id), await results(sdk, batch.error_file_id)
    await served.landed()

    assert ({*found}, {*refused}) == ({"a", "b"}, {"c"})
    assert refused["c"]["response"]["body"]["error"]["param"] == "messages.[0].content"
    await charged_as_told(served, batch, found)


async def test_message_batches_take_images_too(served: Served) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": url_of(png(48)).split(",")[1]}
    asked: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    async with claude(served) as client:
        alone_before = await client.messages.count_tokens(model="tiny", messages=asked)
        batch = await over(client, await client.messages.batches.create(requests=[request("a", messages=asked)]))
        found = await message_results(client, batch)

    assert found["a"].message.usage.input_tokens == alone_before.input_tokens
