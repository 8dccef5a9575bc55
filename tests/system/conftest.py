"""One running Fairlane for the tests that only use it, and others for those that start their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import resolve
from tests.support import vllm
from tests.support.ports import free_port
from tests.support.system.harness import MODEL, Server
from tests.support.system.otlp import Collector, receiving

StartServer = Callable[..., Server]
BLOCK_BYTES = 16 * 46_080  # 16 tokens of SmolLM2-135M's KV in float32, which every processor computes fast
SMALL_BLOCKS = 34


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[dict[str, str]]:
    """The settings of what computes: our own engine, or one vLLM for all servers (docs/engines.md). The tokens of both
    are the same however they come about: alone, beside others, from the cache."""
    shared = {"WORKER__MODELS_DIR": str(models_dir)}
    if not vllm.IS_BEHIND:
        yield shared
        return
    assert vllm.PYTHON, vllm.MISSING
    directory = resolve(DEFAULT_MODEL, models_dir).directory
    with vllm.Vllm(tmp_path_factory.mktemp("vllm"), directory, MODEL, vllm.SMALL_BLOCKS) as started:
        yield shared | started.settings


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """All traces and metrics of the server."""
    with receiving() as opened:
        yield opened


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, str], collector: Collector) -> Iterator[Server]:
    """Its tokens are the same however they come about: alone, beside others, from the cache. It waits for its store as
    long as a busy machine takes, and tells its traces and metrics."""
    settings = {"WORKER__DTYPE": "float32", "GATEWAY__STORE_TIMEOUT_S": "5", **engine}
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    traced |= {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "2000"}
    started = Server(tmp_path_factory.mktemp("serve"), settings, environ=traced).start()
    yield started
    assert started.stop() == 0, started.log()[-2000:]


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, str]) -> Iterator[Server]:
    """One whose processes are killed. Its tokens are the same however it comes to them, and it soon knows who died. Its
    environment names a proxy that nobody is: those of one machine do not ask it for each other."""
    settings = {"WORKER__DTYPE": "float32", "LEASE_S": "2", **engine}
    settings |= {"GATEWAY__RESERVATION_LEASE_S": "2", "GATEWAY__QUANTUM_TOKENS": "8"}
    nobody = {"HTTP_PROXY": f"http://127.0.0.1:{free_port()}"}
    started = Server(tmp_path_factory.mktemp("mortal"), settings, environ=nobody).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, str]) -> Iterator[Server]:
    """A server with KV blocks for one long request, so that the latency lane preempts the throughput lane.

    It has two gateway processes, and metrics on ports of their own."""
    settings = {
        "GATEWAY__PROCESSES": "2",
        "GATEWAY__MAX_TENANT_LABELS": "20",
        "METRICS_PORT": str(free_port()),
        "WORKER__METRICS_PORT": str(free_port()),
        "WORKER__DTYPE": "float32",
        "WORKER__KV_MEMORY": str(SMALL_BLOCKS * BLOCK_BYTES),
        "WORKER__HOST_KV_MEMORY": str(SMALL_BLOCKS * BLOCK_BYTES),
    }
    started = Server(tmp_path_factory.mktemp("small"), {**settings, **engine}).start()
    yield started
    started.stop()


@pytest.fixture
def start_server(tmp_path: Path, engine: dict[str, str]) -> Iterator[StartServer]:
    """Start servers with settings of their own; they are stopped at the end."""
    started: list[Server] = []

    def start(directory: Path = tmp_path, **settings: str) -> Server:
        started.append(Server(directory, {**engine, **settings}).start())
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
