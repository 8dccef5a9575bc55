"""Checks whether a server is up, and still matches its worker's model card, while it is idle and after an error."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine

from fairlane.worker.errors import EngineError
from fairlane.worker.remote.api import Api, EngineUnavailable, Facts

log = logging.getLogger(__name__)

# Interval of availability checks while the server is down.
LOOK_S = 0.5
# Interval of checks of the server's facts, while it is idle.
WATCH_S = 1.0
# Time without the server after which its jobs are returned to the queue.
GONE_S = 2.0


class ServerMonitor:
    """The state of one server. Used on the streams' event loop, except for `is_up`."""

    def __init__(
        self,
        api: Api,
        facts: Facts | None,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        *,
        stall_s: float,
    ) -> None:
        """`facts` are those that the server must keep; None disables their check. `spawn` starts a task."""
        self._api = api
        self._facts = facts
        self._spawn = spawn
        self._stall_s = stall_s
        self.is_up = True
        # Arrival of the last tokens of any stream.
        self.last_piece_s = 0.0
        self.on_presence: Callable[[bool], object] = lambda _: None
        self.on_change: Callable[[str], object] = lambda _: None
        # The last logged reason why the server has changed.
        self._logged_change = ""
        self._checking: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._facts is not None:
            self._spawn(self._watch_quiet())

    def check(self, *, is_stalled: bool = False) -> None:
        self.is_up = False
        if self._checking is None or self._checking.done():
            self._checking = self._spawn(self._check_until_up(is_stalled=is_stalled))

    async def _check_until_up(self, *, is_stalled: bool) -> None:
        since_s, is_reported = time.monotonic(), is_stalled
        if is_stalled:  # regardless of its health check, its jobs first move to other workers
            log.warning("the engine has stalled")
            self.on_presence(False)
            await asyncio.sleep(self._stall_s)
        while not await self._is_unchanged():
            if not is_reported and time.monotonic() - since_s >= GONE_S:
                log.warning("the engine is unreachable")
                is_reported = True
                self.on_presence(False)
            await asyncio.sleep(LOOK_S)
        self.is_up = True
        if is_reported:
            log.info("the engine is reachable again")
            self.on_presence(True)

    async def _watch_quiet(self) -> None:
        # Check an idle server, because a restart while no request is open breaks no stream.
        while True:
            await asyncio.sleep(WATCH_S)
            is_quiet = time.monotonic() - self.last_piece_s >= WATCH_S
            if self.is_up and is_quiet and not await self._is_unchanged():
                self.check()

    async def _is_unchanged(self) -> bool:
        """Return whether it accepts requests and matches its card. Never returns if it was replaced."""
        try:
            if not await self._api.is_up():
                return False
            change = "" if self._facts is None else self._facts.change(await self._api.facts())
        except EngineUnavailable:
            return False
        except EngineError as error:  # its facts may be unreadable until its next restart
            self._log_change(str(error))
            return False
        except Exception as error:  # noqa: BLE001 - the monitor must survive, to notice the server's return
            self._log_change(f"the check failed: {type(error).__name__}")
            return False
        if change:
            self.is_up = False
            self._log_change(change)
            self.on_change(change)
            await asyncio.Event().wait()
        self._logged_change = ""
        return True

    def _log_change(self, why: str) -> None:
        if why != self._logged_change:
            log.error("the engine is not what it was: %s", why)
            self._logged_change = why
