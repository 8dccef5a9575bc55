"""A job, and workers that play a scenario with it in virtual time."""

from collections.abc import Awaitable, Callable

import msgspec

from fairlane.scheduler.protocol.messages import Job, Sampling
from tests.support.worker import scripted
from tests.support.worker.outlets import OutletWorker, World, quiet
from tests.support.worker.virtual import in_virtual_time

Scenario = Callable[[World], Awaitable[None]]


def job(
    job_id: str = "job", *, max_tokens: int = 6, n: int = 1, granted_until: int | None = None,
    logprobs: int | None = None, prompt_print: str = "",
) -> Job:  # fmt: skip
    plain = scripted.job(job_id, max_tokens=max_tokens, n=n, granted_until=granted_until)
    return msgspec.structs.replace(plain, sampling=Sampling(logprobs=logprobs), prompt_print=prompt_print)


def play(scenario: Scenario, *, workers: int = 2) -> World:
    """Run a scenario in virtual time."""

    async def whole() -> World:
        world = World(workers)
        try:
            await scenario(world)
        finally:
            await world.aclose()
        return world

    return in_virtual_time(whole())


async def begun(world: World, tokens: int, a_job: Job | None = None) -> OutletWorker:
    """Let the first worker take a job, and its gateway receive so many tokens."""
    worker = world.all[0]
    world.store.put(a_job or job())
    await worker.take()
    await quiet()
    worker.link.deliver()
    worker.work(tokens)
    return worker


async def taken_over(world: World) -> OutletWorker:
    """The first worker's lease expires, and the second takes its job."""
    world.store.expire("w0")
    await world.all[1].take()
    await quiet()
    return world.all[1]
