"""Where each API has images besides its plain parts: a model that takes images reads them at their places."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.media.files import png
from tests.gateway.media.test_conversations import CHAT, MESSAGES, RESPONSES, Engine, job, shown, text, url_of, vision
from tests.support.gateway.served import Served

pytestmark = pytest.mark.anyio
DATA = base64.b64encode(png(48)).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
INPUT_IMAGE: dict[str, Any] = {"type": "input_image", "image_url": url_of(png(48))}
CALLED = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
DOCUMENT = {"type": "document", "title": "T", "source": {"type": "content", "content": [text("a"), IMAGE, text("b")]}}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with vision(valkey_url, Engine()) as served:
        yield served


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


@pytest.mark.parametrize(
    ("turns", "read"),
    [
        ([user(DOCUMENT)], "T\na<3>b"),
        ([user(text("x"), DOCUMENT, IMAGE)], "x\nT\na<3>b<3>"),
        ([user(text("x")), {"role": "assistant", "content": [text("a"), IMAGE]}, user(text("y"))], "a<3>"),
        (
            [
                user(text("x")),
                {"role": "assistant", "content": [CALLED]},
                user({"type": "tool_result", "tool_use_id": "1", "content": [DOCUMENT, IMAGE]}),
            ],
            "T\na<3>b<3>",
        ),
    ],
)
async def test_images_in_messages(served: Served, turns: list[dict[str, Any]], read: str) -> None:
    said = await served.post(MESSAGES, {"model": "tiny", "max_tokens": 9, "messages": turns})

    assert said.status_code == 200, said.text
    assert "x-fairlane-ignored" not in said.headers
    assert read in shown(served)
    assert said.json()["usage"]["input_tokens"] == len(job(served).prompt)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": url_of(png(48))},
        {"type": "input_image", "image_url": url_of(png(48)), "detail": "original"},
        IMAGE,
        {"type": "image", "base64": DATA, "mime_type": "image/png"},
        {"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"},
        {"type": "image", "url": url_of(png(48))},
        {"type": "image", "image": url_of(png(48))},
    ],
)
async def test_images_in_the_forms_of_other_apis(served: Served, part: dict[str, Any]) -> None:
    said = await served.post(CHAT, {"model": "tiny", "messages": [user(text("a"), part, text("b"))]})

    assert said.status_code == 200, said.text
    assert "a<3>b" in shown(served)


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": url_of(png(48))}}, 3),
        ({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": DATA}, 3),
        ({"type": "function_call_output", "output": [INPUT_IMAGE]}, 3),
        ({"type": "function_call_output", "output": [{**INPUT_IMAGE, "text": None, "file_id": None}]}, 3),
    ],
)
async def test_images_of_tools_in_a_responses_input(served: Served, item: dict[str, Any], read: int) -> None:
    items = [{"role": "user", "content": "x"}, {"call_id": "1", **item}, {"role": "user", "content": "y"}]
    said = await served.post(RESPONSES, {"model": "tiny", "input": items})

    assert said.status_code == 200, said.text
    assert "x-fairlane-ignored" not in said.headers
    assert f"<{read}>" in shown(served)
    again = {"model": "tiny", "input": "And?", "previous_response_id": said.json()["id"]}
    assert (await served.post(RESPONSES, again)).status_code == 200
    assert f"<{read}>" in shown(served)
