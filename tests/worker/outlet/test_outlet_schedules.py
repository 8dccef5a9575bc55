"""Any interleaving of cuts, steps, grants, takeovers, drains, cancels and absences of the store: the gateway gets the
tokens of the undisturbed run, once and in order, and one end, and nothing is left behind."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlane.scheduler.protocol.media import MediaSpan
from fairlane.scheduler.protocol.messages import Sampling
from tests.support.worker import scripted
from tests.support.worker.outlets import PATIENCE_S, OutletWorker, Record, World, quiet
from tests.support.worker.virtual import VirtualLoop

JOBS = ("one", "two")
# The job with an image, which comes in two parts.
SEEING, IMAGE = "two", b"image"
workers, jobs = st.integers(0, 1), st.sampled_from(JOBS)
tokens = st.integers(1, 9)


class OutletMachine(RuleBasedStateMachine):
    """Two workers, one gateway with two jobs, one store."""

    world: World
    saved: dict[str, Record]

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            await work
            await quiet()

        self.loop.run_until_complete(whole())

    def do(self, act: Callable[[], None]) -> None:
        async def acted() -> None:
            act()

        self.run(acted())

    def worker(self, number: int) -> OutletWorker:
        return self.world.all[number]

    @initialize(
        most=st.lists(tokens, min_size=2, max_size=2), granted=tokens, n=st.integers(1, 2), logprobs=st.booleans()
    )
    def begin(self, most: list[int], granted: int, n: int, logprobs: bool) -> None:
        async def begun() -> None:
            self.world = World()
            digest = hashlib.sha256(IMAGE).digest()
            self.world.gateway.media[digest] = IMAGE
            for job_id, each in zip(JOBS, most, strict=True):
                plain = scripted.job(job_id, max_tokens=each, n=n, granted_until=min(granted, each))
                sampling = Sampling(logprobs=0 if logprobs else None)
                media = (MediaSpan("image", digest, 0, 1),) if job_id == SEEING else ()
                self.world.store.put(msgspec.structs.replace(plain, sampling=sampling, prompt_print="p", media=media))
            self.saved = self.world.store.saved()
            await self.worker(0).take()

        self.run(begun())

    # What workers do.

    @rule(number=workers)
    def step(self, number: int) -> None:
        self.worker(number).step()

    @rule(number=workers)
    def turn(self, number: int) -> None:
        self.do(self.worker(number).turn)

    @rule(number=workers)
    def work(self, number: int) -> None:
        self.do(self.worker(number).work)

    @rule(number=workers)
    def take(self, number: int) -> None:
        if not self.world.store.away:
            self.world.store.loses_answers = 0
            self.run(self.worker(number).take())

    @rule(number=workers)
    def hand_back(self, number: int) -> None:
        self.run(self.worker(number).hand_back())

    # What happens to links.

    @rule(number=workers, to_worker=st.booleans())
    def deliver(self, number: int, to_worker: bool) -> None:
        link = self.worker(number)._link
        if link is not None:
            self.do(link.deliver_to_worker if to_worker else link.deliver_to_gateway)

    @rule(number=workers)
    def cut(self, number: int) -> None:
        link = self.worker(number)._link
        if link is not None:
            self.do(link.cut)

    @rule(number=workers)
    def switch(self, number: int) -> None:
        worker = self.worker(number)
        worker.is_up = not worker.is_up
        link = worker._link
        if link is not None:
            self.do(lambda: link.switch(is_up=worker.is_up))

    @rule()
    def wait(self) -> None:
        self.run(asyncio.sleep(PATIENCE_S + 0.1))

    # What the gateway does.

    @rule(job_id=jobs, granted=tokens)
    def grant(self, job_id: str, granted: int) -> None:
        live = self.world.gateway.jobs[job_id]
        self.do(lambda: self.world.gateway.grant(job_id, max(granted, live.granted)))

    @precondition(lambda self: any(live.stream is not None for live in self.world.gateway.jobs.values()))
    @rule()
    def stop(self) -> None:
        job_id = next(job_id for job_id, live in self.world.gateway.jobs.items() if live.stream is not None)
        self.do(lambda: self.world.gateway.stop(job_id))

    # What the store does.

    @rule(number=workers)
    def take_over(self, number: int) -> None:
        """The other's lease expires, or the worker's own."""
        self.world.store.expire("w0")
        self.take(number)

    @rule(number=workers)
    def renew(self, number: int) -> None:
        self.do(lambda: self.world.store.renew(f"w{number}", self.worker(number).held.ids()))

    @rule(job_id=jobs, number=workers)
    def cancel(self, job_id: str, number: int) -> None:
        self.do(lambda: self.world.store.cancel(job_id))
        self.do(self.worker(number).controls)

    @rule(away=st.booleans(), loses=st.integers(0, 2))
    def fail(self, away: bool, loses: int) -> None:
        self.world.store.away, self.world.store.loses_answers = away, loses

    @rule()
    def save(self) -> None:
        self.saved = self.world.store.saved()

    @rule(number=workers)
    def forget(self, number: int) -> None:
        """The store loses its last writes, and a worker asks it for jobs."""
        self.do(lambda: self.world.store.forget(self.saved))
        self.take(number)

    @invariant()
    def every_token_is_the_next_of_the_undisturbed_run(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        async def finished() -> None:
            try:
                await self.world.finish()
            finally:
                await self.world.aclose()

        if hasattr(self, "world"):
            self.run(finished())
        self.loop.close()


OutletMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
TestOutletMachine = OutletMachine.TestCase
