"""Conversations with images, over all endpoints: their tokens are counted before admission, and their bytes reach the
worker of the job. A worker's engine is a stand-in: one token for each 16 pixels of width."""

import asyncio
import base64
import hashlib
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anthropic
import msgspec
import pytest

from fairlane.gateway.dialects.media_marks import omitted
from fairlane.gateway.pipeline import media_desk
from fairlane.scheduler.protocol.media import MEDIA_IDS, MediaForm, MediaKind
from fairlane.scheduler.protocol.messages import Job
from fairlane.scheduler.protocol.settings import Hosts, Networks
from tests.gateway.media.conftest import MediaHost, answer
from tests.gateway.media.files import png
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.served import SAID, Served, error_of, serving, settings, until

pytestmark = pytest.mark.anyio
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BEFORE, AFTER = 7, 8


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Engine:
    """Measures images, and keeps those of jobs."""

    media: dict[bytes, bytes] = field(default_factory=dict)
    measured: list[bytes] = field(default_factory=list)
    # Fails that many times before it measures.
    failures: int = 0

    def measure(self, kind: MediaKind, data: bytes) -> Future[int]:
        found = Future[int]()
        self.measured.append(data)
        if self.failures:
            self.failures -= 1
            found.set_exception(OSError())
        else:
            found.set_result(struct.unpack(">I", data[16:20])[0] // 16 if data.startswith(b"\x89PNG") else 0)
        return found

    def watch(self, on_presence: Callable[[bool], object], on_change: Callable[[str], object]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def engine() -> Engine:
    return Engine()


@asynccontextmanager
async def vision(url: str, engine: Engine, **section: Any) -> AsyncIterator[Served]:
    """A gateway of a model that takes images."""
    card = msgspec.structs.replace(byte_level_card(), media={"image": MediaForm(before=(BEFORE,), after=(AFTER,))})
    make = partial(HandWorker, engine=engine)
    async with serving(settings(url, section={"max_media": 4, **section}), card=card, make=make) as served:
        await served.tenant()
        yield served
        await served.landed()


@pytest.fixture
async def served(valkey_url: str, engine: Engine) -> AsyncIterator[Served]:
    async with vision(valkey_url, engine) as served:
        yield served


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(data), "detail": "low"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def chat(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": [*parts]}], **more}


def job(served: Served) -> Job:
    return served.worker.seen[-1].job


def shown(served: Served) -> str:
    """The last job's prompt, each medium by its length."""
    [model] = served.resources.fleet.cache.models.values()
    told, spans = list[str](), {span.offset: span for span in job(served).media}
    prompt, place = job(served).prompt, 0
    while place < len(prompt):
        if span := spans.get(place):
            assert (prompt[place - 1], prompt[place + span.length]) == (BEFORE, AFTER)
            told.append(f"<{span.length}>")
            place += span.length + 1
        elif prompt[place] == BEFORE and place + 1 in spans:
            place += 1
        else:
            told.append(model.text.token_text(prompt[place]))
            place += 1
    return "".join(told)


TWO = [text("Compare"), image(png(48)), text("and"), image(png(160)), text("now.")]


async def test_images_stand_where_they_were_given(served: Served, engine: Engine) -> None:
    said = await served.post(CHAT, chat(*TWO))

    assert said.status_code == 200, said.text
    assert said.json()["choices"][0]["message"]["content"] == SAID
    assert shown(served).endswith("user\nCompare<3>and<10>now.<|im_end|>\n<|im_start|>assistant\n")
    assert said.json()["usage"]["prompt_tokens"] == len(job(served).prompt)
    assert max(job(served).prompt) >= MEDIA_IDS
    digests = [hashlib.sha256(png(width)).digest() for width in (48, 160)]
    assert [span.digest for span in job(served).media] == digests
    await served.landed()
    assert await served.ledger() == [("finished", len(job(served).prompt), len(served.worker.script))]


async def test_every_endpoint_takes_them(served: Served) -> None:
    plain = await served.post(CHAT, chat(text("a"), image(png(32)), text("b")))
    wanted = shown(served)
    async with served.sdk() as sdk:
        response = await sdk.responses.create(
            model="tiny",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_image", "image_url": url_of(png(32)), "detail": "auto"},
                        {"type": "input_text", "text": "b"},
                    ],
                }
            ],
        )
        assert shown(served) == wanted
        items = await sdk.responses.input_items.list(response.id)
        assert [part.type for part in items.data[0].content] == ["input_text", "input_image", "input_text"]  # type: ignore[union-attr]
        await sdk.responses.create(model="tiny", input="And now?", previous_response_id=response.id)
    assert shown(served).startswith(wanted.removesuffix("<|im_start|>assistant\n"))
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.keys["acme"], max_retries=0) as sdk2:
        source: Any = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(32)).decode()}
        content: Any = [
            text("a"),
            {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}},
            text("b"),
        ]
        message = await sdk2.messages.create(
            model="tiny", max_tokens=9, messages=[{"role": "user", "content": content}]
        )
        counted = await sdk2.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": content}])
    assert shown(served) == wanted
    assert message.usage.input_tokens == counted.input_tokens == plain.json()["usage"]["prompt_tokens"]


async def test_images_of_tools_are_read_too(served: Served) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": [text("Here:"), image(png(64))]},
    ]

    said = await served.post(CHAT, {"model": "tiny", "messages": turns})

    assert said.status_code == 200
    assert "x-fairlane-ignored" not in said.headers
    assert "Here:<4>\n" in shown(served)


async def test_tokenize_names_the_calls_that_count_images(served: Served) -> None:
    refused = await served.post("/tokenize", chat(*TWO))

    assert (error_of(refused), refused.json()["error"]["param"]) == ((400, "invalid_request_error"), "messages")
    assert "count_tokens" in refused.json()["error"]["message"]


async def test_an_image_is_measured_once_for_a_tenant(served: Served, engine: Engine) -> None:
    await served.tenant("other")
    for tenant in ("acme", "acme", "other"):
        assert (await served.post(CHAT, chat(image(png(48)), image(png(48))), tenant=tenant)).status_code == 200

    assert engine.measured == [png(48)] * 2
    assert [span.length for span in job(served).media] == [3, 3]


async def test_nothing_is_held_once_a_request_has_ended(served: Served, engine: Engine) -> None:
    bodies = served.resources.ports.bodies
    served.worker.limit = 2
    async with served.http as client:
        headers = {"authorization": f"Bearer {served.keys['acme']}"}
        async with client.stream("POST", CHAT, json=chat(*TWO, stream=True), headers=headers) as said:
            await anext(said.aiter_lines())
            assert bodies.of_tenant("acme") >= len(png(48)) + len(png(160))
            assert len(engine.media) == 2
    served.worker.limit = None
    await until(lambda: not engine.media)
    await until(lambda: not bodies.of_tenant("acme"))
    assert not served.resources.fleet.media._held


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "PNG"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "media_hosts"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "media_hosts"),
        ({"type": "image_url", "image_url": {}}, "files by id"),
        ({"type": "input_image", "file_id": "file-1", "detail": "auto"}, "files by id"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "neither text"),
        ({"type": "file", "file": {"file_id": "x"}}, "neither text"),
        ({"type": "image_url", "image_url": {"url": url_of(b"GIF89a" + bytes(20))}}, ""),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_field(served: Served, part: dict[str, Any], why: str) -> None:
    refused = await served.post(CHAT, chat(text("a"), part))

    assert error_of(refused) == (400, "invalid_request_error")
    assert refused.json()["error"]["param"] == "messages.[0].content"
    assert why in refused.json()["error"]["message"]
    assert served.worker.seen == []


async def test_an_image_too_long_for_the_context_is_refused_before_it_runs(served: Served) -> None:
    long = await served.post(CHAT, chat(image(png(16 * 600))))
    many = await served.post(CHAT, chat(*[image(png(16))] * 5))

    assert error_of(long) == (400, "context_length_exceeded")
    assert error_of(many) == (400, "invalid_request_error")
    assert served.worker.seen == []


async def test_a_budget_at_its_edge_counts_them_exactly(served: Served) -> None:
    free = await served.post(CHAT, chat(*TWO, max_tokens=5))
    used = free.json()["usage"]["total_tokens"]
    await served.tenant("edge", limits={"tokens_per_day": used})
    await served.tenant("over", limits={"tokens_per_day": used - 1})

    fits = await served.post(CHAT, chat(*TWO, max_tokens=5), tenant="edge")
    over = await served.post(CHAT, chat(*TWO, max_tokens=5), tenant="over")

    assert fits.status_code == 200
    assert over.status_code == 400  # no day has so many tokens
    assert over.json()["error"]["limit"]["requested"] == used
    await served.landed()
    assert (await served.limits("edge"))["tokens_per_day"].remaining == 0
    assert (await served.limits("over"))["tokens_per_day"].remaining == used - 1


async def test_an_image_by_url_is_fetched_by_the_gateway(valkey_url: str, engine: Engine, host: MediaHost) -> None:
    host.answers = {"/a.png": answer(png(80)), "/b.png": answer(png(80), status="404 Not Found")}
    hosts, networks = Hosts.of([f"http://127.0.0.1:{host.port}"]), Networks(["127.0.0.0/8"])
    async with vision(valkey_url, engine, media_hosts=hosts, media_networks=networks) as served:
        url = f"http://127.0.0.1:{host.port}"
        said = await served.post(CHAT, chat(text("a"), {"type": "image_url", "image_url": {"url": f"{url}/a.png"}}))
        gone = await served.post(CHAT, chat(text("a"), {"type": "image_url", "image_url": f"{url}/b.png"}))
        local = await served.post(CHAT, chat(text("a"), {"type": "image_url", "image_url": "http://localhost/a"}))

        assert said.status_code == 200
        assert [span.length for span in job(served).media] == [5]
        assert engine.measured == [png(80)]
        assert [error_of(each) for each in (gone, local)] == [(400, "invalid_request_error")] * 2


@pytest.mark.parametrize("field", ["prompt_logprobs", "truncate_prompt_tokens"])
async def test_fields_that_need_the_prompts_tokens_are_refused(served: Served, field: str) -> None:
    refused = await served.post(CHAT, chat(*TWO, **{field: 1}))

    assert (error_of(refused), refused.json()["error"]["param"]) == ((400, "invalid_request_error"), field)


async def test_a_worker_that_fails_to_measure_says_so(served: Served, engine: Engine) -> None:
    engine.failures = 1

    async with asyncio.timeout(media_desk.MEASURE_S / 2):
        refused = await served.post(CHAT, chat(*TWO))
    again = await served.post(CHAT, chat(*TWO))

    assert error_of(refused) == (503, "unavailable")
    assert again.status_code == 200


async def test_a_model_of_text_is_told_that_they_are_omitted(fresh_gateway: Served) -> None:
    await fresh_gateway.tenant()
    result = {"role": "tool", "tool_call_id": "1", "content": [text("Here:"), image(png(64))]}
    said = await fresh_gateway.post(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "a"}, result]})
    refused = await fresh_gateway.post(CHAT, chat(image(png(64))))

    assert said.headers["x-fairlane-ignored"] == "messages.content.image_url"
    [model] = fresh_gateway.resources.fleet.cache.models.values()
    assert f"Here:\n{omitted('image')}" in model.text.decode(fresh_gateway.worker.seen[-1].job.prompt)
    assert error_of(refused) == (400, "invalid_request_error")
