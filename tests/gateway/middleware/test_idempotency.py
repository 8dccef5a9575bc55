"""`Idempotency-Key` over real HTTP: what is sent twice runs once, and is charged once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import redis

from fairlane.gateway.errors import ApiError
from fairlane.gateway.middleware import idempotent_run as idempotency_runs
from tests.support.gateway.sent_twice import BOTH, KEY, STREAMED, hang_up, is_replay, kept, post
from tests.support.gateway.served import (
    ASKED,
    CHAT,
    COMPLETIONS,
    SAID,
    WAIT_S,
    Served,
    error_of,
    serving,
    settings,
    until,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000, "requests_per_minute": 1000})
        yield opened


@BOTH
async def test_a_request_sent_again_is_answered_the_same_and_charged_once(
    served: Served, asked: dict[str, Any]
) -> None:
    first = await post(served, asked, x_request_id="one")
    await kept(served)
    before = await served.limits()
    again = await post(served, asked, x_request_id="two")

    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert "Paris" in first.text
    assert (is_replay(first), is_replay(again)) == (False, True)
    assert (first.headers["x-request-id"], again.headers["x-request-id"]) == ("one", "two")
    for name in ("content-type", "x-fairlane-lane"):
        assert again.headers[name] == first.headers[name]
    assert again.headers["x-ratelimit-remaining-tokens"] == str(before["tokens_per_day"].remaining)
    assert len(served.worker.seen) == len(await served.ledger()) == 1
    assert (await served.limits())["requests_per_minute"].used == 1


async def test_a_wish_for_progress_that_is_none_begins_no_run(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    records, begun = served.resources.requests.runs.records, []

    async def begin(*asked: Any) -> Any:
        begun.append(asked)
        return await type(records).begin(records, *asked)

    monkeypatch.setattr(records, "begin", begin)
    refused = await post(served, x_fairlane_progress="yes")
    await kept(served)
    assert (error_of(refused), refused.json()["error"]["param"]) == (
        (400, "invalid_request_error"),
        "x-fairlane-progress",
    )
    assert begun == []
    assert (await post(served)).status_code == 200


@BOTH
async def test_a_request_that_runs_is_joined(served: Served, asked: dict[str, Any]) -> None:
    served.worker.limit = 3
    asking = [asyncio.create_task(post(served, asked))]
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [3])
    asking += [asyncio.create_task(post(served, asked)) for _ in range(3)]
    await until(lambda: [run.listeners for run in served.resources.requests.runs.in_hand] == [4])
    served.worker.limit = None
    first, *joined = await asyncio.gather(*asking)
    await kept(served)

    assert first.status_code == 200
    assert [(answer.status_code, answer.content, is_replay(answer)) for answer in joined] == 3 * [
        (200, first.content, True)
    ]
    assert not is_replay(first)
    told = served.resources.telemetry.exposition().decode()
    assert f'fairlane_gateway_replays_total{{endpoint="{CHAT}"}} 3.0' in told
    assert len(served.worker.seen) == len(await served.ledger()) == 1


async def test_the_official_sdk_reads_a_replayed_stream(served: Served) -> None:
    texts = []
    for _ in range(2):
        async with served.sdk() as client:
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "Hello"}],
                stream=True,
                extra_headers={"Idempotency-Key": KEY},
            )
            texts.append("".join([chunk.choices[0].delta.content or "" async for chunk in stream]))
        await kept(served)

    assert texts == [SAID, SAID]
    assert len(served.worker.seen) == 1


@pytest.mark.parametrize(
    ("path", "asked", "headers"),
    [
        (CHAT, {**ASKED, "seed": 1}, {}),
        (COMPLETIONS, ASKED, {}),
        (CHAT, ASKED, {"x_fairlane_lane": "throughput"}),
        (CHAT, ASKED, {"x_fairlane_deadline_ms": "60000"}),
    ],
    ids=["body", "path", "lane", "deadline"],
)
async def test_the_key_of_another_request_is_refused_while_it_runs_and_after(
    served: Served, path: str, asked: dict[str, Any], headers: dict[str, str]
) -> None:
    served.worker.limit = 1
    running = asyncio.create_task(post(served))
    await until(lambda: bool(served.worker.seen))
    amid = await served.post(path, asked, idempotency_key=KEY, **headers)
    served.worker.limit = None
    await running
    after = await served.post(path, asked, idempotency_key=KEY, **headers)

    assert [error_of(answer) for answer in (amid, after)] == 2 * [(409, "idempotency_conflict")]
    assert after.json()["error"]["param"] == "idempotency-key"
    assert after.headers["x-should-retry"] == "false"
    assert len(served.worker.seen) == 1


async def test_a_key_is_the_api_keys_own(served: Served) -> None:
    await served.tenant("other")

    mine, theirs = await post(served), await served.post(CHAT, STREAMED, tenant="other", idempotency_key=KEY)

    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert len(served.worker.seen) == 2


async def test_a_refused_request_begins_anew_when_it_is_sent_again(served: Served) -> None:
    served.worker.fails = "out of luck"
    refused = await post(served)
    served.worker.fails = ""
    wrong = await post(served, {**ASKED, "temperature": -1}, key="wrong")
    again = await post(served)
    other_body = await post(served, key="wrong")

    assert refused.status_code >= 500
    assert wrong.status_code == 400
    assert (again.status_code, is_replay(again)) == (200, False)
    assert other_body.status_code == 200


async def test_a_stream_that_failed_before_its_first_token_begins_anew_when_it_is_sent_again(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"header_hold_s": 0.01})) as served:
        await served.tenant()
        served.worker.limit = 0
        asking = asyncio.create_task(post(served, STREAMED))
        await until(lambda: any(run.recording.status for run in served.resources.requests.runs.in_hand))
        [job] = served.resources.fleet.dispatcher.jobs.values()
        job.fail(ApiError("The request's reservation was lost.", "quota_store_unavailable"))
        first = await asking
        await served.landed()
        served.worker.limit = None
        again = await post(served, STREAMED)

    assert (first.status_code, "quota_store_unavailable" in first.text) == (200, True)
    assert (is_replay(again), "error" in again.text) == (False, False)


async def test_a_stream_that_waits_for_its_run_elsewhere_ends_with_503_when_the_store_fails(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings(valkey_url, section={"header_hold_s": 0.01})) as served:
        await served.tenant()
        runs = served.resources.requests.runs

        async def begin(*_: Any) -> str:
            if any(run.listeners and run.is_elsewhere for run in runs.in_hand) and started.is_set():
                raise redis.ConnectionError("away")
            return "running"

        started = asyncio.Event()
        monkeypatch.setattr(runs.records, "begin", begin)
        headers = {"authorization": f"Bearer {served.keys['acme']}", "idempotency-key": KEY}
        async with served.http as client, client.stream("POST", CHAT, json=STREAMED, headers=headers) as answer:
            started.set()
            said = (await answer.aread()).decode()

    assert (answer.status_code, '"code":"quota_store_unavailable"' in said.replace(" ", "")) == (200, True)


async def test_a_stream_that_broke_off_in_the_middle_is_replayed_as_it_ended(served: Served) -> None:
    served.worker.limit = 2
    asking = asyncio.create_task(post(served, STREAMED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    served.worker.fails, served.worker.limit = "out of luck", None
    first = await asking
    await kept(served)
    served.worker.fails = ""
    again = await post(served, STREAMED)

    assert '"error"' in first.text
    assert again.content == first.content
    assert is_replay(again)
    assert len(await served.ledger()) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "ein Schlüssel", "tab\there"], ids=["empty", "huge", "latin", "tab"])
async def test_a_key_that_cannot_be_one_is_refused_by_name(served: Served, key: str) -> None:
    headers = {b"authorization": f"Bearer {served.keys['acme']}".encode(), b"idempotency-key": key.encode("latin-1")}
    async with served.http as client:
        answer = await client.post(CHAT, json=ASKED, headers=headers)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == "idempotency-key"
    assert not served.worker.seen


async def test_two_keys_are_refused_and_the_longest_is_taken(served: Served) -> None:
    headers = [("authorization", f"Bearer {served.keys['acme']}"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    async with served.http as client:
        doubled = await client.post(CHAT, json=ASKED, headers=headers)

    assert error_of(doubled) == (400, "invalid_request_error")
    assert (await post(served, key="k" * 255)).status_code == 200


@BOTH
async def test_a_client_that_left_joins_again_and_pays_once(served: Served, asked: dict[str, Any]) -> None:
    await hang_up(served, asked)

    asking = asyncio.create_task(post(served, asked))
    await until(lambda: [run.listeners for run in served.resources.requests.runs.in_hand] == [1])
    served.worker.limit = None
    answer = await asking
    await kept(served)

    assert answer.status_code == 200
    assert is_replay(answer)
    assert "Paris" in answer.text
    assert not served.worker.cancelled
    assert [outcome for outcome, _, _ in await served.ledger()] == ["finished"]


async def test_what_ends_unheard_is_told_to_who_comes_back(served: Served) -> None:
    await hang_up(served, STREAMED)
    served.worker.limit = None
    await kept(served)

    answer = await post(served, STREAMED)

    assert is_replay(answer)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert len(await served.ledger()) == 1


@pytest.mark.parametrize("grace_s", [0.0, 0.05])
async def test_a_request_whose_client_stays_away_is_cancelled_and_its_key_free(valkey_url: str, grace_s: float) -> None:
    async with serving(settings(valkey_url, section={"idempotency_grace_s": grace_s})) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        served.worker.limit = 2
        asking = asyncio.create_task(post(served))
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: bool(served.worker.cancelled))
        served.worker.limit = None
        again = await post(served)
        await kept(served)

        assert (again.status_code, is_replay(again)) == (200, False)
        assert [outcome for outcome, _, _ in await served.ledger()] == ["cancelled", "finished"]


async def test_a_joiner_keeps_a_request_going_whose_own_client_left(served: Served) -> None:
    served.worker.limit = 2
    owner = asyncio.create_task(post(served, STREAMED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    joiner = asyncio.create_task(post(served, STREAMED))
    await until(lambda: [run.listeners for run in served.resources.requests.runs.in_hand] == [2])
    owner.cancel()
    await until(lambda: [run.listeners for run in served.resources.requests.runs.in_hand] == [1])
    served.worker.limit = None

    assert (await joiner).text.endswith("data: [DONE]\n\n")
    assert not served.worker.cancelled


async def test_an_answer_cut_short_by_its_limit_is_an_end_like_any(served: Served) -> None:
    first, again = [await post(served, {**ASKED, "max_tokens": 2}) for _ in range(2)]

    assert first.json()["choices"][0]["finish_reason"] == "length"
    assert again.content == first.content
    assert is_replay(again)


async def test_of_one_key_only_so_many_requests_go_on_unheard(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_runs, "MOST_ABANDONED", 1)
    await hang_up(served, ASKED)
    asking = asyncio.create_task(post(served, ASKED, key="second"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2, 2])
    asking.cancel()
    await until(lambda: len(served.worker.cancelled) == 1)

    assert [run.is_abandoned for run in served.resources.requests.runs.in_hand if not run.is_given_up] == [True]
    served.worker.limit = None
    await kept(served)
    assert [outcome for outcome, _, _ in await served.ledger()] == ["cancelled", "finished"]


@BOTH
async def test_an_answer_that_is_too_long_is_given_once_and_not_replayed_nor_run_again(
    valkey_url: str, asked: dict[str, Any]
) -> None:
    async with serving(settings(valkey_url, section={"idempotency_answer_bytes": 100})) as served:
        await served.tenant()
        first = await post(served, asked)
        await kept(served)
        again = await post(served, asked)

        assert first.status_code == 200
        assert "Paris" in first.text
        assert error_of(again) == (409, "idempotency_conflict")
        assert "charged" in again.json()["error"]["message"]
        assert len(served.worker.seen) == 1


async def test_a_request_without_the_header_leaves_no_record(served: Served) -> None:
    assert (await served.post(CHAT, ASKED)).status_code == 200

    assert not [key async for key in served.store.scan_iter("fl:quota:*idem*")]
    with pytest.raises(openai.APIStatusError) as refused:
        async with served.sdk() as client:
            await client.models.retrieve("none", extra_headers={"Idempotency-Key": ""})
    assert refused.value.status_code == 404  # the header is read where something is generated


async def test_nothing_of_a_key_or_an_answer_is_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "fairlane")
    async with asyncio.timeout(WAIT_S):
        await post(served, key="very-secret-key")
        await kept(served)
        await post(served, key="very-secret-key")

    assert caplog.records
    assert not [
        record for record in caplog.records if "secret" in record.getMessage() or "Paris" in record.getMessage()
    ]


async def test_a_retry_of_a_plain_request_that_failed_pays_only_for_what_is_new(served: Served) -> None:
    """The answer's own tokens and no more, however often it ended 5xx, and drawn with the same seed."""
    served.worker.limit = 2
    asking = asyncio.create_task(post(served, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    served.worker.fails = "out of order"
    failed = await asking
    served.worker.fails = ""
    await kept(served)
    paid = (await served.limits())["tokens_per_day"].used
    served.worker.limit = None
    again = await post(served, ASKED)
    await kept(served)

    assert (failed.status_code, again.status_code) == (500, 200)
    usage = again.json()["usage"]
    assert paid == usage["prompt_tokens"] + 2
    assert (await served.limits())["tokens_per_day"].used == usage["total_tokens"]
    assert await served.ledger() == [
        ("failed", usage["prompt_tokens"], 2),
        ("finished", 0, usage["completion_tokens"] - 2),
    ]
    first, second = (lease.job.sampling.seed for lease in served.worker.seen)
    assert first == second


async def test_what_another_request_paid_for_is_not_credited(served: Served) -> None:
    """The key is free after a 5xx, also for another body: that one pays for itself."""
    served.worker.limit = 2
    asking = asyncio.create_task(post(served, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    served.worker.fails = "out of order"
    await asking
    served.worker.fails = ""
    await kept(served)
    paid = (await served.limits())["tokens_per_day"].used
    served.worker.limit = None
    other = await post(served, {**ASKED, "temperature": 0.5})
    await kept(served)

    assert (await served.limits())["tokens_per_day"].used == paid + other.json()["usage"]["total_tokens"]
