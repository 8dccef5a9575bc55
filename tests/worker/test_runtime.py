"""What the worker's process finds out about the machine it runs on."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest
import redis

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.planner.costs import CostModel
from fairlane.store import schema
from fairlane.worker import runtime
from fairlane.worker.__main__ import prepare_threads
from fairlane.worker.config import WorkerSettings
from fairlane.worker.engine.engine import OpenedEngine
from fairlane.worker.own_engine import usable_cores
from fairlane.worker.runtime import serve
from tests.support.store.acl import administering, user_url
from tests.support.worker.scripted import ScriptedRunner, engine
from tests.support.worker.serving import CARD, LIMIT_S

ALL = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", ALL), ("100000 100000", 1), ("50000 100000", 1), (f"{ALL + 7}00000 100000", ALL)],
)
def test_a_containers_quota_bounds_the_cores(quota: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == cores


def test_without_a_container_every_core_of_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALL


def test_idle_threads_sleep_unless_the_operator_says_otherwise() -> None:
    environ: dict[str, str] = {}
    prepare_threads(environ)
    assert environ == {"OMP_WAIT_POLICY": "PASSIVE"}
    chosen = {"OMP_WAIT_POLICY": "ACTIVE"}
    prepare_threads(chosen)
    assert chosen == {"OMP_WAIT_POLICY": "ACTIVE"}


def test_a_store_that_lacks_a_right_is_refused_before_the_model_is_loaded(valkey_url: str) -> None:
    def open_engine(_: WorkerSettings) -> OpenedEngine:
        raise AssertionError("the model is loaded")

    with administering(valkey_url) as admin:
        settings = WorkerSettings(redis_url=user_url(admin, valkey_url, "+@all", "~*", "-xread"))
        with pytest.raises(SettingsError, match="the store cannot be used, its user may not run XREAD"):
            serve(settings, {}, open_engine)


def test_a_worker_that_started_without_its_store_checks_the_schema_before_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "collect_seldom", lambda _: None)
    store = EmbeddedStore(tmp_path)

    def open_engine(_: WorkerSettings) -> OpenedEngine:
        store.start()
        with redis.Redis.from_url(store.url) as client:
            client.set(schema.KEY, f"{schema.SCHEMA + 2} {schema.SCHEMA + 1}")
        return OpenedEngine(engine(ScriptedRunner()), CARD, CostModel(), 512)

    stops = threading.Timer(LIMIT_S, os.kill, (os.getpid(), signal.SIGTERM))  # a worker that serves
    stops.start()
    try:
        with pytest.raises(SettingsError, match="the store cannot be used, its schema 3 is too new"):
            serve(WorkerSettings(redis_url=store.url), {}, open_engine)
    finally:
        stops.cancel()
        store.stop()


@pytest.mark.anyio
async def test_what_runs_alongside_the_server_ends_with_it_even_if_it_fails() -> None:
    begun, ended = asyncio.Event(), list[str]()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def serve_and_fail() -> None:
        async with runtime.alongside(work()):
            await begun.wait()
            raise RuntimeError("the server failed")

    with pytest.raises(RuntimeError, match="the server failed"):
        await serve_and_fail()

    assert ended == ["work"]
