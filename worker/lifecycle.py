"""The phases of a worker process, and the legal moves between them. Used on one event loop.

Only SERVING takes jobs. ENGINE_AWAY can be drained like SERVING; an undrained worker whose engine is unreachable
returns to it."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import StrEnum

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """The phases of a worker process."""

    SERVING = "serving"
    ENGINE_AWAY = "engine away"
    DRAINING = "draining"
    DRAINED = "drained"
    REPLACED = "replaced"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.SERVING: frozenset({Phase.ENGINE_AWAY, Phase.DRAINING, Phase.REPLACED, Phase.LEAVING, Phase.FAILED}),
    Phase.ENGINE_AWAY: frozenset({Phase.SERVING, Phase.DRAINING, Phase.REPLACED, Phase.LEAVING, Phase.FAILED}),
    Phase.DRAINING: frozenset(
        {Phase.SERVING, Phase.ENGINE_AWAY, Phase.DRAINED, Phase.REPLACED, Phase.LEAVING, Phase.FAILED}
    ),
    Phase.DRAINED: frozenset({Phase.SERVING, Phase.ENGINE_AWAY, Phase.REPLACED, Phase.LEFT, Phase.FAILED}),
    Phase.REPLACED: frozenset({Phase.LEAVING, Phase.FAILED}),
    Phase.LEAVING: frozenset({Phase.LEFT, Phase.FAILED}),
    Phase.LEFT: frozenset({Phase.FAILED}),
    Phase.FAILED: frozenset(),
}
UNDRAINED = frozenset({Phase.SERVING, Phase.ENGINE_AWAY})
ENDING = frozenset({Phase.LEAVING, Phase.LEFT, Phase.FAILED})


class IllegalMove(RuntimeError):
    """The worker's phase does not allow the move."""


class Lifecycle:
    """The phase of one worker process, and the requests and events that change it."""

    def __init__(self, on_pause: Callable[[], None]) -> None:
        """`on_pause` is called when the worker has to stop taking jobs."""
        self.phase = Phase.SERVING
        self.is_engine_up = True
        self._on_pause = on_pause
        self._moved = asyncio.Event()

    def move(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            raise IllegalMove(f"a worker that is {self.phase} cannot become {phase}")
        if self.phase is Phase.SERVING:
            self._on_pause()
        self.phase = phase
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, *phases: Phase) -> None:
        while self.phase not in phases:
            await self._moved.wait()

    def drain(self) -> None:
        """Take no more jobs; finish the running ones, or return them to the queue."""
        if self.phase in UNDRAINED:
            log.info("draining: taking no more jobs")
            self.move(Phase.DRAINING)

    def undrain(self) -> None:
        if self.phase in (Phase.DRAINING, Phase.DRAINED):
            log.info("no longer draining: taking jobs again")
            self.move(Phase.SERVING if self.is_engine_up else Phase.ENGINE_AWAY)

    def stop(self) -> None:
        if self.phase is Phase.DRAINED:
            self.move(Phase.LEFT)
        elif self.phase not in ENDING:
            log.info("draining: taking no more jobs")
            self.move(Phase.LEAVING)

    def handed_back(self) -> None:
        if self.phase in (Phase.DRAINING, Phase.LEAVING):
            log.info("drained")
            self.move(Phase.DRAINED if self.phase is Phase.DRAINING else Phase.LEFT)

    def engine_changed(self, is_up: bool) -> None:
        self.is_engine_up = is_up
        phase = Phase.SERVING if is_up else Phase.ENGINE_AWAY
        if self.phase in UNDRAINED and self.phase is not phase:
            self.move(phase)

    def engine_replaced(self, change: str) -> None:
        """Record that the external server no longer matches our model card. The jobs continue elsewhere."""
        log.error("the engine was replaced: %s", change)
        self.is_engine_up = False
        if self.phase not in ENDING and self.phase is not Phase.REPLACED:
            self.move(Phase.REPLACED)

    def fail(self) -> None:
        if self.phase is not Phase.FAILED:
            self.move(Phase.FAILED)
