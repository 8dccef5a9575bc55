"""Fixtures that every suite shares: real stores, fresh for each test."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import redis
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore, valkey_binary

hypothesis.settings.register_profile("same", derandomize=True)
if "FAIRLANE_TEST_HUNT" not in os.environ:
    hypothesis.settings.load_profile("same")
"""A property is tried on the same examples at each run, so that a change is not blamed for what it did not do; with
FAIRLANE_TEST_HUNT set others are looked for."""

NEED_A_PROCESS = {"valkey", "redis_server", "valkey_url", "store_url", "models_dir"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a store or the model is slow."""
    for item in items:
        if isinstance(item, pytest.Function) and NEED_A_PROCESS & {*item.fixturenames}:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def models_dir(request: pytest.FixtureRequest) -> Path:
    """Where the default model is unpacked once, kept between runs."""
    cache = request.config.cache
    assert cache is not None
    return cache.mkdir("models")


def redis_binary() -> str:
    found = shutil.which("redis-server")
    if found is None:
        reason = "redis-server is not installed"
        if os.environ.get("FAIRLANE_TEST_REQUIRE_REDIS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    yield from _running(tmp_path_factory.mktemp("valkey"), valkey_binary())


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    yield from _running(tmp_path_factory.mktemp("redis"), redis_binary())


def _running(directory: Path, binary: str) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(directory, binary=binary)
    store.start()
    yield store
    store.stop()


@pytest.fixture(params=["valkey", "redis_server"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store of each kind that we support."""
    store: EmbeddedStore = request.getfixturevalue(request.param)
    with redis.from_url(store.url) as client:
        client.flushall()
    return store.url


@pytest.fixture
def valkey_url(valkey: EmbeddedStore) -> str:
    """An empty embedded store, for tests that need only one."""
    with redis.from_url(valkey.url) as client:
        client.flushall()
    return valkey.url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    client = redis.asyncio.from_url(store_url)
    yield client
    await client.aclose()
