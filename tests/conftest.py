"""Fixtures that every suite shares: real stores, fresh for each test."""

import functools
import gc
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import redis
import redis.asyncio
from xdist.scheduler import LoadFileScheduling

from fairlane.cli.embedded_store import EmbeddedStore, valkey_binary
from fairlane.common.gc_tuning import OF_A_GATEWAY, collect_seldom
from tests.support.store import topology
from tests.support.worker.vision.served import vision_server

__all__ = ["vision_server"]

HERE = Path(__file__).parent

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# As a worker sets it: two processes of tests share their cores. OpenMP reads it when torch is imported.

hunted = os.environ.get("FAIRLANE_TEST_HUNT")
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile(
    "hunt", max_examples=max(100, int(hunted or 0)), deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("same" if hunted is None else "hunt")
"""A property is tried on the same examples at each run, so that a change is not blamed for what it did not do; with
FAIRLANE_TEST_HUNT=1 others are looked for, with a larger number so many of each that says no number itself."""

FAST = "not slow"
"""What `make fast` asks of pytest: no test that starts a process, needs a store, or loads torch."""
SLOW_ROOMS = {"benchmarks", "chart", "packaging", "system", "worker"}
SLOW_FIXTURES = {"lasting_valkey", "models_dir", "redis_server", "store_url", "valkey", "valkey_url"}
LONG_ROOMS = ("system", "benchmarks", "worker")
"""Run first, in this order: short tests at the end leave no process of tests waiting for the other's last long one."""
SHARED_SERVERS = (
    "tests/system/sdk/",
    "tests/system/console/",
    "tests/system/monitoring/",
    *(f"tests/system/test_{name}.py" for name in ("budget", "client_examples", "examples", "faults", "prefix")),
    *(f"tests/system/test_{name}.py" for name in ("serve", "trace")),
)
# Tests of servers that are started once per session: they stay in one process of tests.
PROCESS_EVENTS = {"os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen"}
_fast_test_runs = False


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()
    if config.option.markexpr == FAST:
        sys.addaudithook(_refuse_processes)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Rooms that are slow as a whole are not even read: torch alone takes seconds."""
    return True if config.option.markexpr == FAST and _room(collection_path) in SLOW_ROOMS else None


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests stay together, and so do those of all files that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        return SHARED_SERVERS[0] if nodeid.startswith(SHARED_SERVERS) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what needs a store or the model, as a fixture or as a parameter, and everything thorough.

    Outside the store's own tests each file runs its first test on Redis too; the others on Redis are thorough.
    """
    items.sort(key=lambda item: _turn(_room(item.path)))
    on_redis: set[Path] = set()
    for item in items:
        if _is_on_redis(item) and _room(item.path) != "store":
            if item.path in on_redis:
                item.add_marker("thorough")
            on_redis.add(item.path)
        if (
            _room(item.path) in SLOW_ROOMS
            or item.get_closest_marker("thorough")
            or (isinstance(item, pytest.Function) and SLOW_FIXTURES & _needs(item))
        ):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Imports and collection make a million objects that stay: collect garbage only from here on, and only in what the
    tests make, as seldom as a gateway does. A pass over all of it takes half a second."""
    collect_seldom(OF_A_GATEWAY)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """In a fast run a test that is not marked slow starts nothing and loads no torch."""
    global _fast_test_runs
    _fast_test_runs = item.config.option.markexpr == FAST
    try:
        return (yield)
    finally:
        loaded, _fast_test_runs = _fast_test_runs and "torch" in sys.modules, False
        if loaded:
            pytest.exit(f"{item.nodeid} or its imports load torch: mark it slow", returncode=1)


def _room(path: Path) -> str:
    inside = path.relative_to(HERE).parts if path.is_relative_to(HERE) else ()
    return inside[0] if inside else ""


def _turn(room: str) -> int:
    return LONG_ROOMS.index(room) if room in LONG_ROOMS else len(LONG_ROOMS)


def _is_on_redis(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "redis_server" in _needs(item)


def _needs(item: pytest.Function) -> set[str]:
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {*item.fixturenames, *(value for value in given if isinstance(value, str))}


def _refuse_processes(event: str, _: tuple[object, ...]) -> None:
    if _fast_test_runs and event in PROCESS_EVENTS:
        raise RuntimeError("this test starts a process: mark it slow")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def cheap_clients() -> Iterator[None]:
    """Read once per process what every new client reads again: httpx the certificate authorities (20 ms of CPU time,
    even for plain HTTP), redis-py its own version (0.4 ms). The tests open thousands of both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", functools.cache(httpx.create_ssl_context))
        patch.setattr("redis.utils.get_lib_version", functools.cache(redis.utils.get_lib_version))
        yield


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
    with topology.running(tmp_path_factory.mktemp("valkey"), valkey_binary()) as store:
        yield store


@pytest.fixture(scope="module")
def emptied_valkey(valkey: EmbeddedStore, emptied_url: Callable[[EmbeddedStore], str]) -> EmbeddedStore:
    """Emptied before a file's tests, for processes that outlive each of them."""
    emptied_url(valkey)
    return valkey


@pytest.fixture(scope="session")
def lasting_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    """A second store, which single tests do not empty."""
    with topology.running(tmp_path_factory.mktemp("lasting"), valkey_binary()) as store:
        yield store


@pytest.fixture(scope="module")
def file_url(lasting_valkey: EmbeddedStore, emptied_url: Callable[[EmbeddedStore], str]) -> str:
    """A store that is emptied before a file's tests, for gateways that outlive each of them."""
    return emptied_url(lasting_valkey)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with topology.running(tmp_path_factory.mktemp("redis"), redis_binary()) as store:
        yield store


@pytest.fixture(scope="session")
def emptied_url() -> Iterator[Callable[[EmbeddedStore], str]]:
    """Empties a store, over one connection to each for all tests, and returns its URL."""
    with ExitStack() as stack:
        client = functools.cache(lambda url: stack.enter_context(redis.from_url(url)))

        def emptied(store: EmbeddedStore | topology.SharedStore) -> str:
            if isinstance(store, topology.SharedStore):
                store.flush()
            else:
                client(store.url).flushall()
            return store.url

        yield emptied


@pytest.fixture(params=["valkey", "redis_server"])
def store_url(request: pytest.FixtureRequest, emptied_url: Callable[[EmbeddedStore], str]) -> str:
    """An empty store of each kind that we support."""
    return emptied_url(request.getfixturevalue(request.param))


@pytest.fixture
def valkey_url(valkey: EmbeddedStore, emptied_url: Callable[[EmbeddedStore], str]) -> str:
    """An empty embedded store, for tests that need only one."""
    return emptied_url(valkey)


@pytest.fixture
async def store(store_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    client = topology.client(store_url)
    yield client
    await client.aclose()
