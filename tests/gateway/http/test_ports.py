"""What is told on which port, and to whom."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from fairlane.gateway.http.ports import PortRefused, check_ports
from fairlane.scheduler.protocol.settings import SharedSettings
from tests.support.gateway.served import ASKED, CHAT, OPERATOR, WAIT_S, serving, settings
from tests.support.gateway.spawned import process
from tests.support.ports import free_port

pytestmark = pytest.mark.anyio

OPEN = ("/healthz", "/health", "/readyz")
OPERATORS = ("/", "/console/app.js", "/admin/v1/tenants")


async def statuses(base: str, *paths: str, headers: dict[str, str] | None = None) -> list[int]:
    async with httpx.AsyncClient(base_url=base, timeout=WAIT_S, headers=headers) as client:
        return [(await client.get(path)).status_code for path in paths]


async def test_on_one_port_metrics_are_the_operators(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"max_tenant_labels": 0})) as served:
        tenant = await served.tenant()
        await served.post(CHAT, ASKED)
        assert await statuses(served.url, *OPEN, "/metrics") == [200, 200, 200, 401]
        assert await statuses(served.url, "/metrics", headers={"authorization": f"Bearer {tenant}"}) == [401]
        assert await statuses(served.url, *OPERATORS, headers=OPERATOR) == [200] * len(OPERATORS)
        text = await served.metrics()

    assert "fairlane_gateway_tokens_total" in text
    assert "acme" not in text


@pytest.mark.parametrize(
    ("prefix", "remedy"),
    [("", "FAIRLANE_PORT or --port"), ("metrics_", "FAIRLANE_METRICS_PORT"), ("admin_", "FAIRLANE_ADMIN_PORT")],
)
async def test_a_port_in_use_is_refused_with_what_to_do(prefix: str, remedy: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"port": 0, f"{prefix}port": other.getsockname()[1]}
        with pytest.raises(
            PortRefused, match=f"^setting {prefix}host or {prefix}port: .*: choose another with {remedy}$"
        ):
            await check_ports(SharedSettings(**ports))


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_each_port_has_what_it_is_for_and_nothing_else(valkey_url: str, processes: str) -> None:
    metrics_port, admin_port = free_port(), free_port()
    given = {
        "FAIRLANE_METRICS_PORT": str(metrics_port),
        "FAIRLANE_ADMIN_PORT": str(admin_port),
        "FAIRLANE_GATEWAY__PROCESSES": processes,
    }
    metrics, admin = f"http://127.0.0.1:{metrics_port}", f"http://127.0.0.1:{admin_port}"
    async with serving(settings(valkey_url)), process(valkey_url, **given) as (started, tenants):
        assert await statuses(metrics, *OPEN, "/metrics") == [200] * 4
        assert set(await statuses(metrics, *OPERATORS, "/v1/models", headers=OPERATOR)) == {404}
        assert await statuses(admin, *OPEN, "/metrics", "/admin/v1/tenants") == [200, 200, 200, 401, 401]
        assert await statuses(admin, *OPERATORS, "/metrics", headers=OPERATOR) == [200] * 4
        assert await statuses(admin, "/v1/models") == [404]
        assert await statuses(tenants, *OPEN, "/metrics", "/v1/models") == [200, 200, 200, 401, 401]
        assert await statuses(tenants, *OPERATORS, headers=OPERATOR) == [404] * 3
        assert await statuses(tenants, "/metrics", headers=OPERATOR) == [200]

        started.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.wait, WAIT_S) == 0


@pytest.mark.parametrize("name", ["METRICS", "ADMIN"])
def test_a_port_that_is_taken_is_named_in_one_line(valkey_url: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environ = {
            **{each: value for each, value in os.environ.items() if not each.startswith("FAIRLANE_")},
            "FAIRLANE_REDIS_URL": valkey_url,
            "FAIRLANE_PORT": str(free_port()),
            f"FAIRLANE_{name}_PORT": str(taken.getsockname()[1]),
        }
        ended = subprocess.run(
            [sys.executable, "-m", "fairlane.gateway"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"gateway: setting {name.lower()}_host or {name.lower()}_port: ")
    assert len(ended.stderr.splitlines()) == 1
