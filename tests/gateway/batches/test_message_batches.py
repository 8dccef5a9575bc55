"""Message Batches by Anthropic's SDK."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch
from anthropic.types.messages.batch_create_params import Request

from fairlane.gateway.api import batches as api_batches
from fairlane.gateway.batches import line_runner, open_batch
from fairlane.gateway.dialects.anthropic.batches import MAX_REQUESTS
from tests.support.gateway.batch_files import begun, ended, folder_settings, line
from tests.support.gateway.served import SAID, WAIT_S, Served, serving, until

pytestmark = pytest.mark.anyio

PATH = "/v1/messages"
A_DAY_LATER = SimpleNamespace(time=lambda: time.time() + 86_400, monotonic=time.monotonic)
BATCHES = f"{PATH}/batches"
MANY = b",".join(b'{"custom\\u005fid":"%d","params":{}}' % each for each in range(MAX_REQUESTS + 1))
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "Where?"}]}


@asynccontextmanager
async def claude(served: Served, tenant: str = "acme") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=served.url, api_key=served.keys[tenant], max_retries=0, timeout=WAIT_S
    ) as opened:
        yield opened


def request(custom_id: str = "a", **fields: Any) -> Request:
    return {"custom_id": custom_id, "params": {**ASKED, **fields}}  # type: ignore[typeddict-item]


async def over(client: anthropic.AsyncAnthropic, batch: MessageBatch) -> MessageBatch:
    async with asyncio.timeout(WAIT_S):
        while batch.processing_status != "ended":
            await asyncio.sleep(0.02)
            batch = await client.messages.batches.retrieve(batch.id)
    return batch


async def results(client: anthropic.AsyncAnthropic, batch: MessageBatch) -> dict[str, Any]:
    found = [each async for each in await client.messages.batches.results(batch.id)]
    assert len(found) == len({each.custom_id for each in found})
    return {each.custom_id: each.result for each in found}


def counts(batch: MessageBatch) -> dict[str, int]:
    return {name: count for name, count in batch.request_counts.to_dict().items() if count}  # type: ignore[misc]


async def test_every_request_is_answered_as_a_message_is(served: Served) -> None:
    await served.tenant()
    async with claude(served) as client:
        made = await client.messages.batches.create(requests=[request("a"), request("b", max_tokens=3)])
        assert (made.type, made.processing_status, counts(made)) == ("message_batch", "in_progress", {"processing": 2})
        assert made.id.startswith("msgbatch_")
        assert made.results_url is None
        batch = await over(client, made)
        found = await results(client, batch)
        alone = await client.messages.create(**ASKED)

    assert counts(batch) == {"succeeded": 2}
    assert batch.ended_at is not None
    assert batch.created_at <= batch.ended_at < batch.expires_at
    assert {name: result.type for name, result in found.items()} == {"a": "succeeded", "b": "succeeded"}
    assert found["a"].message.content == alone.content
    assert found["a"].message.content[0].text == SAID
    assert found["b"].message.stop_reason == "max_tokens"
    charged = {
        name: (each.message.usage.input_tokens, each.message.usage.output_tokens) for name, each in found.items()
    }
    await served.landed()
    assert sorted((prompt, output) for _, prompt, output in await served.ledger())[:2] == sorted(charged.values())[:2]


async def test_a_wrong_request_fails_alone_with_anthropics_error(served: Served) -> None:
    await served.tenant()
    async with claude(served) as client:
        requests = [
            request("good"),
            request("bad", temperature=9),
            request("stream", stream=True),
            request("no", model="x"),
        ]
        batch = await over(client, await client.messages.batches.create(requests=requests))
        found = await results(client, batch)

    assert counts(batch) == {"succeeded": 1, "errored": 3}
    told = {name: (each.error.type, each.error.error.type) for name, each in found.items() if each.type == "errored"}
    assert told == {
        "bad": ("error", "invalid_request_error"),
        "stream": ("error", "invalid_request_error"),
        "no": ("error", "not_found_error"),
    }
    assert found["bad"].error.error.to_dict()["param"] == "temperature"


async def test_a_cancelled_batch_lists_what_did_not_run(valkey_url: str, tmp_path: Path) -> None:
    async with serving(folder_settings(valkey_url, tmp_path, files={"batch_lines": 1})) as served:
        await served.tenant()
        served.worker.limit = 2
        async with claude(served) as client:
            made = await client.messages.batches.create(requests=[request(f"r{number}") for number in range(6)])
            await until(lambda: len(served.worker.seen) == 1)
            asked = await client.messages.batches.cancel(made.id)
            assert asked.processing_status in ("canceling", "ended")
            assert asked.cancel_initiated_at is not None
            served.worker.limit = None
            batch = await over(client, made)
            found = await results(client, batch)
            again = await client.messages.batches.cancel(made.id)

    assert again.processing_status == "ended"
    kinds = [result.type for result in found.values()]
    assert {*found} == {f"r{number}" for number in range(6)}
    assert counts(batch) == {kind: kinds.count(kind) for kind in {*kinds}}
    assert kinds.count("canceled") >= 5


async def test_what_has_not_run_within_a_day_expires(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_runner, "LANDING_S", 0.1)
    await served.tenant()
    served.worker.limit = 2
    async with claude(served) as client:
        made = await client.messages.batches.create(requests=[request("a"), request("b")])
        await until(lambda: len(served.worker.seen) == 2)
        monkeypatch.setattr(open_batch, "time", A_DAY_LATER)
        batch = await over(client, made)
        found = await results(client, batch)

    assert counts(batch) == {"expired": 2}
    assert {name: result.type for name, result in found.items()} == {"a": "expired", "b": "expired"}


async def test_batches_are_listed_in_both_directions(served: Served) -> None:
    await served.tenant()
    async with claude(served) as client, served.sdk() as openai_client:
        made = [await client.messages.batches.create(requests=[request()]) for _ in range(3)]
        await begun(openai_client, line("other"))
        ids = [each.id for each in reversed(made)]
        first = await client.messages.batches.list(limit=2)
        rest = await client.messages.batches.list(limit=2, after_id=ids[1])
        before = await client.messages.batches.list(limit=1, before_id=ids[2])
        beta = await client.beta.messages.batches.list()
        for each in made:
            await over(client, each)

    assert ([each.id for each in first.data], first.has_more) == (ids[:2], True)
    assert (first.first_id, first.last_id) == (ids[0], ids[1])
    assert ([each.id for each in rest.data], rest.has_more) == (ids[2:], False)
    assert ([each.id for each in before.data], before.has_more) == ([ids[1]], True)
    assert [each.id for each in beta.data] == ids


async def test_an_ended_batch_can_be_deleted_with_all_its_files(served: Served, tmp_path: Path) -> None:
    await served.tenant()
    async with claude(served) as client, served.sdk() as openai_client:
        served.worker.limit = 2
        made = await client.messages.batches.create(requests=[request()])
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.delete(made.id)
        served.worker.limit = None
        await over(client, made)
        deleted = await client.messages.batches.delete(made.id)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(made.id)
        assert (await openai_client.files.list()).data == []

    assert (deleted.id, deleted.type) == (made.id, "message_batch_deleted")
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("files/file-*"))) == []


async def test_a_batch_whose_key_was_used_again_leaves_the_later_one_its_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.tenant()
    async with claude(served) as client:
        keyed: dict[str, Any] = {"requests": [request()], "extra_headers": {"idempotency-key": "again"}}
        first = await client.messages.batches.create(**keyed)
        await over(client, first)
        monkeypatch.setattr(api_batches, "time", A_DAY_LATER)
        served.worker.limit = 2
        second = await client.messages.batches.create(**keyed)
        await client.messages.batches.delete(first.id)
        served.worker.limit = None
        await over(client, second)
        assert (await results(client, second))["a"].message.content[0].text == SAID

    assert second.id != first.id


async def test_batches_of_a_file_are_shown_too_and_keep_the_file(served: Served) -> None:
    await served.tenant()
    content = json.dumps({"custom_id": "a", "method": "POST", "url": PATH, "body": ASKED}).encode()
    async with claude(served) as client, served.sdk() as openai_client:
        batch = await ended(openai_client, await begun(openai_client, content, endpoint=PATH))
        other = await ended(openai_client, await begun(openai_client, line("a")))
        message_batch = await client.messages.batches.retrieve(batch.id.replace("batch_", "msgbatch_"))
        assert (await results(client, message_batch))["a"].message.content[0].text == SAID
        await client.messages.batches.delete(message_batch.id)
        assert (await openai_client.files.retrieve(batch.input_file_id)).id == batch.input_file_id
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(other.id.replace("batch_", "msgbatch_"))


async def test_another_tenant_finds_nothing(served: Served) -> None:
    await served.tenant()
    await served.tenant("other")
    async with claude(served) as client, claude(served, "other") as other:
        made = await over(client, await client.messages.batches.create(requests=[request()]))
        for call in (other.messages.batches.retrieve, other.messages.batches.cancel, other.messages.batches.delete):
            with pytest.raises(anthropic.NotFoundError):
                await call(made.id)
        assert (await served.get(f"{BATCHES}/{made.id}/results", tenant="other")).status_code == 404
        assert (await other.messages.batches.list()).data == []


async def test_a_repeated_creation_makes_one_batch(served: Served) -> None:
    await served.tenant()
    body = {"requests": [request()]}
    answers = [await served.post(BATCHES, body, idempotency_key="k") for _ in range(2)]
    other = await served.post(BATCHES, {"requests": [request("b")]}, idempotency_key="k")

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": {}}, "requests"),
        ({"requests": [{"params": ASKED}]}, "requests.[0].custom_id"),
        ({"requests": [{"custom_id": "a"}]}, "requests.[0].params"),
        ({"requests": [{"custom_id": "", "params": ASKED}]}, "requests.[0].custom_id"),
        ({"requests": [{"custom_id": 1, "params": ASKED}]}, "requests.[0].custom_id"),
        ({"requests": [request(), {"custom_id": "b", "params": []}]}, "requests.[1].params"),
        ({"requests": [request(), request()]}, "requests.[1].custom_id"),
        (b'{"requests": [', None),
        (b'{"requests": ' + b"[" * 100_000, "requests.[0]"),
        (b"[]", None),
        (b"\xff", None),
        pytest.param(b'{"requests":[%b]}' % MANY, "requests", id="many, by an escaped name"),
    ],
)
async def test_a_wrong_body_is_refused_whole(served: Served, body: Any, param: str | None) -> None:
    await served.tenant()
    answer = await served.post(BATCHES, body)

    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"].get("param") == param


async def test_bodies_are_bounded(valkey_url: str, tmp_path: Path) -> None:
    settings = folder_settings(valkey_url, tmp_path, max_body_bytes=2 * 2**20)
    async with serving(settings) as served:
        await served.tenant(limits={"enqueued_batch_tokens": 1_000})
        large = await served.post(BATCHES, {"requests": [request("a", metadata={"user_id": "x" * 2**20})]})
        larger = await served.post(BATCHES, {"requests": [request("a", metadata={"user_id": "x" * 2**21})]})
        many = await served.post(BATCHES, {"requests": [request(f"r{number}") for number in range(100)]})
        async with served.sdk() as client:
            assert (await client.files.list()).data == [], "a refused batch leaves no file"

    assert (large.status_code, large.json()["error"]["param"]) == (413, "requests.[0]")
    assert larger.status_code == 413
    assert (many.status_code, many.json()["error"]["code"]) == (400, "request_exceeds_limit")


async def test_a_body_may_be_written_over_several_lines(served: Served) -> None:
    await served.tenant()
    requests: Sequence[Request] = [request("a\u2028b"), request("b", metadata={"user_id": "ü"})]
    answer = await served.post(BATCHES, json.dumps({"requests": requests}, indent=2, ensure_ascii=False).encode())
    async with claude(served) as client:
        batch = await over(client, await client.messages.batches.retrieve(answer.json()["id"]))
        assert {*await results(client, batch)} == {"a\u2028b", "b"}

    assert counts(batch) == {"succeeded": 2}
