"""Depths of the queues and reports of open requests, shared at a cost that does not grow with gateways times models.

The elected gateway publishes every queue's depths in one place. For one round, requests to a queue that was idle at
this gateway may use reports that are up to (idle queues / IDLE_PER_ROUND) rounds old."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fairlane.gateway.fleet import Depths, together
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import AllDepths, RedisRegistry
from fairlane.scheduler.queue.shards import shard_names

IDLE_PER_ROUND = 4


@dataclass(eq=False)
class QueueWatch:
    """One gateway's view of all queues. Every call may raise store errors."""

    gateway_id: str
    queue: Callable[[str], RedisQueue]
    board: RedisRegistry
    open_requests: AllOpenRequests
    is_elected: Callable[[], bool]
    # Queues for which the other gateways have a report from this one.
    _reported: set[str] = field(default_factory=set, init=False)
    _next: int = field(default=0, init=False)

    async def look(self, names: Collection[str]) -> AllDepths:
        """Run one round over these queues: read their depths and exchange reports with the other gateways."""
        is_elected = self.is_elected()
        shown = {} if is_elected else await self.board.depths()
        found = {name: shown[name] if name in shown else await self._depths(name) for name in names}
        if is_elected:
            await self.board.show_depths(found)
        for name in self._due(sorted(names)):
            await self._exchange(name)
        return found

    async def _depths(self, name: str) -> Depths:
        found = [await self.queue(shard).depths() for shard in shard_names(name)]
        return together(found) if len(found) > 1 else found[0]

    def _due(self, names: list[str]) -> list[str]:
        now_ms = self.open_requests.now_ms
        busy = [name for name in names if name in self._reported or self.open_requests.at(name).needs_report(now_ms)]
        idle = [name for name in names if name not in busy]
        turn = [idle[(self._next + step) % len(idle)] for step in range(min(IDLE_PER_ROUND, len(idle)))]
        self._next += IDLE_PER_ROUND
        return busy + turn

    async def _exchange(self, name: str) -> None:
        requests, now_ms = self.open_requests.at(name), self.open_requests.now_ms
        needs_report = requests.needs_report(now_ms)
        report = requests.report(now_ms) if needs_report else b""
        refused_us = requests.refused_us()
        exchange = await self.queue(name).exchange_reports(self.gateway_id, report, refused_us)
        # The first shard keeps the reports. Refused work would have taken a part of each shard's time.
        others = [
            await self.queue(shard).exchange_reports(self.gateway_id, b"", refused_us)
            for shard in shard_names(name)[1:]
        ]
        asked = _mean([exchange.asked, *(other.asked for other in others)]) if others else exchange.asked
        requests.receive_reports(exchange.reports, asked, now_ms)
        if needs_report:
            self._reported.add(name)
        else:
            self._reported.discard(name)


def _mean(asked: Sequence[Mapping[LaneName, float]]) -> Mapping[LaneName, float]:
    return {lane: sum(each[lane] for each in asked) / len(asked) for lane in asked[0]}
