"""One server for the tests of metrics and traces."""

from collections.abc import Iterator

import pytest

from tests.support.ports import free_port
from tests.support.system.harness import Server

BLOCK_BYTES = 16 * 46_080  # 16 tokens of SmolLM2-135M's KV in float32, which every processor computes fast
BLOCKS = 6


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, str]) -> Iterator[Server]:
    """A server of two gateway processes with metrics on ports of their own, and KV blocks for one long request."""
    settings = {
        "GATEWAY__PROCESSES": "2",
        "GATEWAY__MAX_TENANT_LABELS": "10",
        "METRICS_PORT": str(free_port()),
        "WORKER__METRICS_PORT": str(free_port()),
        "WORKER__DTYPE": "float32",
        "WORKER__KV_MEMORY": str(BLOCKS * BLOCK_BYTES),
        "WORKER__HOST_KV_MEMORY": str(BLOCKS * BLOCK_BYTES),
    }
    server = Server(tmp_path_factory.mktemp("small"), {**settings, **engine}).start()
    yield server
    server.stop()
