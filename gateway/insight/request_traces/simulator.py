"""Simulations for operators: one at a time on this gateway, each in a child process with bounded time and memory."""

import asyncio
import logging
import sys
from contextlib import suppress
from typing import Any

import msgspec

from fairlane.common.child_processes import die_with_parent
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.insight.request_traces.simulate_process import MOST_CPU_S, SimulationTask

WALL_S = 240.0
RETRY_S = 10.0

log = logging.getLogger(__name__)


class Simulator:
    """Runs one task at a time."""

    def __init__(self) -> None:
        self._is_busy = False

    async def run(self, task: SimulationTask) -> dict[str, Any]:
        """Return the result of `simulate_process`.

        Raise ApiError `overloaded` while another runs, `invalid_request_error` or `request_exceeds_limit`."""
        if self._is_busy:
            raise ApiError("Another simulation runs on this gateway.", "overloaded", retry_after_s=RETRY_S)
        self._is_busy = True
        try:
            answer = await self._answer(msgspec.json.encode(task))
        finally:
            self._is_busy = False
        if "fault" in answer:
            raise invalid("trace", f"The trace cannot be simulated: {answer['fault']}.")
        return answer

    async def _answer(self, task: bytes) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fairlane.gateway.insight.request_traces.simulate_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # so that signals to the gateway's group do not reach the child
            preexec_fn=die_with_parent(),
        )
        said = b""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(WALL_S):
                    said, _ = await process.communicate(task)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode or not said:
            log.warning("simulation failed: status=%s", process.returncode)
            message = f"It takes more than {MOST_CPU_S} s of CPU time or too much memory: simulate a part of the trace."
            raise ApiError(message, "request_exceeds_limit", "trace")
        answer: dict[str, Any] = msgspec.json.decode(said)
        return answer
