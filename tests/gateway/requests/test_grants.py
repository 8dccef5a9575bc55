"""When a running request asks its budget for more, where the turns of the loop decide."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from fairlane.gateway.pipeline.grants import OutputGrants
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.quotas.store import Extension, Need, QuotaStore, Reservation
from tests.support.quotas.house import ask

pytestmark = pytest.mark.anyio


@dataclass
class Budget:
    """Answers one question after the other, as it is told."""

    asked: "asyncio.Queue[tuple[Need, asyncio.Future[Extension]]]" = field(default_factory=asyncio.Queue)

    async def extend(self, _: str, __: str, need: Need) -> Extension:
        answer = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((need, answer))
        return cast(Extension, await answer)


@dataclass
class Holder:
    """The stream of the worker that has the job."""

    granted: list[int] = field(default_factory=list)

    def grant(self, granted_until: int) -> None:
        self.granted.append(granted_until)

    def stop(self) -> None: ...


RESERVED = Reservation(granted_tokens=8, most_tokens=100, statuses=(), shadowed=())


def reserved(n: int = 1) -> tuple[LiveRequest, LiveJob]:
    """A request of a hundred tokens per choice, of which it holds eight."""
    request = LiveRequest(ask("f1", max_output_tokens=100, quantum=8, n=n))
    job = LiveJob("f1", request, 1, "queue", granted=8)
    request.jobs = [job]
    return request, job


async def test_who_is_used_up_as_the_budget_has_just_answered_asks_again() -> None:
    budget, (request, job) = Budget(), reserved()
    grants = OutputGrants(cast(QuotaStore, budget), request, RESERVED, 8)
    (choice,) = job.choices

    def speak(tokens: int) -> None:
        choice.sent = tokens
        grants.sent(choice)

    async with asyncio.timeout(10):
        speak(4)
        _, answer = await budget.asked.get()
        answer.set_result(Extension(granted_tokens=16))
        asyncio.get_running_loop().call_soon(speak, 16)  # right after the asking task has seen that all is well
        need, _ = await budget.asked.get()

    assert (need.published, need.stuck) == (16, True)
    grants.close()


async def test_a_request_ends_where_its_worker_stops() -> None:
    """What an ended choice left belongs to the other one."""
    budget, holder, (request, job) = Budget(), Holder(), reserved(n=2)
    job.stream = holder
    grants = OutputGrants(cast(QuotaStore, budget), request, RESERVED, 8)
    ended, going = job.choices
    ended.published = ended.sent = 2
    ended.finish_reason = "stop"
    going.sent = 8

    cut = asyncio.Event()
    request.read_by(cut.set)

    async with asyncio.timeout(10):
        grants.sent(going)
        _, answer = await budget.asked.get()
        going.sent = 11
        answer.set_result(Extension(granted_tokens=16, limited_by="tokens_per_day", spent=True))
        await cut.wait()

    assert (job.cut_at, holder.granted) == (14, [14])


async def test_a_grant_without_a_holder_waits_for_the_next_one() -> None:
    budget, (request, job) = Budget(), reserved()
    grants = OutputGrants(cast(QuotaStore, budget), request, RESERVED, 8)
    (choice,) = job.choices
    choice.published = choice.sent = 8

    async with asyncio.timeout(10):
        grants.sent(choice)
        _, answer = await budget.asked.get()
        answer.set_result(Extension(granted_tokens=20))
        while job.granted_until != 20:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)

    grants.close()
