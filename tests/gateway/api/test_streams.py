"""Streams as their clients see them: frames, comments, usage, stop strings, errors after the first byte."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from fairlane.scheduler.protocol.grammar_limits import BROKEN_GRAMMAR
from fairlane.scheduler.protocol.messages import Preempted, Resumed
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, SAID, WAIT_S, Served, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(
        settings(valkey_url, section={"header_hold_s": 0.05, "comment_every_s": 0.05, "pulse_every_s": 0.05})
    ) as opened:
        await opened.tenant()
        yield opened


async def lines(served: Served, path: str, body: dict[str, Any], *, tenant: str = "acme") -> list[str]:
    """All non-empty lines of one stream."""
    headers = {"authorization": f"Bearer {served.keys[tenant]}"}
    async with (
        served.http as client,
        client.stream("POST", path, json={**body, "stream": True}, headers=headers) as got,
    ):
        assert got.status_code == 200
        return [line async for line in got.aiter_lines() if line]


def chunks(found: list[str]) -> list[dict[str, Any]]:
    """The objects of a stream's data frames."""
    return [json.loads(line[6:]) for line in found if line.startswith("data: {")]


async def test_a_stream_says_what_the_plain_answer_says(served: Served) -> None:
    plain = (await served.post(CHAT, ASKED)).json()
    found = await lines(served, CHAT, {**ASKED, "stream_options": {"include_usage": True}})

    said = chunks(found)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in said if c["choices"]) == SAID
    assert said[-1]["usage"] == plain["usage"]
    assert said[-1]["choices"] == []
    assert {chunk["service_tier"] for chunk in said} == {"default"}
    assert [c["choices"][0]["finish_reason"] for c in said if c["choices"]][-1] == "stop"
    assert found[-1] == "data: [DONE]"


async def test_a_waiting_stream_tells_its_place_in_the_queue(served: Served) -> None:
    served.worker.taking = False
    headers = {"authorization": f"Bearer {served.keys['acme']}", "x-fairlane-progress": "1"}
    body = {**ASKED, "stream": True}
    async with served.http as client, client.stream("POST", CHAT, json=body, headers=headers) as got:
        found = got.aiter_lines()
        first = await anext(found)
        served.worker.taking = True
        rest = [line async for line in found if line]

    told = re.fullmatch(r": queued position=1 eta_ms=(\d+)", first)
    assert told is not None, first
    assert int(told[1]) > 0  # nothing was measured yet, so nothing was expected
    assert rest[-1] == "data: [DONE]"


async def test_a_stream_that_waits_sends_bare_newlines_to_who_asked_for_nothing(served: Served) -> None:
    served.worker.taking = False
    headers = {"authorization": f"Bearer {served.keys['acme']}"}
    body = {**ASKED, "stream": True}
    async with served.http as client, client.stream("POST", CHAT, json=body, headers=headers) as got:
        parts = got.aiter_raw()
        assert [await anext(parts) for _ in range(2)] == [b"\n", b"\n"]
        served.worker.taking = True
        rest = b"".join([part async for part in parts])

    assert b"\n: " not in rest
    assert {line for line in rest.split(b"\n") if not line.startswith(b"data: ")} == {b""}
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_what_cannot_be_understood_as_a_wish_for_progress_is_refused(served: Served) -> None:
    answer = await served.post(CHAT, ASKED, x_fairlane_progress="yes")

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-fairlane-progress")


async def test_a_stream_whose_job_waits_for_another_worker_tells_its_place_again(served: Served) -> None:
    served.worker.limit = 2
    body = {**ASKED, "stream": True}
    headers = {"authorization": f"Bearer {served.keys['acme']}", "x-fairlane-progress": "1"}
    async with served.http as client, client.stream("POST", CHAT, json=body, headers=headers) as got:
        found = (line async for line in got.aiter_lines() if line)
        await told_until(found, ": generating")

        served.worker.taking = False
        await served.worker.queue.release("hand", list(served.worker.leases))
        served.worker.leases.clear()
        between = await told_until(found, ": queued position=1 eta_ms=")
        served.worker.limit, served.worker.taking = None, True
        rest = [line async for line in found]

    assert {line for line in between if line.startswith(":")} <= {": generating"}
    assert rest[-1] == "data: [DONE]"


async def told_until(found: AsyncIterator[str], beginning: str) -> list[str]:
    """The lines of a stream before the first that begins so: how many depends on how busy the machine is."""
    before: list[str] = []
    async with asyncio.timeout(WAIT_S):
        async for line in found:
            if line.startswith(beginning):
                return before
            before.append(line)
    raise AssertionError(before)


async def test_a_stop_string_is_not_said_and_what_follows_it_not_charged(served: Served) -> None:
    answer = (await served.post(CHAT, {**ASKED, "stop": ["France"]})).json()
    await served.landed()

    assert answer["choices"][0]["message"]["content"] == "The capital of "
    assert answer["choices"][0]["finish_reason"] == "stop"
    ((outcome, prompt, output),) = await served.ledger()
    assert (outcome, prompt, output) == (
        "finished",
        answer["usage"]["prompt_tokens"],
        answer["usage"]["completion_tokens"],
    )
    assert output < len(served.worker.script)


async def test_choices_and_prompts_are_numbered_through(served: Served) -> None:
    body = {"model": "tiny", "prompt": ["one", "two"], "n": 2, "max_tokens": 50}
    answer = (await served.post(COMPLETIONS, body)).json()

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in answer["choices"]} == {SAID}
    assert answer["usage"]["completion_tokens"] == 4 * len(served.worker.script)


async def test_a_failed_job_is_an_error_and_charges_nothing(served: Served) -> None:
    served.worker.fails = "the logits of this row are not finite"
    answer = await served.post(CHAT, ASKED)
    await served.landed()

    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert [(prompt, output) for _, prompt, output in await served.ledger()] in ([], [(0, 0)])


async def test_a_worker_that_fails_in_mid_stream_ends_it_with_an_error_frame(served: Served) -> None:
    served.worker.limit = 2
    client = served.sdk()
    stream = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    said = aiter(stream)
    await anext(said)
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    served.worker.fails = "the logits of this row are not finite"

    with pytest.raises(openai.APIError):
        async for _ in said:
            pass
    await client.close()
    await served.landed()
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("failed", 2)]


PROMPT = {"model": "tiny", "prompt": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {**ASKED, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {**ASKED, "tools": [TOOL], "tool_choice": "required"}, "tools"),
        (COMPLETIONS, {**PROMPT, "guided_grammar": 'start: "a" start | "b"'}, "guided_grammar"),
        (COMPLETIONS, {**PROMPT, "structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_beyond_its_budget_names_its_field_and_only_published_tokens_are_charged(
    served: Served, path: str, body: dict[str, Any], param: str, *, stream: bool
) -> None:
    async def error_of_it() -> Any:
        if stream:
            return chunks(await lines(served, path, body, tenant="metered"))[-1]["error"]
        answer = await served.post(path, body, tenant="metered")
        assert answer.status_code == 400
        return answer.json()["error"]

    await served.tenant("metered", limits={"tokens_per_day": 100_000})
    served.worker.limit = 2
    asking = asyncio.create_task(error_of_it())
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    served.worker.fails = BROKEN_GRAMMAR
    error = await asking
    await served.landed()

    assert (error["code"], error["param"]) == ("invalid_request_error", param)
    assert error["message"] == f"`{param}` cannot be served: {BROKEN_GRAMMAR}."
    assert [(outcome, output) for outcome, _, output in await served.ledger("metered")] == [("failed", 2)]
    assert {status.reserved for status in (await served.limits("metered")).values()} == {0}


async def test_a_preempted_stream_says_so_and_goes_on(served: Served) -> None:
    served.worker.limit = 2
    headers = {"authorization": f"Bearer {served.keys['acme']}", "x-fairlane-progress": "1"}
    body = {**ASKED, "stream": True}
    async with served.http as client, client.stream("POST", CHAT, json=body, headers=headers) as got:
        lines = (line async for line in got.aiter_lines() if line)
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
        (job_id,) = served.worker.leases
        await served.worker.tell(Preempted(job_id=job_id, choice=0, mode="swap", blocks=3, predicted_ms=5.0))
        found: list[str] = []
        while found.count(": preempted") < 2:  # the event, then again for as long as it lasts
            found.append(await anext(lines))
        await served.worker.tell(Resumed(job_id=job_id, choice=0, stalled_ms=5.0))
        served.worker.limit = None
        rest = [line async for line in lines]
    await served.landed()

    assert ": resumed" in rest
    assert rest[-1] == "data: [DONE]"
    said = chunks([*found, *rest])
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in said) == SAID
    assert [entry.preemptions for entry in await served.entries()] == [1]


async def test_choices_that_stop_at_their_string_are_charged_up_to_it(served: Served) -> None:
    answer = (await served.post(CHAT, {**ASKED, "n": 2, "stop": [" of"]})).json()
    await served.landed()

    assert {choice["message"]["content"] for choice in answer["choices"]} == {"The capital"}
    ((outcome, _, output),) = await served.ledger()
    assert (outcome, output) == ("finished", answer["usage"]["completion_tokens"])
    assert output < 2 * len(served.worker.script)


async def test_a_fault_of_our_own_in_mid_stream_is_told_logged_and_settled(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fairlane.gateway.answers.choices.ChatAnswer.ending", broken)
    found = await lines(served, CHAT, ASKED)
    await served.landed()

    assert json.loads(found[-1].removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "data: [DONE]" not in found
    assert "ZeroDivisionError" in caplog.text
    assert [outcome for outcome, _, _ in await served.ledger()] == ["finished"]


async def test_a_fault_at_one_requests_tokens_ends_that_request_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("fairlane.gateway.answers.builder.AnswerBuilder._frames", broken)
        refused = await served.post(CHAT, {**ASKED, "stream": True})
    answer = await served.post(CHAT, ASKED)  # the reader of the queue has gone on
    await served.landed()

    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "internal_error")
    assert answer.status_code == 200
    assert len(await served.entries()) == 2


async def test_draining_refuses_new_requests_and_finishes_running_streams(served: Served) -> None:
    served.worker.limit = 2
    client = served.sdk()
    stream = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    said = aiter(stream)
    text = (await anext(said)).choices[0].delta.content or ""

    served.server.should_exit = True
    await until(lambda: served.resources.refusal() is not None)
    served.worker.limit = None
    async for chunk in said:
        text += chunk.choices[0].delta.content or ""

    assert text == SAID
    await client.close()
    await served.serving


async def test_tokens_of_a_stream_begin_where_those_of_a_plain_answer_do(served: Served) -> None:
    """Whatever text is held back meanwhile for a stop string that it might become."""
    body = {"model": "tiny", "prompt": "where?", "logprobs": 0, "stop": ["capital city", "Paris!"]}
    plain = (await served.post(COMPLETIONS, body)).json()["choices"][0]

    told = [chunk["choices"][0]["logprobs"] for chunk in chunks(await lines(served, COMPLETIONS, body))]
    offsets = [offset for logprobs in told if logprobs for offset in logprobs["text_offset"]]

    assert plain["text"] == SAID
    assert offsets == plain["logprobs"]["text_offset"]


async def test_a_stream_to_a_client_of_http_1_0_comes_as_it_is_and_ends_with_its_connection(served: Served) -> None:
    url = httpx.URL(served.url)
    body = json.dumps({**ASKED, "stream": True}).encode()
    head = (
        f"POST {CHAT} HTTP/1.0\r\nauthorization: Bearer {served.keys['acme']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()

    headers, _, frames = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert b"connection: close" in headers.lower()
    found = frames.decode().split("\n\n")
    assert found[-2:] == ["data: [DONE]", ""]
    said = chunks(found)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in said) == SAID
