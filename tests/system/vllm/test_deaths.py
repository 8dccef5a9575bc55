"""Whoever dies under a stream that a vLLM computes, it goes on: a lease holder, or vLLM itself."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import resolve
from tests.support.system.chaos import Process
from tests.support.system.harness import MODEL, Server
from tests.support.vllm import SMALL_BLOCKS, START_LIMIT_S, Vllm, needs_vllm

pytestmark = [pytest.mark.system, needs_vllm]

PROMPT = "Once upon a time there was a lighthouse keeper who"
MAX_TOKENS, STRUCK_AFTER = 160, 24
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Vllm]:
    """One that is killed."""
    model = resolve(DEFAULT_MODEL, models_dir).directory
    with Vllm(tmp_path_factory.mktemp("vllm"), model, MODEL, SMALL_BLOCKS) as started:
        yield started


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, models_dir: Path, behind: Vllm) -> Iterator[Server]:
    """Before it, with a lease holder of its own."""
    settings = {"LEASE_S": "2", "LANES__LATENCY__MAX_WAIT_S": str(START_LIMIT_S)}  # vLLM is away for minutes
    settings |= {"WORKER__MODELS_DIR": str(models_dir), **behind.settings}
    started = Server(tmp_path_factory.mktemp("front"), settings).start()
    yield started
    started.stop()


@contextlib.contextmanager
def second_holder(front: Server) -> Iterator[str]:
    """Another lease holder before the same vLLM; its id."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    settings = {
        **front.settings,
        "DATA_DIR": str(front.directory),
        "REDIS_URL": EmbeddedStore(front.directory / "store").url,
    }
    environ = kept | {f"FAIRLANE_{name}": value for name, value in settings.items()}
    process = Process(["-m", "fairlane.worker"], environ, front.directory / "second.log")
    (first,) = workers(front)
    process.start()
    try:
        until(lambda: len(workers(front)) == 2)
        (second,) = workers(front) - {first}
        yield second
    finally:
        process.kill()


def workers(front: Server) -> set[str]:
    with front.admin() as admin:
        return {one["id"] for one in admin.get("/workers").raise_for_status().json()["data"]}


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s, "it never came to that"
        time.sleep(0.1)  # polled: nothing tells of it


def told(front: Server, tenant: str, strike: Callable[[], Any] = lambda: None) -> str:
    """The text of one greedy stream of a tenant of its own, amid which somebody is struck."""
    text, usage = "", None
    with front.sdk(front.tenant(tenant), timeout=START_LIMIT_S, max_retries=0) as client:
        stream = client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        for count, chunk in enumerate(stream, start=1):
            text += "".join(choice.text for choice in chunk.choices)
            usage = chunk.usage or usage
            if count == STRUCK_AFTER:
                strike()
    assert usage is not None
    assert usage.completion_tokens == MAX_TOKENS
    with front.admin() as admin:
        assert admin.get(f"/tenants/{tenant}/usage").json()["total"]["output_tokens"] == MAX_TOKENS
    return text


def test_a_stream_goes_on_whoever_is_killed(front: Server, behind: Vllm) -> None:
    """Each token once; the texts are the same, for vLLM computes in float32 here."""
    undisturbed = told(front, "undisturbed")

    def kill_holder(second: str) -> None:
        admin.post(f"/workers/{second}/undrain").raise_for_status()
        front.child("worker").send_signal(signal.SIGKILL)

    with second_holder(front) as second, front.admin() as admin:
        admin.post(f"/workers/{second}/drain").raise_for_status()  # so the stream begins on the first
        assert told(front, "holder", lambda: kill_holder(second)) == undisturbed

    def kill_vllm() -> None:
        behind.kill()
        behind.start()

    assert told(front, "engine", kill_vllm) == undisturbed
