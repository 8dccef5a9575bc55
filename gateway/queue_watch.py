"""How full the queues are, and what gateways have let in, at a cost that does not grow as gateways times models.

The elected gateway asks each queue and shows all answers in one place, where the others read them together. What a
gateway has let into a queue it reports with each round while there is something to report. Of the other queues it
listens to IDLE_PER_ROUND, in turn: a request that comes to a queue which this gateway left idle meets sums of others
that are up to (idle queues / IDLE_PER_ROUND) rounds old, for one round.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from fairlane.gateway.requests.admission import AllOpenRequests
from fairlane.scheduler.admission.open_requests import decode_reports, encode_report
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.registry import AllDepths
from fairlane.scheduler.queue.types import LaneDepth, ReportExchange

IDLE_PER_ROUND = 4


class Queue(Protocol):
    """What is asked of a queue; `scheduler.queue.redis_queue.RedisQueue` is one."""

    async def depths(self) -> Mapping[LaneName, LaneDepth]:
        """How full each lane is."""

    async def exchange_reports(
        self, gateway_id: str, said: bytes, refused_us: Mapping[LaneName, int]
    ) -> ReportExchange:
        """Tell the other gateways what this one has let in, and hear what they said last."""


class DepthsBoard(Protocol):
    """Where the elected gateway shows the depths; `scheduler.queue.registry.RedisRegistry` is one."""

    async def depths(self) -> AllDepths:
        """What was shown last; empty where that is too long ago."""

    async def show_depths(self, depths: AllDepths) -> None:
        """Replace what is shown."""


class QueueWatch:
    """One gateway's view of all queues. Every call may raise what the store raises."""

    def __init__(
        self,
        gateway_id: str,
        queue: Callable[[str], Queue],
        board: DepthsBoard,
        open_requests: AllOpenRequests,
        *,
        is_elected: Callable[[], bool],
    ) -> None:
        self._gateway_id = gateway_id
        self._queue = queue
        self._board = board
        self._open_requests = open_requests
        self._is_elected = is_elected
        self._reported: set[str] = set()
        """Queues of which the others have a report of ours."""
        self._next = 0

    async def look(self, names: Collection[str]) -> AllDepths:
        """One round over these queues: their depths, and an exchange of reports with the other gateways."""
        is_elected = self._is_elected()
        shown = {} if is_elected else await self._board.depths()
        found = {name: shown[name] if name in shown else await self._queue(name).depths() for name in names}
        if is_elected:
            await self._board.show_depths(found)
        for name in self._due(sorted(names)):
            await self._exchange(name)
        return found

    def _due(self, names: list[str]) -> list[str]:
        """Queues whose reports are exchanged in this round."""
        now_ms = self._open_requests.now_ms
        busy = [name for name in names if name in self._reported or self._open_requests.at(name).has_news(now_ms)]
        idle = [name for name in names if name not in busy]
        turn = [idle[(self._next + step) % len(idle)] for step in range(min(IDLE_PER_ROUND, len(idle)))]
        self._next += IDLE_PER_ROUND
        return busy + turn

    async def _exchange(self, name: str) -> None:
        door, now_ms = self._open_requests.at(name), self._open_requests.now_ms
        has_news = door.has_news(now_ms)
        said = encode_report(door.report(now_ms)) if has_news else b""
        heard = await self._queue(name).exchange_reports(self._gateway_id, said, door.refused_us())
        door.hear(decode_reports(heard.reports), heard.asked, now_ms)
        if has_news:
            self._reported.add(name)
        else:
            self._reported.discard(name)
