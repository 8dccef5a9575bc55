"""A gateway over a store that is not fit for it: it refuses to start, or says what is wrong while it runs."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.api.store_checks import StoreChecks
from fairlane.store import schema
from fairlane.store.checks import FaultKind
from fairlane.store.functions import Library
from tests.support.gateway.served import ADMIN_KEY, ASKED, CHAT, WAIT_S, error_of, serving, settings, until
from tests.support.ports import free_port
from tests.support.store import topology
from tests.support.store.acl import administering, user_url

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def admin(valkey_url: str) -> Iterator["redis.Redis"]:
    with administering(valkey_url) as client:
        yield client


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_missing_right_ends_the_start_with_one_line_that_names_it(
    valkey_url: str, admin: "redis.Redis", processes: str
) -> None:
    environ = {**os.environ, "FAIRLANE_PORT": str(free_port()), "FAIRLANE_ADMIN_KEY": ADMIN_KEY}
    environ["FAIRLANE_REDIS_URL"] = user_url(admin, valkey_url, "+@all", "~*", "-eval", "-zadd")
    environ["FAIRLANE_GATEWAY__PROCESSES"] = processes

    ended = subprocess.run(
        [sys.executable, "-m", "fairlane.gateway"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "gateway: the store cannot be used, its user may not run EVAL, ZADD: grant that to Fairlane's user: "
        "ACL SETUSER … +eval +zadd"
    ]


async def test_a_gateway_over_a_store_that_evicts_is_not_ready_and_says_why(
    valkey_url: str, admin: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.config_set("maxmemory", "100mb")
    async with serving(settings(valkey_url)) as served:
        checks = served.resources.stores.checks
        await until(lambda: checks.has(FaultKind.EVICTION))
        async with served.http as client:
            refused = await client.get("/readyz")
            metrics = await served.metrics()

            assert error_of(refused) == (503, "quota_store_unavailable")
            assert "maxmemory-policy is allkeys-lru" in refused.text
            assert 'fairlane_gateway_store_fault{fault="eviction"} 1.0' in metrics
            assert 'fairlane_gateway_store_fault{fault="rights"} 0.0' in metrics
            admin.config_set("maxmemory-policy", "noeviction")
            await checks.check()
            assert (await client.get("/readyz")).status_code == 200

    told = [(record.levelno, record.getMessage()) for record in caplog.records if "fault" in record.getMessage()]
    assert [level for level, _ in told if level > logging.INFO] == [logging.ERROR]
    assert "CONFIG SET maxmemory-policy noeviction" in told[0][1]


async def test_a_store_without_persistence_is_warned_of_and_served(
    valkey_url: str, admin: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(settings(valkey_url)) as served:
        admin.config_set("appendonly", "no")
        for _ in range(2):
            await served.resources.stores.checks.check()

        assert 'fairlane_gateway_store_fault{fault="persistence"} 1.0' in await served.metrics()
        async with served.http as client:
            assert (await client.get("/readyz")).status_code == 200

    (warning,) = [record for record in caplog.records if "has a fault" in record.getMessage()]
    assert warning.levelno == logging.WARNING
    assert "appendonly yes" in warning.getMessage()


async def test_a_right_that_is_lost_while_it_runs_is_named(valkey_url: str, admin: "redis.Redis") -> None:
    async with serving(settings(user_url(admin, valkey_url, "+@all", "~*"))) as served:
        admin.execute_command("ACL", "SETUSER", "bounded", "-xadd")  # type: ignore[no-untyped-call]
        await served.resources.stores.checks.check()

        async with served.http as client:
            refused = await client.get("/readyz")

    assert error_of(refused) == (503, "quota_store_unavailable")
    assert "may not run XADD" in refused.text


async def test_a_store_that_was_away_at_the_start_is_checked_once_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = EmbeddedStore(tmp_path)
    store.start()
    async with redis.asyncio.from_url(store.url) as client:
        await client.set(schema.KEY, f"{schema.SCHEMA + 2} {schema.SCHEMA + 1}")
    store.stop()
    checks = StoreChecks({"store": store.url}, timeout_s=1.0)
    with caplog.at_level(logging.DEBUG, "fairlane.store.retry"):
        running = asyncio.create_task(checks.run())
        try:
            await until(lambda: "the check of the stores waits for the store" in caplog.text)
            store.start()
            await until(lambda: checks.has(FaultKind.SCHEMA))
        finally:
            running.cancel()
            store.stop()
    assert "its schema 3 is too new" in checks.refusal


async def test_functions_of_past_releases_are_dropped_and_those_in_use_are_kept(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology.one_master(valkey_url)
    monkeypatch.setattr("fairlane.gateway.runtime.fleet.DROP_FUNCTIONS_EVERY_S", 0.05)
    async with topology.client(valkey_url) as store, serving(settings(valkey_url)) as served:

        async def kept() -> set[str]:
            listed = await store.execute_command("FUNCTION LIST", "LIBRARYNAME", "fairlane_*")  # type: ignore[no-untyped-call]
            return {name.decode() for _, name, *_ in listed}

        await served.tenant()
        assert (await served.post(CHAT, ASKED)).status_code == 200
        for kind in ("fairlane_queue", "fairlane_quotas"):
            await Library(kind, "", {"past": "return 1\n"}, {}).call(store, "past", "key")
        async with asyncio.timeout(WAIT_S):
            while len(await kept()) > 2:  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.02)
        in_use = await kept()
        assert (await served.post(CHAT, ASKED)).status_code == 200
        assert await kept() == in_use
