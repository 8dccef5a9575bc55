"""Files and batches against the real model: a batch answers as plain requests do, can be left, is refused by name."""

import asyncio
import json
import time
from typing import Any

import openai
import pytest
from openai.types import Batch
from openai.types.chat import ChatCompletion

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import ASKED, CITY, COMPLETED, OfField, function, output_tokens, refused
from tests.system.sdk.conftest import NewKey, NewTenant

pytestmark = [pytest.mark.system, pytest.mark.anyio]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WITHIN_S = 60.0
ENDED = ("completed", "failed", "cancelled", "expired")
FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
BODIES: list[OfField] = [
    ASKED,
    {**ASKED, "messages": [{"role": "user", "content": "Name a colour."}], "n": 2},
    {**ASKED, "tools": [function("weather")], "tool_choice": "required", "max_tokens": 60},
    {**ASKED, "response_format": FORM, "max_tokens": 24},
]


def lines(url: str, *bodies: OfField) -> bytes:
    """A file that asks them all, each by its place."""
    asked = [{"custom_id": str(n), "method": "POST", "url": url, "body": body} for n, body in enumerate(bodies)]
    return "\n".join(map(json.dumps, asked)).encode()


def begun(client: openai.OpenAI, url: Any, *bodies: OfField, **fields: Any) -> Batch:
    """A batch of these."""
    sent = client.files.create(file=("in.jsonl", lines(url, *bodies)), purpose="batch")
    asked = {"input_file_id": sent.id, "endpoint": url, "completion_window": "24h", **fields}
    batch: Batch = client.batches.create(**asked)
    return batch


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    """The batch once it has; asked again and again, as its callers do."""
    until = time.monotonic() + WITHIN_S
    while batch.status not in ENDED and time.monotonic() < until:
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """The bodies of a file of results, by their lines."""
    told = [json.loads(each) for each in client.files.content(file_id or "").text.splitlines()]
    return {each["custom_id"]: each["response"]["body"] for each in told}


def said(body: OfField) -> list[OfField]:
    """What an answer's choices say, without what is made anew each time."""
    messages = [choice["message"] for choice in body["choices"]]
    calls = [[call["function"] for call in message.get("tool_calls") or ()] for message in messages]
    return [{"content": message["content"], "calls": called} for message, called in zip(messages, calls, strict=True)]


def test_a_batch_answers_as_plain_requests_do(server: Server, new_tenant: NewTenant) -> None:
    tenant = new_tenant()
    with server.sdk(tenant.key) as client:
        batch = ended(client, begun(client, CHAT, *BODIES, {"model": MODEL}, metadata={"night": "1"}))
        found, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
        with server.admin() as admin:
            charged = admin.get(f"/tenants/{tenant.id}/usage").json()["total"]
        plain: list[ChatCompletion] = [client.chat.completions.create(**body) for body in BODIES]
        too_late = refused(client.batches.cancel, batch.id)

    assert (batch.status, batch.metadata, batch.endpoint) == ("completed", {"night": "1"}, CHAT)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 5, "completed": 4, "failed": 1}
    assert [said(found[str(n)]) for n in range(len(BODIES))] == [said(each.to_dict()) for each in plain]
    assert [error["error"]["param"] for error in errors.values()] == ["messages"]
    assert too_late.status_code == 400
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(map(output_tokens, plain))
    assert (charged["prompt_tokens"], charged["output_tokens"]) == (batch.usage.input_tokens, batch.usage.output_tokens)


def test_a_batch_can_be_left_and_is_listed(server: Server, new_key: NewKey) -> None:
    more_than_run_at_once = 1_000
    with server.sdk(new_key(), max_retries=0) as client:
        batch = begun(client, COMPLETIONS, *[COMPLETED] * more_than_run_at_once)
        left = client.batches.cancel(batch.id)
        again = ended(client, left)
        listed = [each.id for each in client.batches.list()]
        same = client.batches.cancel(batch.id)
        files = [(each.id, each.purpose) for each in client.files.list()]

    assert left.status in ("cancelling", "cancelled")
    assert (again.status, same, listed) == ("cancelled", again, [batch.id])
    assert (batch.input_file_id, "batch") in files


async def test_the_asynchronous_client_reads_what_a_batch_answered(server: Server, new_key: NewKey) -> None:
    async with server.async_sdk(new_key(), max_retries=0) as client:
        sent = await client.files.create(file=("in.jsonl", lines(COMPLETIONS, COMPLETED)), purpose="batch")
        asked: OfField = {"input_file_id": sent.id, "endpoint": COMPLETIONS, "completion_window": "1h"}
        batch = await client.batches.create(**asked)
        async with asyncio.timeout(WITHIN_S):
            while batch.status not in ENDED:
                await asyncio.sleep(0.02)
                batch = await client.batches.retrieve(batch.id)
        told = json.loads((await client.files.content(batch.output_file_id or "")).text)
        plain = await client.completions.create(**COMPLETED)
        await client.files.delete(sent.id)
        gone = [each.id async for each in client.files.list(purpose="batch")]

    assert told["response"]["body"]["choices"][0]["text"] == plain.choices[0].text
    assert gone == []


WRONG: list[tuple[str, OfField]] = [
    ("completion_window", {"completion_window": "soon"}),
    ("endpoint", {"endpoint": "/v1/images"}),
    ("input_file_id", {"input_file_id": "file-nobody"}),
    ("metadata", {"metadata": {str(number): "" for number in range(17)}}),
    ("output_expires_after.seconds", {"output_expires_after": {"anchor": "created_at", "seconds": 1}}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=[param for param, _ in WRONG])
def test_a_batch_that_cannot_be_is_refused_by_name(client: openai.OpenAI, param: str, fields: OfField) -> None:
    error = refused(begun, client, CHAT, ASKED, **fields)

    assert isinstance(error, openai.BadRequestError | openai.NotFoundError)
    assert error.param == param


def test_what_is_no_file_of_a_batch_is_refused_or_not_found(
    server: Server, client: openai.OpenAI, new_key: NewKey
) -> None:
    kept = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")

    assert refused(client.files.create, file=("a.pdf", b"%PDF"), purpose="assistants").param == "purpose"
    with server.sdk(new_key(), max_retries=0) as stranger:
        for ask in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
            assert isinstance(refused(ask, kept.id), openai.NotFoundError)
    for call in (client.batches.retrieve, client.batches.cancel):
        assert isinstance(refused(call, "batch_nobody"), openai.NotFoundError)
