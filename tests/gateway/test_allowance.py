"""When a running request asks its budget for more, where the turns of the loop decide."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.allowance import Allowance
from gateway.dispatch import Dispatcher
from gateway.flight import Booking, Flight, Mailbox
from quotas.store import Extension, Need, QuotaStore, Reservation
from tests.quotas.house import ask

pytestmark = pytest.mark.anyio


@dataclass
class Budget:
    """Answers one question after the other, as it is told."""

    asked: "asyncio.Queue[tuple[Need, asyncio.Future[Extension]]]" = field(default_factory=asyncio.Queue)

    async def extend(self, _: str, __: str, need: Need) -> Extension:
        answer = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((need, answer))
        return cast(Extension, await answer)


class Workers:
    """Take every grant."""

    def queue(self, _: str) -> "Workers":
        return self

    async def grant(self, *_: Any) -> None:
        pass


async def test_who_is_used_up_as_the_budget_has_just_answered_asks_again() -> None:
    budget, booking = Budget(), Booking(ask("f1", max_output_tokens=100, quantum=8))
    flight = Flight("f1", booking, 1, "queue", Mailbox(), granted=8)
    booking.flights = [flight]
    booking.reservation = Reservation(
        flight_id="f1", tenant="acme", granted_tokens=8, most_tokens=100, statuses=(), shadowed=()
    )
    allowance = Allowance(cast(QuotaStore, budget), cast(Dispatcher, Workers()), booking, 8)
    (choice,) = flight.choices

    def speak(tokens: int) -> None:
        choice.spoken = tokens
        allowance.spoken(choice)

    async with asyncio.timeout(10):
        speak(4)
        _, answer = await budget.asked.get()
        answer.set_result(Extension(granted_tokens=16))
        asyncio.get_running_loop().call_soon(speak, 16)  # right after the asking task has seen that all is well
        need, _ = await budget.asked.get()

    assert (need.published, need.stuck) == (16, True)
    allowance.close()
