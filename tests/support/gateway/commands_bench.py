"""A gateway's admin API on a real port, and the `fairlane` command pointed at it."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from redis.asyncio import Redis
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.gateway.insight.request_traces.files import TraceFolder
from tests.support.gateway.admin_app import ADMIN_KEY, HandFleet, application
from tests.support.quick_stop import QuickStop


@contextmanager
def gateway(store_url: str, traces: TraceFolder | None = None) -> Iterator[tuple[str, HandFleet]]:
    """The admin API served from a thread; its address and its fleet."""
    listening = socket.create_server(("127.0.0.1", 0))  # connections wait in it until the server is up
    fleet = HandFleet()
    servers: list[uvicorn.Server] = []
    ready = threading.Event()

    async def serve() -> None:
        async with Redis.from_url(store_url) as redis:
            config = uvicorn.Config(
                application(redis, fleet, traces=traces), lifespan="off", log_config=None, ws="none"
            )
            servers.append(QuickStop(config))
            ready.set()
            await servers[0].serve(sockets=[listening])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(10)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", fleet
    servers[0].should_exit = True
    thread.join()


@dataclass
class Command:
    """The `fairlane` command, with the environment of an operator."""

    url: str
    fleet: HandFleet
    key: str = ADMIN_KEY

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run it to its end."""
        environ = {"FAIRLANE_URL": self.url, "FAIRLANE_ADMIN_KEY": self.key}
        return CliRunner().invoke(cli.app, arguments, env=environ, input=stdin)

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        """Run it; it must succeed. What it printed on stdout."""
        done = self.run(*arguments, stdin=stdin)
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run it; it must succeed and print JSON."""
        return json.loads(self.ok(*arguments))

    def fails(self, *arguments: str) -> str:
        """Run it; it must fail with one line on stderr and nothing on stdout."""
        done = self.run(*arguments)
        assert done.exit_code == 1, done.output
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        return line
