"""What a request with images holds: counted against its tenant while it lives, and gone with it, however it ends."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlane.gateway.media.reader import MediaItem, MediaSource
from tests.gateway.media.files import png
from tests.gateway.media.test_conversations import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TWO,
    Engine,
    chat,
    image,
    url_of,
    vision,
)
from tests.support.gateway.served import Served, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with vision(valkey_url, Engine()) as served:
        yield served


@pytest.fixture
def uncollected() -> Iterator[int]:
    """Nothing is freed but by its last reference. The number of media that other tests keep."""
    gc.collect()
    gc.disable()
    yield alive(MediaItem) + alive(MediaSource)
    gc.enable()


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


def holds_nothing(served: Served, others: int) -> bool:
    desk = served.resources.fleet.media
    is_more = alive(MediaItem) + alive(MediaSource) > others
    return not (served.resources.ports.bodies.held_bytes or desk._held or is_more)


@asynccontextmanager
async def streaming(served: Served, path: str, body: dict[str, Any]) -> AsyncIterator[None]:
    """While a response is streamed."""
    served.worker.limit = 2
    async with served.http as client:
        headers = {"authorization": f"Bearer {served.keys['acme']}"}
        async with client.stream("POST", path, json={"model": "tiny", "stream": True, **body}, headers=headers) as said:
            lines = said.aiter_lines()
            await anext(lines)
            yield
            served.worker.limit = None
            async for _ in lines:
                pass


async def test_what_was_sent_is_not_kept_next_to_what_was_read(served: Served) -> None:
    before = alive(MediaItem), alive(MediaSource)
    async with streaming(served, CHAT, chat(*TWO)):
        assert (alive(MediaItem), alive(MediaSource)) == (before[0] + 2, before[1])


async def test_what_a_response_keeps_as_it_was_sent_counts_too(served: Served) -> None:
    async with streaming(served, RESPONSES, response(png(48))):
        assert served.resources.ports.bodies.of_tenant("acme") == len(png(48)) + len(url_of(png(48)))


def response(data: bytes, **more: Any) -> dict[str, Any]:
    part = {"type": "input_image", "image_url": url_of(data)}
    return {"input": [{"role": "user", "content": [part]}], **more}


def message(source: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
WRONG = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": 1}}}
LONG = image(png(16 * 600))
ENDS: list[tuple[str, dict[str, Any], int]] = [
    (CHAT, chat(*TWO), 200),
    (CHAT, chat(*TWO, n=2, tools=[TOOL]), 200),
    (CHAT, chat(image(png(48)), tools=[TOOL], tool_choice="required"), 200),
    (CHAT, chat(*TWO, logprobs=True, top_logprobs=1), 200),
    (CHAT, chat(LONG), 400),
    (CHAT, chat(image(b"x")), 400),
    (CHAT, chat(image(png(48)), image(b"\x89PNG\r\n\x1a\n" + bytes(9))), 400),
    (CHAT, chat(*TWO, logit_bias={"99999999": 1}), 400),
    (CHAT, chat(*TWO, response_format=WRONG), 400),
    (CHAT, chat(*TWO, n=99), 400),
    (CHAT + "?explain", chat(*TWO), 200),
    (RESPONSES, response(png(16 * 600), truncation="auto"), 400),
    (RESPONSES, response(png(48), truncation="auto"), 200),
    (RESPONSES + "/input_tokens", response(png(48)), 200),
    (RESPONSES + "/input_tokens", response(png(16 * 600)), 400),
    (RESPONSES + "/compact", response(png(48)), 200),
    (MESSAGES, message({"type": "url", "url": "https://a.example/b"}), 400),
    (MESSAGES + "/count_tokens", message({"type": "url", "url": url_of(png(48))}), 200),
]


@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=["whole", "streamed"])
@pytest.mark.parametrize("header", [{}, {"idempotency_key": "once"}], ids=["plain", "once"])
async def test_nothing_is_held_however_a_request_ends(
    served: Served, uncollected: int, more: dict[str, bool], header: dict[str, str]
) -> None:
    for number, (path, body, status) in enumerate(ENDS):
        streams = more if path in (CHAT, MESSAGES, RESPONSES) else {}
        once = {name: f"{value}-{number}" for name, value in header.items()}
        said = await served.post(path, {"model": "tiny", **body, **streams}, **once)

        assert said.status_code == status, said.text
        del said
        await served.landed()
        assert holds_nothing(served, uncollected), (path, status)


async def test_nothing_is_held_of_requests_over_a_limit(served: Served, uncollected: int) -> None:
    for limits in ({"tokens_per_minute": 5}, {"requests_per_minute": 1}, {"tokens_per_day": 5}):
        name = f"poor-{len(served.keys)}"
        await served.tenant(name, limits=limits)
        said = [await served.post(CHAT, chat(*TWO), tenant=name) for _ in range(2)]
        assert said[-1].status_code >= 400, said[-1].text
        del said
        await served.landed()
        assert holds_nothing(served, uncollected), limits
    late = await served.post(CHAT, chat(*TWO), x_fairlane_deadline_ms="1")
    assert late.status_code >= 400
    del late
    assert holds_nothing(served, uncollected)


async def test_nothing_is_held_if_no_worker_measures(valkey_url: str, uncollected: int) -> None:
    async with vision(valkey_url, Engine(failures=12)) as served:
        await served.post(
            CHAT, chat(*TWO)
        )  # loads the store's functions, or the client keeps its error of a race for that
        said = await asyncio.gather(*[served.post(CHAT, chat(*TWO)) for _ in range(3)])
        assert [each.status_code for each in said] == [503] * 3
        del said
        await until(lambda: holds_nothing(served, uncollected))


async def test_nothing_is_held_of_requests_that_are_sent_twice_at_once(served: Served, uncollected: int) -> None:
    served.worker.limit = 2
    asking = [asyncio.create_task(served.post(CHAT, chat(*TWO), idempotency_key="once")) for _ in range(3)]
    await until(lambda: bool(served.worker.seen))
    served.worker.limit = None
    said = await asyncio.gather(*asking)
    again = await served.post(CHAT, chat(*TWO), idempotency_key="once")

    assert {each.text for each in (*said, again)} == {again.text}
    assert len(served.worker.seen) == 1
    del said, again
    asking.clear()
    await served.landed()
    await until(lambda: holds_nothing(served, uncollected))
