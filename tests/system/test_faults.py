"""Processes that die or stall under a running stream: it goes on from the next token, and the books balance."""

import signal

import httpx
import openai
import pytest

from tests.system.conftest import StartServer
from tests.system.harness import MODEL, Server

pytestmark = pytest.mark.system

PROMPT = "Once upon a time there was a lighthouse keeper who"
MAX_TOKENS = 48


def told(server: Server, key: str, *, after_tokens: int = 0, strike: signal.Signals | None = None) -> str:
    """The text of one greedy stream; after so many tokens the worker is struck."""
    with server.sdk(key, timeout=120) as client:
        stream = client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        text, usage = "", None
        for count, chunk in enumerate(stream, start=1):
            text += "".join(choice.text for choice in chunk.choices)
            usage = chunk.usage or usage
            if count == after_tokens and strike is not None:
                server.child("worker").send_signal(strike)
    assert usage is not None
    assert usage.completion_tokens == MAX_TOKENS
    return text


def test_a_stream_goes_on_when_its_worker_is_killed(start_server: StartServer) -> None:
    server = start_server(WORKER__DTYPE="float32", LEASE_S="2")
    key = server.tenant("reader")
    undisturbed = told(server, key)

    assert told(server, key, after_tokens=10, strike=signal.SIGKILL) == undisturbed

    with server.admin() as admin:
        total = admin.get("/tenants/reader/usage").json()["total"]
    assert total["output_tokens"] == 2 * MAX_TOKENS


def test_a_store_that_is_gone_is_503_and_serving_goes_on_when_it_is_back(start_server: StartServer) -> None:
    server = start_server()
    key = server.tenant("patient")
    store = server.store()

    store.send_signal(signal.SIGSTOP)
    try:
        with server.sdk(key, max_retries=0) as client, pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=MODEL, prompt="Hello", max_tokens=2)
    finally:
        store.send_signal(signal.SIGCONT)

    assert caught.value.status_code == 503
    assert caught.value.code == "quota_store_unavailable"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    with server.sdk(key, max_retries=5) as client:
        assert client.completions.create(model=MODEL, prompt="Hello", max_tokens=2).usage is not None


def test_a_killed_store_comes_back_with_all_that_was_acknowledged(start_server: StartServer) -> None:
    server = start_server()
    key = server.tenant("kept", limits={"tokens_per_day": 1_000})
    store = server.store()

    store.kill()
    store.wait(30)

    with server.sdk(key, max_retries=8) as client:
        client.completions.create(model=MODEL, prompt="Hello", max_tokens=2, extra_body={"ignore_eos": True})
    with server.admin() as admin:
        limits = admin.get("/tenants/kept/quota").raise_for_status().json()["limits"]
    assert limits["tokens_per_day"]["used"] == 3
    assert httpx.get(f"{server.url}/readyz").status_code == httpx.codes.OK
