"""`Idempotency-Key` where gateways are several, end, or lose the store: still one run, and one charge."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.common.seal import Seal
from fairlane.quotas import keyspace
from fairlane.quotas.idempotency import EndedRun, Name
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.sent_twice import (
    BOTH,
    KEY,
    QUICK,
    STREAMED,
    hang_up,
    is_replay,
    kept,
    post,
    two_gateways,
    waiting,
)
from tests.support.gateway.served import ASKED, CHAT, WAIT_S, Served, error_of, serving, settings, settled, until
from tests.support.gateway.spawned import LEASE_S, process

pytestmark = pytest.mark.anyio


async def test_clients_that_leave_at_any_moment_and_come_back_pay_once(valkey_url: str) -> None:
    async with two_gateways(valkey_url) as (one, other):
        for delay_ms in range(0, 40, 4):
            key, asked = f"key-{delay_ms}", STREAMED if delay_ms % 8 else ASKED
            asking = asyncio.create_task(post(one, asked, key=key))
            await asyncio.sleep(delay_ms / 1e3)  # any moment will do
            asking.cancel()
            answers = [await post(one if delay_ms % 12 else other, asked, key=key) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 200]
            contents = [answer.content[len(waiting(answer)) :] for answer in answers]
            assert contents[0] == contents[1]
        await kept(one)
        await kept(other)

        assert [outcome for outcome, _, _ in await one.ledger()] == 10 * ["finished"]
        limits = await one.limits()
        assert limits["tokens_per_day"].reserved == 0
        assert limits["tokens_per_day"].used == sum(prompt + output for _, prompt, output in await one.ledger())


@BOTH
async def test_a_request_that_runs_on_another_gateway_is_waited_for(valkey_url: str, asked: dict[str, Any]) -> None:
    async with two_gateways(valkey_url) as (one, other):
        one.worker.limit = 2
        owner = asyncio.create_task(post(one, asked))
        await until(lambda: [len(made) for made in one.worker.produced.values()] == [2])
        joiner = asyncio.create_task(post(other, asked))
        await until(lambda: any(run.is_elsewhere for run in other.resources.requests.runs.in_hand))
        conflict = await post(other, {**asked, "seed": 1})
        one.worker.limit = None
        first, joined = await asyncio.gather(owner, joiner)
        await kept(one)
        replayed = await post(other, asked)

        assert error_of(conflict) == (409, "idempotency_conflict")
        assert joined.status_code == 200
        assert joined.content[len(waiting(joined)) :] == replayed.content == first.content
        assert is_replay(joined)
        assert is_replay(replayed)
        assert len(await one.ledger()) == len(one.worker.seen) == 1


@pytest.mark.parametrize("tells_progress", [True, False])
async def test_a_stream_that_waits_for_another_gateway_is_kept_alive(valkey_url: str, *, tells_progress: bool) -> None:
    async with two_gateways(valkey_url) as (one, other):
        one.worker.limit = 2
        owner = asyncio.create_task(post(one, STREAMED))
        await until(lambda: [len(made) for made in one.worker.produced.values()] == [2])
        headers = {"authorization": f"Bearer {other.keys['acme']}", "idempotency-key": KEY}
        if tells_progress:
            headers["x-fairlane-progress"] = "1"
        async with other.http as client, client.stream("POST", CHAT, json=STREAMED, headers=headers) as got:
            lines = got.aiter_lines()
            waited = [await anext(lines) for _ in range(3)]
            one.worker.limit = None
            rest = [line async for line in lines]
        await owner

        assert waited == ([": running", "", ": running"] if tells_progress else ["", "", ""])
        assert [line for line in rest if line][-1] == "data: [DONE]"


async def whole(served: Served) -> list[int]:
    """Prompt and output tokens of the same request without a key."""
    usage = (await served.post(CHAT, ASKED)).json()["usage"]
    await served.landed()
    return [usage["prompt_tokens"], usage["completion_tokens"]]


async def test_what_a_killed_gateway_left_is_run_anew_by_one_that_waits(valkey_url: str) -> None:
    chosen = settings(valkey_url, section={**QUICK, "reservation_lease_s": LEASE_S}, lease_s=LEASE_S)
    async with serving(chosen) as served, process(valkey_url) as (started, base):
        await served.tenant(limits={"tokens_per_day": 100_000})
        served.worker.limit = 2
        headers = {"authorization": f"Bearer {served.keys['acme']}", "idempotency-key": KEY}
        async with httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client:
            owner = asyncio.create_task(client.post(CHAT, json=STREAMED, headers=headers))
            await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
            joiners = [asyncio.create_task(post(served, STREAMED)) for _ in range(3)]
            await until(lambda: any(run.is_elsewhere for run in served.resources.requests.runs.in_hand))

            started.kill()
            await until(lambda: len(served.worker.seen) == 2)
            served.worker.limit = None
            answers = await asyncio.gather(*joiners)
            await asyncio.gather(owner, return_exceptions=True)
        await kept(served)
        await settled(served)

        assert {answer.status_code for answer in answers} == {200}
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        assert len({answer.content[len(waiting(answer)) :] for answer in answers}) == 1
        (ended, *first), (finished, *second) = await served.ledger()
        assert (ended, finished) == ("cancelled", "finished")
        usage = await whole(served)
        assert [sum(parts) for parts in zip(first, second, strict=True)] == usage
        assert (await served.limits())["tokens_per_day"].used == 2 * sum(usage)


async def test_a_gateway_that_shuts_down_tells_those_who_wait_for_another(valkey_url: str) -> None:
    async with two_gateways(valkey_url) as (one, other):
        one.worker.limit = 2
        owner = asyncio.create_task(post(one, ASKED))
        await until(lambda: bool(one.worker.seen))
        plain = asyncio.create_task(post(other, ASKED))
        await until(lambda: any(run.is_elsewhere for run in other.resources.requests.runs.in_hand))

        await other.stop()
        refused = await plain
        one.worker.limit = None

        assert error_of(refused) == (503, "shutting_down")
        assert (await owner).status_code == 200


@pytest.mark.slow
async def test_without_the_store_a_key_is_refused_and_afterwards_answered(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    store.start()
    async with serving(settings(store.url, section={"store_timeout_s": 0.25})) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        first = await post(served)
        await kept(served)
        store.stop()
        refused = await post(served, key="another")
        store.start()
        await until(lambda: not served.resources.stores.availability.is_away)
        again = await post(served)

        assert error_of(refused) == (503, "quota_store_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert again.content == first.content
        assert is_replay(again)
    store.stop()


async def test_an_end_that_the_store_would_not_take_is_told_meanwhile_and_kept_later(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = asyncio.Event()

    async with serving(settings(valkey_url)) as served:
        await served.tenant()
        records = served.resources.requests.runs.records
        finish = records.finish

        async def flaky(name: Name, owner: str, ended: EndedRun, seal: Seal | None) -> bool:
            if not answers.is_set():
                raise StoreUnavailable("away")
            return await finish(name, owner, ended, seal)

        monkeypatch.setattr(records, "finish", flaky)
        first, amid = await post(served), await post(served)
        answers.set()
        await kept(served)
        after = await post(served)

        assert first.content == amid.content == after.content
        assert [is_replay(answer) for answer in (first, amid, after)] == [False, True, True]
        assert len(served.worker.seen) == 1


async def test_what_another_gateway_has_taken_over_goes_on_here_only_for_listeners(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"reservation_lease_s": 1.0})) as served:
        await served.tenant()
        await hang_up(served, STREAMED)
        (run,) = served.resources.requests.runs.in_hand
        await served.store.hset(keyspace.idempotency(run.name.root, run.name.key_id, run.name.digest), "owner", "other")

        await until(lambda: len(served.worker.cancelled) == 1)

        await kept(served)
        assert (
            await served.resources.requests.runs.records.begin(run.name, "asking", run.fingerprint, None) == "running"
        )


async def test_a_gateway_that_shuts_down_keeps_how_its_requests_ended(valkey_url: str) -> None:
    async with two_gateways(valkey_url, grace_s=0.1) as (one, other):
        await hang_up(one, STREAMED)
        await one.stop()

        answer = await post(other, STREAMED)

        assert is_replay(answer)
        assert "shutting_down" in answer.text
        assert len(await other.ledger()) == 1
