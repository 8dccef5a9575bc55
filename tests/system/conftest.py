"""One running Fairlane for the tests that only use it, and others for those that start their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.system.harness import Server

StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Server]:
    """Its tokens are the same however they come about: alone, beside others, from the cache. And it waits for its store
    as long as a busy machine takes."""
    settings = {"WORKER__MODELS_DIR": str(models_dir), "WORKER__DTYPE": "float32", "GATEWAY__STORE_TIMEOUT_S": "2"}
    started = Server(tmp_path_factory.mktemp("serve"), settings).start()
    yield started
    assert started.stop() == 0, started.log()[-2000:]


@pytest.fixture
def start_server(tmp_path: Path, models_dir: Path) -> Iterator[StartServer]:
    """Start servers with settings of their own; they are stopped at the end."""
    started: list[Server] = []

    def start(directory: Path = tmp_path, **settings: str) -> Server:
        started.append(Server(directory, {"WORKER__MODELS_DIR": str(models_dir), **settings}).start())
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
