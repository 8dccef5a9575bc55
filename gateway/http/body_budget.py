"""The bytes of request bodies that this process holds, bounded in total and per tenant.

A body counts from its first byte until it is converted to prompts or rejected. Until the sender is known, its received
bytes count; then its declared length, so that bodies that never end cannot fill the budget."""

import asyncio
import ctypes
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fairlane.gateway.errors import ApiError, body_budget_full, media_too_large, overloaded_memory
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.http.thread_turns import ThreadTurns

# Only bodies up to this size may use the last 1 / _SMALL_SHARE of the budget, so that a few large ones cannot block all
# others.
SMALL_BYTES = 64 * 1024
_SMALL_SHARE = 8


# After a part of this size, the body waits for a turn before its next part is read.
PART_BYTES = 64 * 1024


class Intake:
    """Turns for reading parts of large bodies: one per iteration of the event loop, over all connections.

    Eight parts of 256 KiB take several milliseconds, and another caller's request needs about 20 iterations."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next_round)
            return
        waiting = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _next_round(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # its caller may have disconnected
                waiting.set_result(None)
                waiting.get_loop().call_soon(self._next_round)
                return
        self._is_taken = False


class BodyBudget:
    """The bytes held by bodies, and their limits. For one event loop."""

    def __init__(
        self, *, most_bytes: int, most_tenant_bytes: int, freed: Callable[[int], None] = lambda _: None
    ) -> None:
        self.freed = freed
        # Plain ints: they are encoded in errors.
        self.most_bytes, self.most_tenant_bytes = int(most_bytes), int(most_tenant_bytes)
        self.held_bytes = 0
        self.intake = Intake()
        self._tenants: dict[str, int] = {}

    @property
    def most_large_bytes(self) -> int:
        return self.most_bytes - self.most_bytes // _SMALL_SHARE

    def of_tenant(self, tenant: str) -> int:
        return self._tenants.get(tenant, 0)

    def take(self, tenant: str | None, held_bytes: int, more: int) -> ApiError | None:
        """Hold more bytes of a body that holds `held_bytes`. Without room for them, return the error."""
        held_by_tenant = 0 if tenant is None else self._tenants.get(tenant, 0)
        if tenant is not None and held_by_tenant + more > self.most_tenant_bytes:
            return body_budget_full(self.most_tenant_bytes, held_by_tenant, more)
        most_bytes = self.most_bytes if held_bytes + more <= SMALL_BYTES else self.most_large_bytes
        if self.held_bytes + more > most_bytes:
            return overloaded_memory()
        self.held_bytes += more
        if tenant is not None and more:
            self._tenants[tenant] = held_by_tenant + more
        return None

    def give_back(self, tenant: str | None, count: int) -> None:
        self.held_bytes -= count
        if tenant is not None and count:
            self._tenants[tenant] -= count
            if not self._tenants[tenant]:
                del self._tenants[tenant]


class BodyHold:
    """One body's share of the budget."""

    __slots__ = ("_budget", "_come_bytes", "_is_over", "_tenant", "held_bytes", "refusal")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._come_bytes = 0
        self._is_over = False
        self._tenant: str | None = None
        self.held_bytes = 0
        self.refusal: ApiError | None = None

    def takes(self, count: int) -> bool:
        if self._is_over or self.refusal is not None:
            return False
        self._come_bytes += count
        more = self._come_bytes - self.held_bytes
        return more <= 0 or self._grow(more)

    def add(self, count: int) -> None:
        """Count what the request holds in addition to its body, such as media. Raises ApiError without room:
        `request_too_large` if there can be none for one request."""
        most_bytes = min(self._budget.most_tenant_bytes, self._budget.most_large_bytes)
        if self.held_bytes + count > most_bytes:
            raise media_too_large(most_bytes)
        if not self.takes(count):
            self.check()

    def claim(self, tenant: str, declared_bytes: int) -> None:
        """Charge the body to a tenant, with its declared length or 0. Raises ApiError without room."""
        if self._tenant is None and self.refusal is None and not self._is_over:
            self._budget.held_bytes -= self.held_bytes  # charged again below, to the tenant
            self._tenant, self.held_bytes = tenant, 0
            self._grow(max(self._come_bytes, declared_bytes))
        if self.refusal is not None:
            self.check()

    def pass_on(self, count: int) -> None:
        self._come_bytes -= count
        less = min(count, self.held_bytes)
        self.held_bytes -= less
        self._budget.give_back(self._tenant, less)

    async def turn(self) -> None:
        await self._budget.intake.turn()

    def check(self) -> None:
        """Raise the refusal, if there is one. The body is over afterwards."""
        if self.refusal is not None:
            self._is_over = True
            try:
                raise self.refusal
            finally:
                self.refusal = None  # breaks the cycle through its traceback's frame

    def release(self) -> None:
        self._is_over = True
        if self.held_bytes:
            self._budget.give_back(self._tenant, self.held_bytes)
            self._budget.freed(self.held_bytes)
            self.held_bytes = 0

    def _grow(self, more: int) -> bool:
        self.refusal = self._budget.take(self._tenant, self.held_bytes, more)
        if self.refusal is None:
            self.held_bytes += more
        return self.refusal is None


# Room for everything in a body except its prompts.
AROUND_BYTES = 64 * 1024
# Larger bodies have separate turns, so that no other body waits for one of them.
HUGE_BODY_BYTES = 256 * 1024
T = TypeVar("T")
# JSON with escapes: more than text needs per token, and more than a token id with its comma.
BYTES_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class BodyRoom:
    """Body limits of one gateway's routes, derived from the models it knows."""

    # Limit of any body; the only limit while no model is known.
    cap_bytes: int
    # In tokens; None while no model is known.
    longest_context: Callable[[], int | None]
    # Whether a model takes media, so that bodies are larger than its context's tokens.
    takes_media: Callable[[], bool] = lambda: False
    _turns: ThreadTurns = field(default_factory=ThreadTurns)
    _huge_turns: ThreadTurns = field(default_factory=ThreadTurns)

    async def run(self, tenant: str, count: int, work: Callable[[], T]) -> T:
        """Run `work` on a body of `count` bytes, in a thread if it is large, so that streams are served meanwhile.

        An ApiError from a thread carries its CPU time, so that an invalid body is charged for it."""
        if count <= LARGE_BODY_BYTES:
            return work()
        return await self.in_thread(tenant, count, partial(_timed, work))

    async def in_thread(self, tenant: str, count: int, work: Callable[[], T]) -> T:
        """Run `work` in a thread: at most one for large bodies and one for huge ones, with tenants taking turns."""
        turns = self._huge_turns if count > HUGE_BODY_BYTES else self._turns
        return await turns.run(tenant, work)

    def most_bytes(self, prompts: int) -> int:
        context = self.longest_context()
        if context is None or self.takes_media():
            return self.cap_bytes
        return min(self.cap_bytes, AROUND_BYTES + prompts * context * BYTES_PER_TOKEN)

    def most_token_ids(self, prompts: int) -> int:
        context = self.longest_context()
        return self.cap_bytes if context is None else prompts * context


def _timed(work: Callable[[], T]) -> T:
    began_s = time.thread_time()
    try:
        return work()
    except ApiError as refused:
        refused.work_s = time.thread_time() - began_s
        raise


# Larger blocks are separate mappings. This is glibc's initial value, which it would otherwise raise as blocks are
# freed.
MAPPED_BYTES = 128 * 1024
# Heaps shared by threads. glibc's default is eight for each core.
ARENAS = 2
TRIM_AFTER_BYTES = 2**20
# Delay of a trim, which limits trims to one a second during a flood.
REST_S = 1.0
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def keep_little() -> None:
    """Make glibc keep little free memory, if it is the allocator. Call it before large allocations."""
    tell = _of_glibc("mallopt")
    if tell is not None:
        tell(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        tell(_M_ARENA_MAX, ARENAS)


class Trimmer:
    """Returns freed memory, which glibc would keep, to the system: delayed, in a thread. For one event loop."""

    def __init__(self) -> None:
        self._trim = _of_glibc("malloc_trim")
        self._bytes = 0
        self._pending: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Future[int] | None = None

    def freed(self, count: int) -> None:
        self._bytes += count
        if self._bytes >= TRIM_AFTER_BYTES and self._pending is None and self._trim is not None:
            self._pending = asyncio.get_running_loop().call_later(REST_S, self._start)

    def _start(self) -> None:
        self._pending = None
        if self._trim is None or (self._trimming is not None and not self._trimming.done()):
            return
        self._bytes = 0
        with suppress(RuntimeError):  # the loop is closing
            self._trimming = asyncio.get_running_loop().run_in_executor(None, self._trim, 0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Return one of glibc's functions, None without glibc. ctypes releases the GIL while it runs."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
