"""Images at a real vLLM: its own counts and its own tokens, however often a job is cut."""

import base64
import hashlib
import json
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest

from fairlane.scheduler.planner.steps import Ended
from fairlane.scheduler.protocol.media import MediaForm, MediaSpan, media_id
from fairlane.scheduler.protocol.messages import Lease, Outcome, TokenDelta
from fairlane.worker.config import WorkerSection, WorkerSettings
from fairlane.worker.engine.engine import OpenedEngine, RemotePart
from fairlane.worker.remote.open import open_engine
from tests.support.vllm import Vllm, needs_vllm
from tests.support.worker.hand import lease
from tests.support.worker.vision.model import FAMILIES, Family

TOKENS, CUT = 24, 9
# More than a block, so that it can be found in the prefix cache.
TEXT = "Compare the pictures. " * 12

pytestmark = [pytest.mark.slow, needs_vllm]


def png(seed: int, width: int = 40, height: int = 32) -> bytes:
    noise = random.Random(seed)
    rows = b"".join(b"\0" + noise.randbytes(3 * width) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = [struct.pack(">I", len(data)) + name + data for name, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(part + struct.pack(">I", zlib.crc32(part[4:])) for part in parts)


@dataclass
class Worker:
    """An engine before the server, and the server itself."""

    url: str
    opened: OpenedEngine
    cached: dict[str, int] = field(default_factory=dict)

    @property
    def remote(self) -> RemotePart:
        assert self.opened.remote is not None
        return self.opened.remote

    def ask(self, path: str, content: Sequence[dict[str, Any]], **more: object) -> dict[str, Any]:
        """What vLLM itself answers to a message."""
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "ignore_eos": True, **more}
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=120.0, trust_env=False)
        assert answer.status_code == httpx.codes.OK, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def job(self, job_id: str, *images: bytes, generated: Sequence[int] = ()) -> Lease:
        """A job of a message with these images, one after another, and a text."""
        found = self.ask("/v1/chat/completions/render", content(*images), mm_payload="none")
        prompt, spans = [*found["token_ids"]], list[MediaSpan]()
        for image, place in zip(images, found["features"]["mm_placeholders"]["image"], strict=True):
            digest, offset, length = hashlib.sha256(image).digest(), place["offset"], place["length"]
            self.remote.media[digest] = image
            spans.append(MediaSpan("image", digest, offset, length))
            prompt[offset : offset + length] = [media_id(digest)] * length
        made = lease(job_id, prompt, max_tokens=TOKENS, generated=(tuple(generated),))
        return msgspec.structs.replace(made, job=msgspec.structs.replace(made.job, media=tuple(spans)))

    def run(self, made: Lease) -> tuple[list[int], Ended]:
        """All tokens of a job, and its end."""
        engine, tokens, ends = self.opened.engine, [*made.generated[0]], list[Ended]()
        engine.add(made, time.monotonic() * 1e3)
        while engine.has_work:
            report = engine.step(time.monotonic() * 1e3)
            ends += report.outcome.ended
            for event in report.events:
                if isinstance(event, TokenDelta):
                    tokens += event.token_ids
                    self.cached[event.job_id] = max(event.cached_tokens, self.cached.get(event.job_id, 0))
        return tokens, ends[0]


def content(*images: bytes) -> list[dict[str, Any]]:
    urls = [f"data:image/png;base64,{base64.b64encode(image).decode()}" for image in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": TEXT}]


@pytest.fixture(scope="module", params=FAMILIES)
def worker(vision_server: Callable[[Family], Vllm], request: pytest.FixtureRequest) -> Iterator[Worker]:
    server = vision_server(request.param)
    section = WorkerSection(engine="vllm", engine_url=server.url)
    with closing(open_engine(WorkerSettings(worker=section))) as opened:
        yield Worker(server.url, opened)


def test_the_card_says_how_images_stand_in_its_prompts(worker: Worker) -> None:
    card = worker.opened.card
    of = {
        name: int(token["id"])
        for token in json.loads(card.tokenizer_json)["added_tokens"]
        for name in [token["content"]]
    }
    form = (
        MediaForm(before=(of["<|vision_start|>"],), after=(of["<|vision_end|>"],))
        if card.model == "qwen2_vl"
        else MediaForm()
    )

    assert card.media_forms == {"image": form}


def test_images_are_measured_as_vllm_counts_them(worker: Worker) -> None:
    def counted(*images: bytes) -> int:
        found = worker.ask("/v1/chat/completions", content(*images), max_tokens=1)
        return int(found["usage"]["prompt_tokens"])

    images = [png(1), png(2, 1, 1), png(3, 640, 480), png(4, 900, 30)]
    found = [worker.remote.measure("image", image).result(60.0) for image in images]
    form = worker.opened.card.media_forms["image"]

    beside = len(form.before) + len(form.after)
    assert len(set(found)) == len(images)
    assert [each + beside for each in found] == [counted(image) - counted() for image in images]


@pytest.mark.parametrize("images", [(1, 2), (2, 1), (3, 3)], ids=["two", "turned", "twice"])
def test_a_job_with_images_has_the_tokens_of_vllms_own_chat_however_it_is_cut(
    worker: Worker, images: tuple[int, int]
) -> None:
    seen = [png(seed) for seed in images]
    asked = worker.ask("/v1/chat/completions", content(*seen), max_tokens=TOKENS, return_token_ids=True)
    name = "".join(map(str, images))

    whole, _ = worker.run(worker.job(f"whole{name}", *seen))
    resumed, end = worker.run(worker.job(f"resumed{name}", *seen, generated=whole[:CUT]))

    assert whole == asked["choices"][0]["token_ids"]
    assert (resumed, end.outcome) == (whole, Outcome.FINISHED)


def test_other_images_are_other_tokens_and_are_not_found_in_the_cache(worker: Worker) -> None:
    first, _ = worker.run(worker.job("first", png(11)))
    again, _ = worker.run(worker.job("again", png(11)))
    other, _ = worker.run(worker.job("other", png(12)))

    assert first == again != other
    assert worker.cached["again"] > worker.cached["other"] == 0


def test_bytes_that_are_no_image_are_refused(worker: Worker) -> None:
    made = worker.job("broken", png(21))
    worker.remote.media[made.job.media[0].digest] = b"no image"
    tokens, end = worker.run(made)

    assert (tokens, end.outcome) == ([], Outcome.FAILED)
    assert worker.remote.measure("image", b"no image").result(60.0) == 0
