"""`python -m gateway` as a process: how it starts, ends, and what it leaves when it is killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.gateway.served import ADMIN_KEY, ASKED, CHAT, WAIT_S, serving, settings, settled, until
from tests.support.gateway.spawned import LEASE_S, process
from tests.support.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FEW_FILES = 1_000


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        (["-m", "fairlane.gateway"], "1"),
        (["-m", "fairlane.gateway"], "2"),
        (["-c", "from fairlane.cli.main import main; main()", "serve"], "1"),
    ],
)
def test_a_port_that_is_taken_ends_the_start_with_one_line(tmp_path: Path, command: list[str], processes: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        environ = {**os.environ, "FAIRLANE_PORT": str(port), "FAIRLANE_DATA_DIR": str(tmp_path)}
        environ |= {"FAIRLANE_REDIS_URL": "unix:///nowhere", "FAIRLANE_ADMIN_KEY": ADMIN_KEY}
        environ["FAIRLANE_GATEWAY__PROCESSES"] = processes
        ended = subprocess.run(
            [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert "port" in line
    assert "already in use" in line


def test_a_limit_of_open_files_that_is_too_small_is_told_and_kept_within() -> None:
    environ = {**os.environ, "FAIRLANE_PORT": str(free_port()), "FAIRLANE_REDIS_URL": "unix:///nowhere"}
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (900, {FEW_FILES})); "
    command = [sys.executable, "-c", limited + "from fairlane.gateway.__main__ import main; main()"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        told = next((line for line in started.stderr if "files may be open" in line), "")
        started.kill()

    assert f"only {FEW_FILES} files may be open here, so gateway.max_connections is 488 instead of 10000: " in told


async def test_sigterm_finishes_the_stream_and_ends_with_status_0(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as served, process(valkey_url) as (started, base):
        key = await served.tenant()
        served.worker.limit = 2
        async with httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client:
            headers = {"authorization": f"Bearer {key}"}
            async with client.stream("POST", CHAT, json={**ASKED, "stream": True}, headers=headers) as got:
                lines = got.aiter_lines()
                await anext(lines)

                started.send_signal(signal.SIGTERM)
                served.worker.limit = None
                rest = [line async for line in lines if line]

        assert rest[-1] == "data: [DONE]"
        assert await asyncio.to_thread(started.wait, WAIT_S) == 0


async def test_a_port_that_is_taken_is_told_by_the_status(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as served:
        port = served.url.rsplit(":", 1)[1]
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "fairlane.gateway"],
            env={**os.environ, "FAIRLANE_REDIS_URL": valkey_url, "FAIRLANE_PORT": port},
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )

    assert ended.returncode != 0
    assert b"address already in use" in ended.stderr


async def test_a_killed_gateway_leaves_nothing_reserved_and_charges_what_was_published(valkey_url: str) -> None:
    chosen = settings(valkey_url, section={"reservation_lease_s": LEASE_S}, lease_s=LEASE_S)
    async with serving(chosen) as served, process(valkey_url) as (started, base):
        key = await served.tenant(limits={"tokens_per_day": 100_000})
        served.worker.limit = 3
        asking = [asyncio.create_task(ask(base, key)) for _ in range(3)]
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [3, 3, 3])

        started.kill()
        statuses = await asyncio.gather(*asking)
        await settled(served)

        assert statuses == [0, 0, 0]
        assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 3)] * 3
        used = sum(prompt + output for _, prompt, output in await served.ledger())
        assert (await served.limits())["tokens_per_day"].used == used


async def ask(base: str, key: str) -> int:
    """The status of one request; 0 where the connection broke."""
    async with httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client:
        try:
            return (await client.post(CHAT, json=ASKED, headers={"authorization": f"Bearer {key}"})).status_code
        except httpx.TransportError:
            return 0
