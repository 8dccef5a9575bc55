"""Each script of the queue, executed twice because its first reply was lost."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.prefix_affinity import prefix_keys
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS, HANDED_PATIENCE_MS
from fairlane.scheduler.queue.types import GATEWAY_LEASES, KEPT_MS, Progress, QueuePresence
from tests.support.scheduler.queues import LEASE_MS, PLENTY, Clock, TakingQueue, job, progress, room
from tests.support.store.resent import resending

pytestmark = pytest.mark.anyio
GRACE_MS = 30_000
LONG = tuple(range(700))


class Two(NamedTuple):
    """One queue through two clients."""

    twice: TakingQueue
    """Sends each call twice."""
    plain: TakingQueue
    clock: Clock

    async def pass_time(self, ms: int, *gateways: str) -> None:
        """Let time pass while these gateways live and the queue is looked after."""
        for _ in range(ms // 2_000):
            self.clock.advance(2_000)
            for gateway in gateways:
                await self.plain.gateway_alive(gateway)
            await self.plain.reclaim()

    async def leased(self, job_id: str = "a") -> Lease:
        """A job that worker w1 holds."""
        await self.plain.put(job(job_id))
        [lease] = await self.plain.take("w1", room(latency=1))
        return lease


async def put(two: Two) -> None:
    await two.plain.put(job("before", prompt=LONG), prefixes=prefix_keys(job("before", prompt=LONG)))
    await two.plain.take("w1", room(latency=1))
    await two.twice.put(job("a", guaranteed=True, claim_ms=100.0, work_ms=100.0))
    follows = await two.twice.put(job("b", prompt=LONG), prefixes=prefix_keys(job("b", prompt=LONG)))
    assert follows.preferred == "w1"


async def cancel(two: Two) -> None:
    await two.leased()
    await two.plain.put(job("waits"))
    await two.twice.cancel("waits")
    await two.twice.cancel("a")


async def record(two: Two) -> None:
    await two.leased()
    assert await two.twice.record("a") is not None


async def published(two: Two) -> None:
    await two.plain.report("w1", [progress(await two.leased(), 2, token_ids=((5, 6),))])
    assert await two.twice.published("a") is not None


async def keep(two: Two) -> None:
    await two.plain.put(job("a"))
    await two.plain.cancel("a")
    await two.twice.keep({"a": two.clock.ms + 60_000})


async def forget(two: Two) -> None:
    await two.plain.put(job("a"))
    await two.plain.cancel("a")
    await two.twice.forget(["a"])
    assert await two.plain.record("a") is None


async def erase(two: Two) -> None:
    """Of another tenant nothing goes, nor of what arrived after the deletion."""
    for name, tenant in (("a", "acme"), ("b", "other")):
        await two.plain.put(job(name, tenant=tenant))
        await two.plain.cancel(name)
    await two.plain.erase("acme", two.clock.ms - 1)
    assert await two.plain.record("a") is not None
    await two.twice.erase("acme", two.clock.ms)
    assert await two.plain.record("a") is None
    assert await two.plain.record("b") is not None


async def trim_streams(two: Two) -> None:
    """Of a worker, of a gateway, and of a dead gateway, whose events nothing else trims."""
    for gateway in ("gw", "dead"):
        await two.plain.gateway_alive(gateway)
        await two.plain.put(job(f"of-{gateway}", gateway_id=gateway))
        await two.plain.cancel(f"of-{gateway}")
    await two.pass_time(2 * GATEWAY_LEASES * LEASE_MS, "gw")
    await two.plain.turn("w1", room(latency=1))
    await two.plain.put(job("given"))

    async def left() -> list[int]:
        events = [(await two.plain.read_events(gateway, "0-0", 0))[1] for gateway in ("gw", "dead")]
        return [*map(len, events), len((await two.plain.read_news("w1", "0-0", 0)).leases)]

    await two.plain.erase("acme", 0, streams_until_ms=1)
    assert await left() == [1, 1, 1]
    await two.twice.erase("acme", 0, streams_until_ms=10**15)
    assert await left() == [0, 0, 0]


async def position(two: Two) -> None:
    await two.plain.put(job("a"))
    assert await two.twice.position("a") == 1


async def waiting(two: Two) -> None:
    await two.plain.put(job("a"))
    assert await two.twice.waiting("acme") == 1


async def depths(two: Two) -> None:
    await two.plain.put(job("a"))
    await two.twice.depths()


async def gateway_alive(two: Two) -> None:
    await two.twice.gateway_alive("gw")


async def exchange_reports(two: Two) -> None:
    """Work that it refused is counted once."""
    refused = {LaneName.LATENCY: 1_000_000}
    once = (await two.twice.exchange_reports("gw", b"report", refused)).asked[LaneName.LATENCY]
    await two.plain.exchange_reports("gw", b"report", refused)
    both = (await two.plain.exchange_reports("gw", b"report", {})).asked[LaneName.LATENCY]
    assert both == pytest.approx(2 * once, rel=0.01)


async def renew(two: Two) -> None:
    """The worker learns that its jobs were taken away, once."""
    await two.leased()
    await two.pass_time(2 * LEASE_MS)
    assert not await two.twice.renew("w1")
    assert await two.twice.renew("w1")


async def release(two: Two) -> None:
    await two.leased()
    await two.twice.release("w1", ["a"])
    assert await two.plain.position("a") == 1


async def orphan(two: Two) -> None:
    await two.plain.renew("w1")
    await two.pass_time(2 * LEASE_MS)
    two.clock.advance(KEPT_MS)
    await two.pass_time(2 * LEASE_MS)
    assert await two.twice.orphan(GRACE_MS) is QueuePresence.REMOVED


async def withdraw(two: Two) -> None:
    await two.plain.renew("w1")
    await two.plain.put(job("a"))
    await two.pass_time(GRACE_MS, "gw")
    assert await two.twice.withdraw("a", GRACE_MS)
    assert await two.plain.record("a") is None


async def report(two: Two) -> None:
    """The refused job is named again."""
    step = [progress(await two.leased(), 2, cost=9.0, ends=Outcome.FINISHED, token_ids=((5, 6),)), Progress("ghost", 1)]
    assert await two.twice.report("w1", step) == {"ghost"}


async def turn(two: Two) -> None:
    """The first call's leases arrive, nothing is leased beyond them, and its report counts once."""
    held = await two.leased("held")
    await two.plain.put(job("a"))
    await two.plain.put(job("b"))
    step = [progress(held, 2, cost=9.0, ends=Outcome.FINISHED), Progress("ghost", 1)]
    first = await two.twice.turn("w1", room(latency=1), step, called=["b"])
    assert ([lease.job.job_id for lease in first.leases], first.refused) == (["a"], {"ghost"})
    assert await two.plain.position("b") == 1
    assert [lease.job.job_id for lease in (await two.twice.turn("w1", PLENTY)).leases] == ["b"]
    await two.twice.put(job("given"))
    news = await two.plain.read_news("w1", "0-0", 0)
    await two.twice.turn("w1", room(latency=1), last_id=news.last_id)
    assert (await two.plain.read_news("w1", "0-0", 0)).leases == []


async def reclaim(two: Two) -> None:
    await two.leased()
    await two.pass_time(LEASE_MS - 2_000)
    two.clock.advance(2_000)
    await two.twice.reclaim()
    assert await two.plain.position("a") == 1


async def retire(two: Two) -> None:
    await two.plain.turn("w1", PLENTY)
    await two.twice.retire("w1")
    assert (await two.plain.put(job("a"))).called == ""


async def rouse(two: Two) -> None:
    """A job that was not started goes to another worker, and so does one that waits."""
    await two.plain.turn("w1", PLENTY)
    await two.plain.put(job("a"))
    await two.plain.turn("w2", PLENTY)
    two.clock.advance(HANDED_PATIENCE_MS)
    assert await two.twice.rouse(["a"]) == {"a"}
    await two.plain.turn("w1", room())
    two.clock.advance(CALL_PATIENCE_MS)
    assert await two.twice.rouse(["a"]) == set()


CALLS: dict[str, Callable[[Two], Awaitable[None]]] = {
    call.__name__: call
    for call in (
        *(
            put,
            cancel,
            record,
            published,
            keep,
            forget,
            erase,
            trim_streams,
            position,
            waiting,
            depths,
            gateway_alive,
        ),
        *(exchange_reports, renew, release, orphan, withdraw, report, turn, reclaim, retire, rouse),
    )
}
COUNT_THEIR_OWN_WORK = ("reclaim", "erase")
"""Scripts whose replies differ: how many jobs this very call took back or dropped; no caller acts on it."""


def test_every_script_is_resent_here() -> None:
    queue = RedisQueue(None, "model@1", DEFAULT_LANES)  # type: ignore[arg-type]
    assert queue._library.scripts.keys() == CALLS.keys()


@pytest.mark.parametrize("script", CALLS)
async def test_a_call_whose_reply_was_lost_is_answered_alike_and_counts_once(
    script: str, valkey: EmbeddedStore
) -> None:
    clock = Clock()
    scripts = RedisQueue(None, "model@1", DEFAULT_LANES, lease_ms=LEASE_MS, clock=clock)._library.scripts  # type: ignore[arg-type]
    async with resending(valkey.url, scripts) as (resender, client):
        twice, plain = (
            TakingQueue(each, "model@1", DEFAULT_LANES, lease_ms=LEASE_MS, clock=clock) for each in (resender, client)
        )

        await CALLS[script](Two(twice, plain, clock))

        resender.check(script, other_replies=COUNT_THEIR_OWN_WORK)
