"""The store goes and comes back: requests are told in time, streams go on, nothing is restarted."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas.ledger import Ledger
from tests.support.gateway.served import ASKED, CHAT, SAID, WAIT_S, Served, error_of, serving, settings, until
from tests.support.store.proxy import proxied

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path)
    store.start()
    yield store
    store.stop()


async def answers(served: Served) -> None:
    """Wait until requests are served again."""
    async with asyncio.timeout(WAIT_S):
        while (await served.post(CHAT, ASKED)).status_code != 200:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.05)


async def test_without_the_store_requests_are_503_and_with_it_200_again(own_store: EmbeddedStore) -> None:
    async with serving(settings(own_store.url, section={"store_timeout_s": 0.25})) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        assert (await served.post(CHAT, ASKED)).status_code == 200

        own_store.stop()
        async with asyncio.timeout(5):
            refused = await served.post(CHAT, ASKED)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "quota_store_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        await until(lambda: served.resources.stores.availability.is_away)
        async with served.http as client:
            assert (await client.get("/healthz")).status_code == 200
            assert error_of(await client.get("/readyz")) == (503, "quota_store_unavailable")
        assert "fairlane_gateway_requests_total" in await served.metrics()

        own_store.start()
        await answers(served)
        async with served.http as client:
            assert (await client.get("/readyz")).status_code == 200
        await served.landed()
        assert (await served.limits())["tokens_per_day"].reserved == 0


@pytest.mark.parametrize("is_stuck", [True, False])
async def test_while_the_store_is_away_requests_fail_at_once_and_leave_nothing_behind(
    own_store: EmbeddedStore, is_stuck: bool, caplog: pytest.LogCaptureFixture
) -> None:
    section = {"store_timeout_s": 0.5}
    async with (
        proxied(own_store.socket) as proxy,
        serving(settings(proxy.url, section=section), direct=own_store.url) as at,
    ):
        await at.tenant(limits={"tokens_per_day": 100_000})
        assert "x-fairlane-degraded" not in (await at.post(CHAT, ASKED)).headers
        await at.landed()

        proxy.is_stuck = is_stuck
        await proxy.cut()
        if not is_stuck:
            await proxy.stop()
        await asyncio.gather(*(at.post(CHAT, ASKED) for _ in range(5)))  # until it is noticed
        await until(lambda: at.resources.stores.availability.is_away)
        refused = await asyncio.gather(*(at.post(CHAT, ASKED) for _ in range(50)))
        told = await at.metrics()
        proxy.is_stuck = False
        if not is_stuck:
            await proxy.start()
        await answers(at)
        await at.landed()

    assert {(*error_of(answer), answer.headers["x-fairlane-degraded"]) for answer in refused} == {
        (503, "quota_store_unavailable", "quota-store")
    }
    assert "fairlane_gateway_store_openings_total 1.0" in told
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    names = [record.name for record in lines if record.name.startswith(("fairlane.gateway", "fairlane.store"))]
    assert names == ["fairlane.store.circuit_breaker"] * 2, lines
    assert not [record for record in caplog.records if record.exc_info]


async def test_without_the_budgets_store_requests_are_admitted_by_share_and_charged_later(
    own_store: EmbeddedStore, valkey: EmbeddedStore, valkey_url: str
) -> None:
    section = {"store_timeout_s": 0.5, "quota_fallback": "local_share"}
    async with (
        proxied(own_store.socket) as proxy,
        serving(settings(valkey_url, section=section, quota_redis_url=proxy.url)) as at,
        redis.asyncio.from_url(own_store.url) as budgets,
    ):
        await at.tenant(limits={"tokens_per_day": 100_000})
        assert (await at.post(CHAT, ASKED)).status_code == 200
        await until(lambda: at.resources.accounts.guard is not None and at.resources.accounts.guard.knows("acme"))

        await proxy.stop()
        told = [await at.post(CHAT, ASKED) for _ in range(5)]
        async with at.http as client:
            ready = await client.get("/readyz")
        await proxy.start()
        await until(lambda: at.resources.missing() == "")
        await at.landed()
        entries = await Ledger(budgets).entries("acme", "acme")

    assert [answer.status_code for answer in told] == [200] * 5
    assert told[-1].headers["x-fairlane-degraded"] == "quota-store"
    assert ready.status_code == 200
    assert len(entries) == 6
    assert {entry.output_tokens for entry in entries} == {len(at.worker.script)}


async def test_requests_that_pass_the_budgets_and_find_no_queue_leave_nothing_in_hand(
    own_store: EmbeddedStore, valkey_url: str
) -> None:
    section = {"store_timeout_s": 0.5}
    async with (
        proxied(own_store.socket) as proxy,
        serving(settings(proxy.url, section=section, quota_redis_url=valkey_url), direct=own_store.url) as at,
    ):
        await at.tenant(limits={"tokens_per_day": 100_000})
        assert (await at.post(CHAT, ASKED)).status_code == 200
        await proxy.stop()
        await until(lambda: at.resources.stores.availability.is_away)

        refused = [await at.post(CHAT, ASKED) for _ in range(20)]
        await until(lambda: at.resources.requests.settlements.in_hand == 0)
        await proxy.start()

    assert {error_of(answer) for answer in refused} == {(503, "quota_store_unavailable")}
    assert refused[0].headers["x-fairlane-degraded"] == "queue-store"


async def test_a_stream_goes_on_across_an_outage_without_losing_a_token(own_store: EmbeddedStore) -> None:
    async with serving(settings(own_store.url)) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        served.worker.limit = 2
        async with served.sdk() as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True
            )
            said = aiter(stream)
            text = (await anext(said)).choices[0].delta.content or ""
            await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])

            own_store.stop()
            served.worker.limit = None
            await until(lambda: served.resources.stores.availability.is_away)
            own_store.start()
            async for chunk in said:
                text += chunk.choices[0].delta.content or ""

        assert text == SAID
        await served.landed()
        ((outcome, _, output),) = await served.ledger()
        assert (outcome, output) == ("finished", len(served.worker.script))


async def test_a_reservation_that_timed_out_is_given_back(own_store: EmbeddedStore) -> None:
    async with serving(settings(own_store.url, section={"store_timeout_s": 0.25})) as served:
        await served.tenant(limits={"tokens_per_day": 100_000, "requests_per_minute": 100})
        served.worker.taking = False
        async with redis.asyncio.from_url(own_store.url) as blocker:
            await blocker.client_pause(20_000, all=False)  # what writes waits; keys are still looked up
            refused = await served.post(CHAT, ASKED)
            await blocker.client_unpause()
        await until(lambda: served.resources.requests.settlements.in_hand == 0)

        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "quota_store_unavailable")
        limits = await served.limits()
        assert {name: (status.used, status.reserved) for name, status in limits.items()} == {
            "tokens_per_day": (0, 0),
            "requests_per_minute": (0, 0),
        }


async def test_a_settlement_waits_for_the_store(own_store: EmbeddedStore) -> None:
    async with serving(settings(own_store.url, section={"store_timeout_s": 0.25})) as served:
        await served.tenant(limits={"tokens_per_day": 100_000})
        served.worker.limit = 2
        running = asyncio.create_task(served.post(CHAT, ASKED))
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])

        own_store.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: served.resources.requests.settlements.in_hand > 0)
        own_store.start()
        await served.landed()

        assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 2)]
        assert (await served.limits())["tokens_per_day"].reserved == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/models/none"])
async def test_a_fault_in_telling_the_limits_is_still_an_answer_of_ours(
    valkey_url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings(valkey_url)) as served:
        key = await served.tenant(limits={"tokens_per_day": 100_000})

        async def fail(*_: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(served.resources.accounts.quotas, "statuses", fail)
        async with served.http as client:
            told = await client.request(
                "POST" if path == CHAT else "GET",
                path,
                content=b"{" if path == CHAT else None,
                headers={"authorization": f"Bearer {key}", "x-request-id": "mine"},
            )

        assert error_of(told) == (500, "internal_error")
        assert told.headers["x-request-id"] == "mine"
