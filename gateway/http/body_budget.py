"""How many bytes of request bodies this process holds at a time: of all tenants together, and of each.

A body is held from its first byte until it has become prompts or was refused. Before its sender is known it counts what
has come of it; from then on what it declares, so that nobody fills a budget with bodies that never end.

How large a body of a route can be that is of any use: what the longest context holds, and what stands around it.

Memory that large bodies took goes back to the system: glibc's allocator keeps what it was given, unless it is told.

Large blocks are mapped each for itself, whatever was freed before, and go back when they are freed. What small blocks
leave is given back now and then, in a thread: that takes some milliseconds, in which no other thread needs to wait.
"""

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fairlane.gateway.errors import ApiError, body_budget_full, overloaded_memory
from fairlane.gateway.http.intake import Intake
from fairlane.gateway.http.thread_turns import ThreadTurns

STATE = "body"
"""Where the `state` of a scope has its `BodyHold`."""
SMALL_BYTES = 64 * 1024
"""A body of this size may use the last part of the budget, so that few large bodies do not shut out all others."""
_FOR_SMALL = 8
"""Which part of it that is."""


class BodyBudget:
    """What is held, and what may be. For one event loop."""

    def __init__(
        self, *, most_bytes: int, most_tenant_bytes: int, freed: Callable[[int], None] = lambda _: None
    ) -> None:
        self.freed = freed
        """Told how many bytes were given back: here of bodies, of connections by those who hold them."""
        self.most_bytes, self.most_tenant_bytes = int(most_bytes), int(most_tenant_bytes)  # an answer tells them
        self.held_bytes = 0
        self.intake = Intake()
        self._tenants: dict[str, int] = {}

    @property
    def most_large_bytes(self) -> int:
        """What bodies may hold that are not small."""
        return self.most_bytes - self.most_bytes // _FOR_SMALL

    def of_tenant(self, tenant: str) -> int:
        """Bytes that are held for a tenant."""
        return self._tenants.get(tenant, 0)

    def refusal(self, tenant: str | None, held_bytes: int, more: int) -> ApiError | None:
        """Why a body that holds so much may not hold more, if so."""
        if tenant is not None and self.of_tenant(tenant) + more > self.most_tenant_bytes:
            return body_budget_full(self.most_tenant_bytes, self.of_tenant(tenant), more)
        most_bytes = self.most_bytes if held_bytes + more <= SMALL_BYTES else self.most_large_bytes
        return overloaded_memory() if self.held_bytes + more > most_bytes else None

    def give_back(self, tenant: str | None, count: int) -> None:
        """Hold less: a body is gone."""
        self.add(tenant, -count)
        self.freed(count)

    def add(self, tenant: str | None, count: int) -> None:
        """Hold more, or less where `count` is negative."""
        self.held_bytes += count
        if tenant is not None:
            held = self._tenants[tenant] = self._tenants.get(tenant, 0) + count
            if not held:
                del self._tenants[tenant]


class BodyHold:
    """What one body takes of the budget."""

    __slots__ = ("_budget", "_come_bytes", "_is_over", "_tenant", "held_bytes", "refusal")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._come_bytes = 0
        self._is_over = False
        self._tenant: str | None = None
        self.held_bytes = 0
        self.refusal: ApiError | None = None
        """Why nothing more of it is taken in."""

    def takes(self, count: int) -> bool:
        """Whether so many bytes that have come may be kept; the reason against it is `refusal`."""
        if self._is_over or self.refusal is not None:
            return False
        self._come_bytes += count
        more = self._come_bytes - self.held_bytes
        return more <= 0 or self._grow(more)

    def claim(self, tenant: str, declared_bytes: int) -> None:
        """The body is a tenant's, and will come to so many bytes; 0 where it does not say.

        Raises ApiError `concurrency_limit_exceeded` over the tenant's budget, `overloaded_memory` over the process's.
        """
        if self._tenant is None and self.refusal is None and not self._is_over:
            self._budget.add(None, -self.held_bytes)  # anew, as the tenant's
            self._tenant, self.held_bytes = tenant, 0
            self._grow(max(self._come_bytes, declared_bytes))
        self.check()

    def pass_on(self, count: int) -> None:
        """So many bytes that have come were handed on, and are held no more."""
        self._come_bytes -= count
        less = min(count, self.held_bytes)
        self.held_bytes -= less
        self._budget.add(self._tenant, -less)

    async def turn(self) -> None:
        """Return when the body's next part may be taken in."""
        await self._budget.intake.turn()

    def check(self) -> None:
        """Raise the refusal, if there is one; once, after which the body is over."""
        if self.refusal is not None:
            self._is_over = True
            try:
                raise self.refusal
            finally:
                self.refusal = None  # it has this frame in its traceback, and with it the hold and itself

    def release(self) -> None:
        """Give all of it back. What still comes of the body is not taken."""
        self._is_over = True
        if self.held_bytes:
            self._budget.give_back(self._tenant, self.held_bytes)
            self.held_bytes = 0

    def _grow(self, more: int) -> bool:
        self.refusal = self._budget.refusal(self._tenant, self.held_bytes, more)
        if self.refusal is not None:
            return False
        self.held_bytes += more
        self._budget.add(self._tenant, more)
        return True


AROUND_BYTES = 64 * 1024
"""For all that is not prompt."""
HUGE_BODY_BYTES = 256 * 1024
"""Bodies of more bytes have turns of their own, so that no other body waits for one of them."""
T = TypeVar("T")
BYTES_PER_TOKEN = 16
"""Of JSON, escapes included: more than texts come to, and than a token's id with its comma."""


@dataclass(frozen=True, slots=True)
class BodyRoom:
    """The limits of one gateway's routes, as the models that it knows have them."""

    cap_bytes: int
    """Of any body, and of all while no model is known."""
    longest_context: Callable[[], int | None]
    """In tokens; None while no model is known."""
    _turns: ThreadTurns = field(default_factory=ThreadTurns)
    _huge_turns: ThreadTurns = field(default_factory=ThreadTurns)

    async def in_thread(self, tenant: str, count: int, work: Callable[[], T]) -> T:
        """Run `work` on so many bytes of a tenant's in a thread: one of large bodies and one of huge ones at a time."""
        turns = self._huge_turns if count > HUGE_BODY_BYTES else self._turns
        return await turns.run(tenant, work)

    def most_bytes(self, prompts: int) -> int:
        """Of a route's body that may hold so many prompts."""
        context = self.longest_context()
        if context is None:
            return self.cap_bytes
        return min(self.cap_bytes, AROUND_BYTES + prompts * context * BYTES_PER_TOKEN)

    def most_token_ids(self, prompts: int) -> int:
        """That such a body may hold."""
        context = self.longest_context()
        return self.cap_bytes if context is None else prompts * context


MAPPED_BYTES = 128 * 1024
"""A block of this size is mapped for itself. glibc begins with the same and raises it to whatever is freed."""
ARENAS = 2
"""Heaps that threads share; glibc takes eight for each core."""
TRIM_AFTER_BYTES = 2**20
"""Of bodies that were given back: so many may be worth a trim."""
REST_S = 1.0
"""From when there were so many to the trim, so that floods are followed by one each second at most."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def keep_little() -> None:
    """Tell the allocator, before anything large was allocated. Does nothing where it is not glibc's."""
    tell = _of_glibc("mallopt")
    if tell is not None:
        tell(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        tell(_M_ARENA_MAX, ARENAS)


class Trimmer:
    """Gives back what is free, some time after bodies were. For one event loop."""

    def __init__(self) -> None:
        self._trim = _of_glibc("malloc_trim")
        self._bytes = 0
        self._pending: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Future[int] | None = None

    def freed(self, count: int) -> None:
        """Bytes of a body are no longer held."""
        self._bytes += count
        if self._bytes >= TRIM_AFTER_BYTES and self._pending is None and self._trim is not None:
            self._pending = asyncio.get_running_loop().call_later(REST_S, self._start)

    def _start(self) -> None:
        self._pending = None
        if self._trim is None or (self._trimming is not None and not self._trimming.done()):
            return
        self._bytes = 0
        with suppress(RuntimeError):  # the loop is closing, and takes no more for its threads
            self._trimming = asyncio.get_running_loop().run_in_executor(None, self._trim, 0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """One of the allocator's own functions. Other threads go on while it runs."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
