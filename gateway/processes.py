"""Supervision of child processes, including several gateway processes behind one port.

All processes accept from one listening socket, which the supervisor opens. Unlike with SO_REUSEPORT, no waiting
connections are lost with a process that dies or is busy, and a second instance cannot start on the same port."""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlane.common.child_processes import die_with_parent
from fairlane.gateway.config import MEMBER_FLAG, GatewaySettings
from fairlane.gateway.http.ports import Member, Sockets, close

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
HEALTHY_AFTER_S = 60.0
# Exit status of a child that rejects its settings; its last line gives the reason.
BAD_SETTINGS = 2


class ChildRefused(RuntimeError):
    """A child that rejected its settings at its first start."""


@dataclass(slots=True)
class Child:
    """One child process, run as `python -m <module>` and restarted until it is stopped."""

    module: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    stop_timeout_s: float
    name: str = ""
    sockets: tuple[int, ...] = ()
    process: asyncio.subprocess.Process | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or self.module.rpartition(".")[2]

    async def start(self) -> asyncio.subprocess.Process:
        """Start the process in its own session, so that a terminal's Ctrl-C reaches only the supervisor.

        It is killed with its parent: all its state is leased, and the next start must find the port free."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.module,
            *self.arguments,
            env=dict(self.environ),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=self.sockets,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        return self.process

    async def keep_alive(self) -> None:
        """Run the process until `stop`, restarting it with a growing delay while it keeps ending.

        Raises ChildRefused if its first run rejects the settings: a restart would not help."""
        backoff_s = FIRST_BACKOFF_S
        for run in itertools.count():
            started_s = time.monotonic()
            process = await self.start()
            if self._stopping.is_set():  # `stop` was called during the start
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            status = await process.wait()
            if self._stopping.is_set():
                return
            if run == 0 and status == BAD_SETTINGS:
                raise ChildRefused(f"the {self.name} cannot work with its settings: its last line says why")
            if time.monotonic() - started_s > HEALTHY_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            log.warning("%s ended with status %d; restarting it in %.1f s", self.name, status, backoff_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_s)
                return
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)

    async def stop(self) -> None:
        self._stopping.set()
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), self.stop_timeout_s)
        except TimeoutError:
            log.warning("%s did not stop within %.0f s; killing it", self.name, self.stop_timeout_s)
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


async def supervise(rows: Sequence[Sequence[Child]], stop: asyncio.Event) -> None:
    """Keep children alive until SIGINT, SIGTERM, `stop` or a refusal; then stop the rows in order, each row
    concurrently.

    Raises ChildRefused."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    alive = [asyncio.create_task(child.keep_alive()) for row in rows for child in row]
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, *alive], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    for row in rows:
        await asyncio.gather(*(child.stop() for child in row))
    for ended in await asyncio.gather(stopped, *alive, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


async def check_config(module: str, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the error of `python -m <module> --check-config`; empty if the settings are valid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        "--check-config",
        env=dict(environ),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaint = await process.communicate()
    return complaint.decode(errors="replace").strip() if process.returncode else ""


# Time beyond the grace period for settlements and open connections.
STOP_MARGIN_S = 12.0


async def run(settings: GatewaySettings, arguments: Sequence[str], sockets: Sockets) -> int:
    """Run the processes until SIGINT or SIGTERM. Return 0, or 2 if one rejects its settings at the first start."""
    by_port = {name: tuple(found.fileno() for found in each) for name, each in sockets.items()}
    numbers = tuple(number for each in by_port.values() for number in each)
    section = settings.gateway
    with tempfile.TemporaryDirectory(prefix="fairlane-") as fleet_cache:
        members = [Member(index, section.processes, by_port, fleet_cache) for index in range(section.processes)]
        children = [
            Child(
                "fairlane.gateway",
                [*arguments, MEMBER_FLAG, msgspec.json.encode(member).decode()],
                os.environ,
                section.grace_s + STOP_MARGIN_S,
                name=member.name,
                sockets=numbers,
            )
            for member in members
        ]
        log.info("starting %d processes", len(children))
        try:
            await supervise([children], asyncio.Event())
        except ChildRefused as error:
            sys.stderr.write(f"gateway: {error}\n")
            return 2
        finally:
            close(sockets)
    return 0
