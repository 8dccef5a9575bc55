"""Media of jobs: fetched from the gateway in parts, shared, measured, and never in the way of an end."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from fairlane.scheduler.links.frames import UNMEASURED, Fetch
from fairlane.scheduler.protocol.media import MeasureMedia, MediaSpan
from fairlane.scheduler.protocol.messages import Job, Outcome
from fairlane.worker.media import items
from fairlane.worker.media.starts import LOST_MEDIA
from tests.support.worker import scripted
from tests.support.worker.outlets import PATIENCE_S, OutletWorker, World, quiet, script
from tests.support.worker.virtual import in_virtual_time

IMAGE, OTHER = b"an image of 21 bytes.", b"another"
Scenario = Callable[[World, OutletWorker], Awaitable[None]]


def digest(item: bytes) -> bytes:
    return hashlib.sha256(item).digest()


def job(job_id: str = "job", *items: bytes, granted_until: int | None = None) -> Job:
    spans = [MediaSpan("image", digest(item), place, 1) for place, item in enumerate(items or (IMAGE,))]
    return msgspec.structs.replace(scripted.job(job_id, max_tokens=4, granted_until=granted_until), media=tuple(spans))


def play(scenario: Scenario, *, holds: tuple[bytes, ...] = (IMAGE, OTHER)) -> World:
    """Run a scenario in virtual time, of a gateway that has these items."""

    async def whole() -> World:
        world = World(2)
        world.gateway.media = {digest(item): item for item in holds}
        try:
            await scenario(world, world.all[0])
        finally:
            await world.aclose()
        return world

    return in_virtual_time(whole())


async def taken(world: World, worker: OutletWorker, *jobs: Job) -> None:
    for each in jobs:
        world.store.put(each)
    await worker.take()
    await quiet()


async def delivered(worker: OutletWorker) -> None:
    for _ in range(3):  # what tasks send when they have what was delivered is delivered too
        worker.link.deliver()
        await quiet()


def fetches(world: World) -> list[int]:
    """Where the parts begin that were asked for."""
    return [message.start for message in world.gateway.addressed if isinstance(message, Fetch)]


def test_a_job_starts_when_its_media_have_arrived() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        assert worker.runs == {}
        await delivered(worker)
        assert worker.engine.media == {digest(IMAGE): IMAGE}
        assert fetches(world) == [*range(0, len(IMAGE), world.gateway.part_bytes)]
        worker.work()
        assert world.gateway.tokens["job", 0] == script(job(), 0)[:1]
        await world.finish()

    play(scenario)


def test_jobs_of_one_item_share_it_until_the_last_of_them_ends() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job("a"), job("b", IMAGE, OTHER, IMAGE))
        await delivered(worker)
        assert len(fetches(world)) == 6 + 2
        await taken(world, worker, job("c"))
        assert worker.started["c"] == 1
        for name in "ac":
            world.store.cancel(name)
        worker.controls()
        worker.turns()
        await delivered(worker)
        assert worker.engine.media.keys() == {digest(IMAGE), digest(OTHER)}
        await world.finish()

    play(scenario)


def test_fetching_goes_on_where_a_lost_link_left_it() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        for _ in range(2):
            worker.link.deliver_to_gateway()
        for _ in range(3):
            worker.link.deliver_to_worker()
            worker.link.deliver_to_gateway()
        known = fetches(world)
        worker.link.cut()
        await quiet()
        await delivered(worker)
        assert fetches(world) == [*known, *range(known[-1], len(IMAGE), world.gateway.part_bytes)]
        assert worker.started["job"] == 1
        await world.finish()

    play(scenario)


@pytest.mark.parametrize("held", [b"", b"an image of 21 bytes!"], ids=["none", "other"])
def test_a_job_whose_media_its_gateway_does_not_hold_fails(held: bytes) -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        world.gateway.media = {digest(IMAGE): held} if held else {}
        await taken(world, worker, job())
        await delivered(worker)
        end = world.gateway.ends["job"]
        assert (end.outcome, end.error, worker.started["job"]) == (Outcome.FAILED, LOST_MEDIA, 0)
        await delivered(worker)
        assert world.store.records["job"].outcome is Outcome.FAILED

    play(scenario)


@pytest.mark.parametrize("by", ["gateway", "store"])
def test_a_job_that_is_cancelled_while_its_media_are_fetched_ends_at_once(by: str) -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        worker.link.deliver_to_gateway()
        worker.link.deliver_to_worker()
        if by == "gateway":
            world.gateway.stop("job")
        else:
            world.store.cancel("job")
            worker.controls()
        await delivered(worker)
        assert (world.gateway.ends["job"].outcome, worker.started["job"]) == (Outcome.CANCELLED, 0)
        await world.finish()

    play(scenario)


def test_a_grant_while_media_are_fetched_is_not_lost() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job(granted_until=1))
        worker.link.deliver_to_gateway()
        worker.link.deliver_to_worker()
        world.gateway.grant("job", 3)
        await delivered(worker)
        assert worker.runs["job"].granted == 3
        await world.finish()

    play(scenario)


def test_a_drain_returns_what_waits_for_media() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        assert worker.outlet.waiting() == ["job"]
        await worker.hand_back()
        await quiet()
        await delivered(worker)
        assert (world.store.records["job"].state, worker.started["job"]) == ("queued", 0)
        await world.finish()

    play(scenario)


def test_a_gateway_out_of_reach_gets_back_what_waits_for_its_media() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        worker.link.switch(is_up=False)
        await asyncio.sleep(PATIENCE_S + 0.1)
        assert world.store.records["job"].state == "queued"
        await world.finish()

    play(scenario)


def test_a_job_that_is_taken_over_fetches_its_media_before_it_goes_on() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        await delivered(worker)
        worker.work(2)
        world.store.expire("w0")
        second = world.all[1]
        await taken(world, second)
        await delivered(second)
        assert second.runs["job"].lease.generated == (tuple(script(job(), 0)[:2]),)
        await world.finish()

    play(scenario)


def test_more_than_a_worker_keeps_waits_for_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MOST_BYTES", len(IMAGE))

    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job("a"))
        await delivered(worker)
        await taken(world, worker, job("b", OTHER))
        await delivered(worker)
        assert (worker.started["a"], worker.started["b"]) == (1, 0)
        await world.finish()

    play(scenario)


def test_a_job_that_waits_with_an_item_of_another_starts_when_that_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MOST_BYTES", len(IMAGE))

    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job("a"))
        await delivered(worker)
        await taken(world, worker, job("b", IMAGE, OTHER))
        await delivered(worker)
        assert worker.started["b"] == 0
        world.gateway.stop("a")
        await delivered(worker)
        worker.turns()
        await delivered(worker)
        await delivered(worker)
        assert worker.started["b"] == 1
        await world.finish()

    play(scenario)


def measure(item: bytes) -> MeasureMedia:
    return MeasureMedia(gateway_id="gateway", gateway_address="tcp://g:1", kind="image", digest=digest(item))


async def measured(world: World, worker: OutletWorker, *items: bytes) -> list[tuple[bytes, int]]:
    for item in items:
        worker.outlet.measure(measure(item))
    await quiet()
    await delivered(worker)
    await delivered(worker)
    return world.gateway.measured


def test_items_are_measured_for_a_gateway_of_which_the_worker_has_no_job() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        worker.engine.unreadable = {OTHER}
        found = await measured(world, worker, IMAGE, OTHER, IMAGE)
        assert sorted(found) == sorted([(digest(IMAGE), len(IMAGE)), (digest(OTHER), 0)])
        assert worker.engine.media == {}

    play(scenario)


@pytest.mark.parametrize("fault", ["gone", "engine"])
def test_what_cannot_be_measured_here_is_measured_elsewhere(fault: str) -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        worker.engine.fails = fault == "engine"
        assert await measured(world, worker, IMAGE) == [(digest(IMAGE), UNMEASURED)] * (fault == "engine")

    play(scenario, holds=() if fault == "gone" else (IMAGE,))


def test_an_item_that_a_job_holds_is_measured_without_another_fetch() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        await taken(world, worker, job())
        await delivered(worker)
        known = fetches(world)
        assert await measured(world, worker, IMAGE) == [(digest(IMAGE), len(IMAGE))]
        assert fetches(world) == known
        await world.finish()

    play(scenario)


def test_what_was_to_be_measured_for_a_gateway_that_left_is_forgotten_in_time() -> None:
    async def scenario(world: World, worker: OutletWorker) -> None:
        assert await measured(world, worker, OTHER) == [(digest(OTHER), len(OTHER))]
        worker.link.switch(is_up=False)
        for number in range(items.MOST_TO_MEASURE):
            worker.outlet.measure(measure(b"%d" % number))
        await asyncio.sleep(items.MEASURE_S + 1)
        for number in range(10):
            worker.outlet.measure(measure(b"new %d" % number))
        worker.link.switch(is_up=True)
        await quiet()
        assert (digest(IMAGE), len(IMAGE)) in await measured(world, worker, IMAGE)

    play(scenario)
