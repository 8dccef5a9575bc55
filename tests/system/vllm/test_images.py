"""Conversations with images before a real vLLM: charged as it counts them, and exact whatever interrupts them."""

import base64
import json
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import resolve
from tests.support.system.harness import Server
from tests.support.vllm import SMALL_BLOCKS, START_LIMIT_S, Vllm, needs_vllm
from tests.support.worker.vision.model import write_vision_model
from tests.system.vllm.test_deaths import second_holder, until

pytestmark = [pytest.mark.system, needs_vllm]
MODEL = "eye"
# Longer than a text request needs to come and go.
TOKENS, LONG = 500, 1_500
STRUCK_AFTER = 20


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Vllm]:
    model = write_vision_model(tmp_path_factory.mktemp("eye"), resolve(DEFAULT_MODEL, models_dir).directory)
    with Vllm(tmp_path_factory.mktemp("vllm"), model, MODEL, SMALL_BLOCKS) as started:
        yield started


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, behind: Vllm) -> Iterator[Server]:
    """Before it, with a worker of one slot, so that a waiting request preempts."""
    settings = {"LEASE_S": "2", "MODEL": str(behind.model), **behind.settings, "WORKER__MAX_SEQUENCES": "1"}
    started = Server(tmp_path_factory.mktemp("front"), settings).start()
    yield started
    started.stop()


def picture(width: int, height: int, colour: bytes) -> str:
    """A PNG of one colour as a `data:` URL."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = zlib.compress((b"\0" + colour * width) * height)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


RED, BLUE = picture(64, 48, b"\xe0\x20\x20"), picture(30, 90, b"\x10\x20\xd0")


def turns(*images: str) -> list[Any]:
    seen = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return [{"role": "user", "content": [{"type": "text", "text": "Compare:"}, *seen]}]


ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0}


def streamed(client: openai.OpenAI, strike: Callable[[], Any] = lambda: None) -> tuple[str, Any]:
    """The text and the usage of a chat about two images, amid which something happens."""
    text, usage = "", None
    stream = client.chat.completions.create(
        **ASKED,
        messages=turns(RED, BLUE),
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "service_tier": "flex"},
    )
    for count, chunk in enumerate(stream, start=1):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
        if count == STRUCK_AFTER:
            strike()
    return text, usage


def used(front: Server, tenant: str) -> dict[str, int]:
    with front.admin() as admin:
        return dict(admin.get(f"/tenants/{tenant}/usage").raise_for_status().json()["total"])


@pytest.fixture(scope="module")
def undisturbed(front: Server) -> str:
    with front.sdk(front.tenant("undisturbed"), timeout=START_LIMIT_S, max_retries=0) as client:
        text, usage = streamed(client)
    assert usage.completion_tokens == TOKENS
    return text


def test_tokens_are_those_that_vllm_counts(front: Server, behind: Vllm) -> None:
    extra = {"ignore_eos": True}
    with front.sdk(front.tenant("counted"), timeout=START_LIMIT_S, max_retries=0) as client:
        ours = client.chat.completions.create(**ASKED, messages=turns(RED, BLUE), extra_body=extra)
        text = client.chat.completions.create(**ASKED, messages=turns(), extra_body=extra)
        swapped = client.chat.completions.create(**ASKED, messages=turns(BLUE, RED), extra_body=extra)
    theirs = httpx.post(
        f"{behind.url}/v1/chat/completions",
        json={**ASKED, "messages": turns(RED, BLUE), "ignore_eos": True},
        timeout=START_LIMIT_S,
        trust_env=False,
    ).json()

    assert ours.usage is not None
    assert text.usage is not None
    assert ours.usage.prompt_tokens == theirs["usage"]["prompt_tokens"] > text.usage.prompt_tokens
    assert ours.choices[0].message.content == theirs["choices"][0]["message"]["content"]
    assert ours.choices[0].message.content != swapped.choices[0].message.content
    total = sum(each.usage.total_tokens for each in (ours, text, swapped) if each.usage)
    assert sum(used(front, "counted")[name] for name in ("prompt_tokens", "output_tokens")) == total


def test_a_budget_covers_them_to_the_token(front: Server, undisturbed: str) -> None:
    with front.sdk(front.tenant("free"), timeout=START_LIMIT_S, max_retries=0) as client:
        _, usage = streamed(client)
    whole, short = usage.total_tokens, usage.total_tokens - 1
    with front.sdk(front.tenant("edge", limits={"tokens_per_day": whole}), max_retries=0) as client:
        assert streamed(client)[0] == undisturbed
    key = front.tenant("short", limits={"tokens_per_day": short})
    with front.sdk(key, max_retries=0) as client, pytest.raises(openai.APIStatusError):
        streamed(client)

    assert used(front, "edge")["output_tokens"] == TOKENS
    assert used(front, "short")["prompt_tokens"] == 0


def test_it_goes_on_after_a_latency_request_preempted_it(front: Server, undisturbed: str) -> None:
    urgent_key = front.tenant("urgent")

    def hurry() -> None:
        with front.sdk(urgent_key, timeout=START_LIMIT_S, max_retries=0) as urgent:
            said = urgent.chat.completions.create(model=MODEL, max_tokens=4, messages=turns(BLUE))
            assert said.usage is not None

    with front.sdk(front.tenant("preempted"), timeout=START_LIMIT_S, max_retries=0) as client:
        text, usage = streamed(client, hurry)

    assert text == undisturbed
    assert usage.completion_tokens == TOKENS
    with front.admin() as admin:
        settled = admin.get("/tenants/preempted/ledger", params={"format": "jsonl"}).raise_for_status().text
    [entry] = map(json.loads, settled.splitlines())
    assert entry["preemptions"] > 0


def test_a_cancelled_one_is_charged_for_what_it_got(front: Server) -> None:
    with front.sdk(front.tenant("leaver"), timeout=START_LIMIT_S, max_retries=0) as client:
        stream = client.chat.completions.create(
            **{**ASKED, "max_tokens": LONG}, messages=turns(RED, BLUE), stream=True, extra_body={"ignore_eos": True}
        )
        for count, _ in enumerate(stream):
            if count == STRUCK_AFTER:
                break
        stream.close()

    until(lambda: used(front, "leaver")["output_tokens"] > 0)
    assert STRUCK_AFTER - 1 <= used(front, "leaver")["output_tokens"] < LONG


def test_another_worker_continues_it(front: Server, undisturbed: str) -> None:
    with second_holder(front) as second, front.admin() as admin:
        admin.post(f"/workers/{second}/drain").raise_for_status()  # so the stream begins on the first

        def kill_holder() -> None:
            admin.post(f"/workers/{second}/undrain").raise_for_status()
            front.child("worker").send_signal(signal.SIGKILL)

        with front.sdk(front.tenant("moved"), timeout=START_LIMIT_S, max_retries=0) as client:
            text, usage = streamed(client, kill_holder)

    assert text == undisturbed
    assert used(front, "moved")["prompt_tokens"] == usage.prompt_tokens
    assert used(front, "moved")["output_tokens"] == TOKENS
