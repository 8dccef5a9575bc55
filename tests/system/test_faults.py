"""Processes that die or stall under a running stream: it goes on from the next token, and the books balance."""

import signal

import httpx
import openai
import pytest

from fairlane.store.urls import embedded_url
from tests.support import vllm
from tests.support.store.crash import write_all
from tests.support.system.harness import MODEL, Server

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


def scored(server: Server, key: str, *, strike: bool) -> tuple[str, list[str], list[float | None]]:
    """The text of one stream that echoes its prompt, with the tokens' names and log-probabilities."""
    asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "echo": True, "logprobs": 2, "stream": True}
    text, tokens, logprobs = "", list[str](), list[float | None]()
    with server.sdk(key, timeout=120) as client:
        stream = client.completions.create(model=MODEL, extra_body={"ignore_eos": True}, **asked)  # type: ignore[call-overload]
        for count, chunk in enumerate(stream, start=1):
            for choice in chunk.choices:
                text += choice.text
                if choice.logprobs is not None:
                    tokens += choice.logprobs.tokens
                    logprobs += choice.logprobs.token_logprobs
            if count == 8 and strike:
                server.child("worker").send_signal(signal.SIGKILL)
    return text, tokens, logprobs


@pytest.mark.thorough
def test_an_echo_with_log_probabilities_comes_once_when_its_worker_is_killed(mortal: Server) -> None:
    key = mortal.tenant("scorer")
    text, tokens, logprobs = scored(mortal, key, strike=False)
    struck = scored(mortal, key, strike=True)

    assert struck[:2] == (text, tokens)
    assert logprobs[0] is struck[2][0] is None
    assert struck[2][1:] == pytest.approx(logprobs[1:], abs=0.05)
    assert "".join(tokens) == text
    assert text.startswith(PROMPT)


@pytest.mark.thorough
def test_a_stream_goes_on_when_its_worker_is_killed(mortal: Server) -> None:
    key = mortal.tenant("reader")
    undisturbed = told(mortal, key)

    assert told(mortal, key, after_tokens=10, strike=signal.SIGKILL) == undisturbed

    with mortal.admin() as admin:
        total = admin.get("/tenants/reader/usage").json()["total"]
        newest = admin.get("/requests", params={"tenant": "reader", "limit": 1}).json()["data"][0]["id"]
        record = admin.get(f"/requests/{newest}").json()
    assert total["output_tokens"] == 2 * MAX_TOKENS
    assert len(record["workers"]) == 2
    [moved] = [event for event in record["events"] if event["kind"] == "moved"]
    assert moved["stall_ms"] > 0.0
    assert f"Its worker was lost or gave it back: it continued at {record['workers'][1]}" in record["why"]


def test_a_request_that_is_sent_again_after_its_gateway_was_killed_goes_on(mortal: Server) -> None:
    """Exact to the token: both choices, drawn with penalties, as if nothing had happened."""
    key = mortal.tenant("writer", limits={"tokens_per_day": 100_000})
    undisturbed, prompt_tokens = written(mortal, key, "undisturbed")

    with pytest.raises((httpx.TransportError, openai.APIError)):
        written(mortal, key, "again", dies_after=10)
    again, _ = written(mortal, key, "again")

    if not vllm.IS_BEHIND:  # which draws anew where it goes on
        assert again == undisturbed
    with mortal.admin() as admin:
        parts = admin.get("/tenants/writer/usage").json()["total"]
        status = admin.get("/tenants/writer/quota").json()["limits"]["tokens_per_day"]
    assert (parts["prompt_tokens"], parts["output_tokens"]) == (2 * prompt_tokens, 2 * 2 * MAX_TOKENS)
    assert (status["used"], status["reserved"]) == (2 * (prompt_tokens + 2 * MAX_TOKENS), 0)


def written(server: Server, key: str, once: str, *, dies_after: int = 0) -> tuple[list[str], int]:
    """Two texts of one stream, and its prompt's tokens; after so many frames its gateway is killed."""
    texts, usage = ["", ""], None
    with server.sdk(key, timeout=120, max_retries=8) as client:
        stream = client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=MAX_TOKENS,
            n=2,
            temperature=0.8,
            seed=7,
            frequency_penalty=0.6,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
            extra_headers={"Idempotency-Key": once},
        )
        for count, chunk in enumerate(stream, start=1):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
            usage = chunk.usage or usage
            if count == dies_after:
                server.child("gateway").send_signal(signal.SIGKILL)
    if usage is None:
        raise httpx.RemoteProtocolError("the stream was cut")
    return texts, usage.prompt_tokens


def test_a_store_that_is_gone_is_503_and_serving_goes_on_when_it_is_back(mortal: Server) -> None:
    key = mortal.tenant("patient")
    store = mortal.store()

    store.send_signal(signal.SIGSTOP)
    try:
        with mortal.sdk(key, max_retries=0) as client, pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=MODEL, prompt="Hello", max_tokens=2)
    finally:
        store.send_signal(signal.SIGCONT)

    assert caught.value.status_code == 503
    assert caught.value.code == "quota_store_unavailable"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    with mortal.sdk(key, max_retries=5) as client:
        assert client.completions.create(model=MODEL, prompt="Hello", max_tokens=2).usage is not None


def test_a_killed_store_comes_back_with_all_that_was_acknowledged(mortal: Server) -> None:
    key = mortal.tenant("kept", limits={"tokens_per_day": 1_000})
    store = mortal.store()
    write_all(embedded_url(str(mortal.directory)))

    store.kill()
    store.wait(30)

    with mortal.sdk(key, max_retries=8) as client:
        client.completions.create(model=MODEL, prompt="Hello", max_tokens=2, extra_body={"ignore_eos": True})
    with mortal.admin() as admin:
        limits = admin.get("/tenants/kept/quota").raise_for_status().json()["limits"]
    assert limits["tokens_per_day"]["used"] == 3
    assert httpx.get(f"{mortal.url}/readyz").status_code == httpx.codes.OK
