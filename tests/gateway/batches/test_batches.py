"""Batches by the official SDK, from a file to its answers."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai.types import Batch
from openai.types.responses import Response

from fairlane.gateway.batches import line_runner, open_batch
from fairlane.gateway.batches.files import StoredFile
from fairlane.gateway.batches.lines import MAX_LINE_BYTES
from fairlane.gateway.batches.results import OutputFiles
from tests.support.gateway.batch_files import (
    answered,
    begun,
    charged_as_told,
    ended,
    folder_settings,
    line,
    lines,
    results,
)
from tests.support.gateway.response_events import RESPONSES
from tests.support.gateway.served import CHAT, COMPLETIONS, WAIT_S, Served, serving, until

pytestmark = pytest.mark.anyio


async def counts(batch: Batch) -> tuple[int, int, int]:
    """Total, completed, failed."""
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


async def test_every_line_is_answered_once_and_charged_once(served: Served, tmp_path: Path) -> None:
    await served.tenant()
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, lines(40), metadata={"of": "us"}))
        found = await results(client, batch.output_file_id)

    assert (batch.status, batch.error_file_id, batch.metadata) == ("completed", None, {"of": "us"})
    assert await counts(batch) == (40, 40, 0)
    assert set(found) == {f"line-{number}" for number in range(40)}
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert list(times) == sorted(time_s for time_s in times if time_s is not None)
    await charged_as_told(served, batch, found)
    assert not await served.store.keys("*runs:batch_*")
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("batches/*"))) == []


async def test_chat_lines_are_answered_as_a_request_is(served: Served) -> None:
    await served.tenant()
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 40}
    content = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": asked}).encode()
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, content, endpoint=CHAT))
        found = await results(client, batch.output_file_id)
        alone = await client.chat.completions.create(**asked)  # type: ignore[call-overload]

    answer = found["a"]["response"]
    assert (answer["status_code"], found["a"]["error"]) == (200, None)
    assert answer["body"]["choices"] == [each.to_dict() for each in alone.choices]


def of_responses(lines: dict[str, dict[str, Any]]) -> bytes:
    """A file of bodies by their custom ids."""
    told = [
        {"custom_id": custom_id, "method": "POST", "url": RESPONSES, "body": {"model": "tiny", **body}}
        for custom_id, body in lines.items()
    ]
    return "\n".join(map(json.dumps, told)).encode()


async def test_lines_of_responses_are_answered_as_a_request_is(served: Served) -> None:
    await served.tenant()
    asked = {"input": "Where?", "instructions": "Be brief.", "max_output_tokens": 40}
    async with served.sdk() as client:
        content = of_responses({"absent": asked, "false": {**asked, "store": False}})
        batch = await ended(client, await begun(client, content, endpoint=RESPONSES))
        found = await results(client, batch.output_file_id)
        alone = await client.responses.create(model="tiny", **asked)  # type: ignore[call-overload]

    assert (batch.status, batch.error_file_id) == ("completed", None)
    answers = {name: Response.model_validate(each["response"]["body"]) for name, each in found.items()}
    assert {name: answer.output_text for name, answer in answers.items()} == dict.fromkeys(found, alone.output_text)
    charged = [answer.usage.model_dump() for answer in answers.values() if answer.usage is not None]
    assert charged == 2 * [alone.usage.model_dump()]
    assert batch.usage is not None
    assert batch.usage.total_tokens == 2 * alone.usage.total_tokens


async def test_lines_of_responses_are_kept_nowhere_but_may_go_on_from_what_is(served: Served) -> None:
    await served.tenant()
    async with served.sdk() as client:
        first = await client.responses.create(model="tiny", input="Where?", max_output_tokens=40)
        content = of_responses(
            {
                "kept": {"input": "Where?", "store": True},
                "on": {"input": "And then?", "previous_response_id": first.id, "max_output_tokens": 40},
                "gone": {"input": "And then?", "previous_response_id": "resp_nothing"},
            }
        )
        batch = await ended(client, await begun(client, content, endpoint=RESPONSES))
        found = await results(client, batch.output_file_id)
        errors = await results(client, batch.error_file_id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(found["on"]["response"]["body"]["id"])

    body = found["on"]["response"]["body"]
    assert (set(found), body["store"], body["previous_response_id"]) == ({"on"}, False, first.id)
    told = {name: (each["response"]["status_code"], each["response"]["body"]["error"]) for name, each in errors.items()}
    assert {name: (status, error["param"]) for name, (status, error) in told.items()} == {
        "kept": (400, "store"),
        "gone": (404, "previous_response_id"),
    }


async def test_a_bad_line_fails_alone_with_its_400(served: Served) -> None:
    await served.tenant()
    bad = {
        "no-model": line("no-model", model="nothing"),
        "no-tokens": line("no-tokens", max_tokens=-1),
        "too-long": line("too-long", prompt="x" * 10_000),
        "stream": line("stream", stream=True),
        "elsewhere": line("elsewhere", url=CHAT),
        None: b"{not json",
    }
    huge = b'{"custom_id": "huge", "body": "' + b"x" * MAX_LINE_BYTES + b'"}'
    content = b"\xef\xbb\xbf" + lines(3) + b"\r\n".join([*bad.values(), b"", huge, b" ", line("last")])
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, content))
        found = await results(client, batch.output_file_id)
        errors = (await client.files.content(batch.error_file_id or "")).text.splitlines()
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=-1)

    assert (batch.status, await counts(batch)) == ("completed", (11, 4, 7))
    assert set(found) == {"line-0", "line-1", "line-2", "last"}
    failed = [json.loads(each) for each in errors]
    assert {each["custom_id"] for each in failed} == {*bad}
    told = {each["custom_id"]: each["response"] for each in failed}
    assert told["no-tokens"]["body"] == {"error": refused.value.body}
    assert told["no-model"]["status_code"] == 404
    assert told["stream"]["body"]["error"]["param"] == "stream"
    assert told["elsewhere"]["body"]["error"]["param"] == "url"
    assert sorted(each["response"]["status_code"] for each in failed if each["custom_id"] is None) == [400, 413]
    await charged_as_told(served, batch, found)


async def test_an_answer_is_one_line_wherever_unicode_ends_one(served: Served) -> None:
    ends = "a\x85b\u2028c\u2029d"
    await served.tenant()
    served.worker.say(ends)
    content = json.dumps(json.loads(line(ends, max_tokens=60)), ensure_ascii=False).encode()
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, content + b"\n"))
        [told] = (await client.files.content(batch.output_file_id or "")).text.splitlines()

    answer = json.loads(told)
    assert (answer["custom_id"], answer["response"]["body"]["choices"][0]["text"]) == (ends, ends)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "empty_file"), (b"\n \r\n\n", "empty_file"), (b"%PDF-1.7\n\x00\x01\n", "invalid_json_line")],
)
async def test_a_file_that_cannot_be_read_at_all_fails_its_batch(served: Served, content: bytes, code: str) -> None:
    await served.tenant()
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, content))

    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None
    assert {error.code for error in batch.errors.data or ()} == {code}


async def test_a_cancelled_batch_keeps_what_was_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, may_end, put = asyncio.Event(), asyncio.Event(), OutputFiles.put

    async def held(files: OutputFiles) -> dict[bytes, StoredFile]:
        writing.set()
        await may_end.wait()
        return await put(files)

    monkeypatch.setattr(line_runner, "LANDING_S", 0.2)
    monkeypatch.setattr(OutputFiles, "put", held)
    await served.tenant()
    worker = served.worker
    async with served.sdk() as client:
        content = lines(2) + lines(6, max_tokens=8, ignore_eos=True).replace(b"line-", b"slow-")
        worker.limit = 4
        batch = await begun(client, content)
        await until(lambda: len(worker.seen) == 8)
        await answered(client, batch, 2)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        await asyncio.wait_for(writing.wait(), WAIT_S)
        while_written = [await ask(batch.id) for ask in (client.batches.retrieve, client.batches.cancel)]
        may_end.set()
        batch = await ended(client, batch)
        found = await results(client, batch.output_file_id)
        again = await client.batches.cancel(batch.id)

    assert [(each.status, each.cancelling_at is None) for each in while_written] == [("cancelling", False)] * 2
    assert (batch.status, set(found)) == ("cancelled", {"line-0", "line-1"})
    assert batch.cancelled_at is not None
    assert batch.cancelling_at == again.cancelling_at == while_written[0].cancelling_at
    assert again.status == "cancelled"
    await served.landed()
    assert (await served.limits()) == {}


async def spent(served: Served, batch: Batch) -> None:
    """The ledger has what the batch reports, of prompts, cached tokens and output."""
    await served.landed()
    entries = await served.entries()
    assert batch.usage is not None
    assert (
        batch.usage.input_tokens,
        batch.usage.input_tokens_details.cached_tokens,
        batch.usage.output_tokens,
    ) == tuple(
        sum(getattr(entry, name) for entry in entries) for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )


async def test_the_lines_that_a_cancellation_cut_are_counted_and_listed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_runner, "LANDING_S", 0.2)
    await served.tenant(limits={"tokens_per_day": 1_000})
    content = lines(2) + lines(3, max_tokens=8, ignore_eos=True).replace(b"line-", b"slow-")
    async with served.sdk() as client:
        served.worker.limit = 4
        batch = await begun(client, content)
        await answered(client, batch, 2)
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [4] * 5)
        batch = await ended(client, await client.batches.cancel(batch.id))
        found = await results(client, batch.error_file_id)

    assert (batch.status, await counts(batch)) == ("cancelled", (5, 2, 3))
    assert set(found) == {"slow-0", "slow-1", "slow-2"}
    assert {each["error"]["code"] for each in found.values()} == {"batch_cancelled"}
    assert all("3 prompt and 4 output tokens were charged" in each["error"]["message"] for each in found.values())
    await spent(served, batch)
    assert batch.usage is not None
    assert batch.usage.output_tokens > 3 * 4
    assert (await served.limits())["tokens_per_day"].used == batch.usage.total_tokens


async def test_lines_that_a_cancelled_batch_never_ran_are_listed_as_such(served: Served) -> None:
    await served.tenant()
    served.worker.taking = False
    async with served.sdk() as client:
        batch = await begun(client, lines(3))
        batch = await ended(client, await client.batches.cancel(batch.id))
        found = await results(client, batch.error_file_id)

    assert (batch.status, await counts(batch), set(found)) == ("cancelled", (3, 0, 3), {"line-0", "line-1", "line-2"})
    assert {each["error"]["message"] for each in found.values()} == {"The batch was cancelled before this line ran."}
    await spent(served, batch)


async def test_a_cancelled_batch_whose_lines_all_ended_says_when_that_was_asked(served: Served) -> None:
    await served.tenant()
    async with served.sdk() as client:
        served.worker.limit = 3
        batch = await begun(client, lines(1))
        await until(lambda: any(len(made) == 3 for made in served.worker.produced.values()))
        asked = await client.batches.cancel(batch.id)
        served.worker.limit = None
        batch = await ended(client, batch)

    assert (batch.status, await counts(batch)) == ("cancelled", (1, 1, 0))
    assert batch.cancelling_at == asked.cancelling_at
    assert asked.cancelling_at is not None


async def test_a_custom_id_that_two_lines_share_fails_the_batch(served: Served) -> None:
    await served.tenant()
    content = lines(3) + b"\n" + line("line-1") + b"\n" + line("other") + b"\n" + line("line-0")
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, content))

    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    found = [(error.code, error.line, error.param) for error in batch.errors.data or ()]
    assert found == [("duplicate_custom_id", line_, "custom_id") for line_ in (5, 7)]
    assert not served.worker.seen
    assert await served.ledger() == []


async def test_a_deleted_tenants_batch_ends_as_cancelled(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines that did not run have not failed: nothing was wrong with them."""
    monkeypatch.setattr(line_runner, "LANDING_S", 0.2)
    await served.tenant()
    async with served.sdk() as client:
        served.worker.limit = 4
        batch = await begun(client, lines(2) + lines(6, max_tokens=8, ignore_eos=True).replace(b"line-", b"slow-"))
        await answered(client, batch, 2)
    await served.resources.accounts.tenants.delete("acme")
    await until(lambda: not served.resources.batches.runner.open_count)

    metrics = await served.metrics()
    assert 'fairlane_gateway_batches_total{status="cancelled"} 1.0' in metrics
    assert 'fairlane_gateway_batch_lines_total{outcome="completed"} 2.0' in metrics
    assert 'fairlane_gateway_batch_lines_total{outcome="failed"}' not in metrics


an_hour_later = SimpleNamespace(time=lambda: time.time() + 3_600, monotonic=time.monotonic)


async def test_what_has_not_run_in_the_window_expires(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_runner, "LANDING_S", 0.1)
    await served.tenant()
    served.worker.limit = 4
    content = lines(2) + lines(3, max_tokens=8, ignore_eos=True).replace(b"line-", b"slow-")
    async with served.sdk() as client:
        batch = await begun(client, content, completion_window="1h")
        await answered(client, batch, 2)
        monkeypatch.setattr(open_batch, "time", an_hour_later)
        batch = await ended(client, batch)
        found = await results(client, batch.output_file_id)
        errors = await results(client, batch.error_file_id)

    assert (batch.status, await counts(batch)) == ("expired", (5, 2, 3))
    assert set(found) == {"line-0", "line-1"}
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
    assert set(errors) == {"slow-0", "slow-1", "slow-2"}
    assert all(each["response"] is None for each in errors.values())
    await spent(served, batch)


async def test_a_batch_uses_none_of_what_is_there_for_people(served: Served) -> None:
    limits = {"requests_per_minute": 2, "tokens_per_minute": 30, "concurrent_requests": 1, "queued_requests": 1}
    await served.tenant(limits={**limits, "tokens_per_day": 10_000})
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, lines(30)))
        found = await results(client, batch.output_file_id)
        await client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4)
        standing = await served.limits()

    assert await counts(batch) == (30, 30, 0)
    assert standing["requests_per_minute"].used == 1
    tokens = sum(each["response"]["body"]["usage"]["total_tokens"] for each in found.values())
    assert standing["tokens_per_day"].used == tokens + standing["tokens_per_minute"].used


async def test_lines_that_a_full_day_refuses_wait_for_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_runner, "LONGEST_RETRY_S", 0.1)
    await served.tenant(limits={"tokens_per_day": 7})
    async with served.sdk() as client:
        batch = await begun(client, lines(3))
        await answered(client, batch, 1)
        await served.resources.accounts.tenants.update("acme", {"limits": {"tokens_per_day": 1_000}})
        batch = await ended(client, batch)

    assert (batch.status, await counts(batch)) == ("completed", (3, 3, 0))


async def test_batches_that_wait_for_their_budget_leave_their_places(valkey_url: str, tmp_path: Path) -> None:
    async with serving(folder_settings(valkey_url, tmp_path, files={"batches": 2})) as served:
        await served.tenant("greedy", limits={"tokens_per_day": 7})
        await served.tenant("other")
        async with served.sdk("greedy") as greedy, served.sdk("other") as other:
            waiting = [await begun(greedy, lines(2)) for _ in range(5)]
            await until(lambda: len(served.worker.seen) == 1)
            batch = await ended(other, await begun(other, lines(3)))
            await served.resources.accounts.tenants.update("greedy", {"limits": {"tokens_per_day": 1_000}})
            cancelled = await ended(greedy, await greedy.batches.cancel(waiting[-1].id))

    assert (batch.status, await counts(batch)) == ("completed", (3, 3, 0))
    assert cancelled.status == "cancelled"


async def test_running_batches_of_one_tenant_make_room_for_anothers(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_runner, "LANDING_S", 0.1)
    async with serving(folder_settings(valkey_url, tmp_path, files={"batches": 2})) as served:
        await served.tenant("greedy")
        await served.tenant("other")
        async with served.sdk("greedy") as greedy, served.sdk("other") as other:
            served.worker.limit = 2
            long = [await begun(greedy, lines(2, max_tokens=8, ignore_eos=True)) for _ in range(3)]
            await until(lambda: len(served.worker.seen) == 4)
            mine = await begun(other, lines(1, max_tokens=2))
            batch = await ended(other, mine)
            served.worker.limit = None
            went_on = [await ended(greedy, each) for each in long]

    assert (batch.status, await counts(batch)) == ("completed", (1, 1, 0))
    assert [await counts(each) for each in went_on] == [(2, 2, 0)] * 3


async def test_batches_are_listed_newest_first_and_none_of_others(served: Served) -> None:
    await served.tenant()
    await served.tenant("other")
    async with served.sdk() as client, served.sdk("other") as others:
        made = [(await begun(client, lines(1))).id for _ in range(3)]
        first = await client.batches.list(limit=2)
        rest = await client.batches.list(limit=2, after=first.data[-1].id)
        assert ([each.id for each in first.data], first.has_more) == (made[:0:-1], True)
        assert ([each.id for each in rest.data], rest.has_more) == ([made[0]], False)
        assert (await others.batches.list()).data == []
        for call in (others.batches.retrieve, others.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(made[0])


async def test_an_input_stays_while_its_batch_is_open(served: Served) -> None:
    await served.tenant()
    served.worker.taking = False
    async with served.sdk() as client:
        batch = await begun(client, lines(1))
        with pytest.raises(openai.BadRequestError, match="cancel it first"):
            await client.files.delete(batch.input_file_id)
        served.worker.taking = True
        batch = await ended(client, batch)
        assert (await client.files.delete(batch.input_file_id)).deleted


async def test_an_input_that_expires_stays_until_its_batch_has_ended(served: Served) -> None:
    await served.tenant()
    served.worker.taking = False
    async with served.sdk() as client:
        kept = await client.files.create(
            file=lines(1), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
        )
    asked = {"input_file_id": kept.id, "endpoint": COMPLETIONS, "completion_window": "48h"}
    batch = (await served.post("/v1/batches", asked)).json()

    stays_until_ms = await served.store.zscore("fl:batches:{acme}:expiring", kept.id)
    assert stays_until_ms is not None
    assert stays_until_ms > batch["expires_at"] * 1e3 > time.time() * 1e3 + 47 * 3_600_000


async def test_metrics_tell_of_batches(served: Served) -> None:
    await served.tenant()
    async with served.sdk() as client:
        await ended(client, await begun(client, lines(2) + b"{}"))
    told = await served.metrics()
    assert 'fairlane_gateway_batch_lines_total{outcome="completed"} 2.0' in told
    assert 'fairlane_gateway_batch_lines_total{outcome="failed"} 1.0' in told


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "/v1/files"}, "endpoint"),
    ({"completion_window": "24"}, "completion_window"),
    ({"completion_window": "999h"}, "completion_window"),
    ({"input_file_id": "file-none"}, "input_file_id"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("changes", "param"), REFUSED)
async def test_what_no_batch_can_be_is_refused_by_name(served: Served, changes: dict[str, Any], param: str) -> None:
    await served.tenant()
    async with served.sdk() as client:
        kept = await client.files.create(file=lines(1), purpose="batch")
    asked = {"input_file_id": kept.id, "endpoint": COMPLETIONS, "completion_window": "24h", **changes}
    refused = await served.post("/v1/batches", asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_what_batches_may_come_to_has_a_limit(served: Served) -> None:
    await served.tenant(limits={"enqueued_batch_tokens": 2_000})
    served.worker.taking = False
    async with served.sdk() as client:
        batch = await begun(client, lines(20, max_tokens=40))
        with pytest.raises(openai.RateLimitError) as refused:
            await begun(client, lines(20, max_tokens=40))
        with pytest.raises(openai.BadRequestError):
            await begun(client, lines(100, max_tokens=40))
        standing = (await served.get("/v1/limits")).json()["limits"]["enqueued_batch_tokens"]
        served.worker.taking = True
        await ended(client, batch)
        freed = (await served.get("/v1/limits")).json()["limits"]["enqueued_batch_tokens"]
        await begun(client, lines(20, max_tokens=40))

    error: Any = refused.value.body
    assert (error["code"], error["limit"]["name"]) == ("rate_limit_exceeded", "enqueued_batch_tokens")
    assert error["limit"]["used"] == standing["reserved"]
    assert 1_000 < standing["reserved"] <= 2_000
    assert freed["reserved"] == 0
    async with served.http as client_:
        quota = await client_.get(
            "/admin/v1/tenants/acme/quota", headers={"authorization": "Bearer the-admin-key-of-these-tests-0123456789"}
        )
    assert quota.json()["limits"]["enqueued_batch_tokens"]["limit"] == 2_000


async def test_a_key_that_may_not_ask_may_not_in_a_batch(served: Served) -> None:
    await served.tenant(scopes={"endpoints": ["/v1/files", "/v1/batches"]})
    await served.tenant("fast", lanes=["latency"], default_lane="latency")
    for tenant, code in (("acme", "endpoint_not_allowed"), ("fast", "lane_not_allowed")):
        async with served.sdk(tenant) as client:
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await begun(client, lines(1))
        assert refused.value.code == code
