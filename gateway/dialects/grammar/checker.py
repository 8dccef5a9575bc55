"""Child processes that check structures in bounded time and memory, one request per tenant at a time.

A child that takes too long or dies is replaced, and its structure is rejected. A tenant whose last check was slow waits
for all others, and one child stays reserved for them. If all children turn out to run slow checks, the latest is
stopped for a quick tenant that waits, and restarted in the queue of slow ones."""

import asyncio
import hashlib
import logging
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from fairlane.gateway.dialects.grammar.check_process import CheckResult
from fairlane.gateway.dialects.grammar.schema_tree import Step
from fairlane.gateway.dialects.grammar.structure import CheckedGrammar, Structure
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.json_reader import shown_name

CHILDREN = 2
# Threshold of slow checks: elapsed time while a check runs, CPU time once it has ended.
SLOW_S = 0.25
# Slow tenants remembered, the latest ones.
MOST_SLOW_TENANTS = 1_000
# Checks per tenant.
MOST_WAITING = 32
TIMEOUT_S = 2.0
# Bytes of cached grammars and faults.
MOST_KEPT_BYTES = 16 * 2**20
# How long a result is kept after its last use; a deleted tenant's data must be gone within the hour.
KEPT_S = 1_800.0
MOST_FAULT_CHARS = 200
# Steps of a path within a schema.
MOST_SHOWN_STEPS = 32
_MOST_LINE_BYTES = 2**20
# llguidance's descriptions of faults, by their beginnings, in words for callers.
_PLAIN_FAULTS = {
    "Unimplemented keys": "this keyword cannot be enforced",
    "oneOf constraints": "its branches do not evidently exclude each other; use `anyOf` if more than one may match",
}

log = logging.getLogger(__name__)


class GrammarChecker:
    """Checks structures. Call `aclose` at the end."""

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept = _ResultCache(kept_s)
        self._children = [_Child() for _ in range(CHILDREN)]
        self._lending = _Lending(self._children)
        self._slow_tenants: OrderedDict[str, None] = OrderedDict()
        self._waiting: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}

    async def check(self, structure: Structure, tenant_id: str) -> CheckedGrammar:
        """Return the grammar for workers. Raises ApiError naming the field that requested it, or `overloaded`."""
        found = self._kept.find(structure)
        if found is None:
            found = await self._found(structure, tenant_id)
        if found.fault:
            path = found.path[:MOST_SHOWN_STEPS] if structure.names_paths else ()
            param = ".".join([structure.param, *map(_shown, path)])
            raise invalid(param, f"`{param}` cannot be served: {_described(found.fault)}.")
        return CheckedGrammar(found.grammar, found.compiled_bytes)

    async def aclose(self) -> None:
        self._kept.clear()
        for child in self._children:
            await child.kill()

    async def _found(self, structure: Structure, tenant_id: str) -> CheckResult:
        if self._waiting[tenant_id] >= MOST_WAITING:
            message = "Too many schemas and grammars of this tenant are waiting to be checked."
            raise ApiError(message, "overloaded", structure.param, retry_after_s=1.0)
        self._waiting[tenant_id] += 1
        found = None
        try:
            async with self._turns.setdefault(tenant_id, asyncio.Lock()):
                while found is None:
                    found = await self._ask(structure, is_slow=tenant_id in self._slow_tenants)
                    self._note(tenant_id, TIMEOUT_S if found is None else found.spent_s)
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id]
                self._turns.pop(tenant_id, None)
        self._kept.keep(structure, found)
        return found

    async def _ask(self, structure: Structure, *, is_slow: bool) -> CheckResult | None:
        loan = await self._lending.borrow(is_slow=is_slow)
        try:
            async with asyncio.timeout(None) as stop:
                return await loan.child.ask(structure, lambda: self._lending.begin(loan, stop))
        except TimeoutError:
            return None
        finally:
            self._lending.give_back(loan)

    def _note(self, tenant_id: str, spent_s: float) -> None:
        self._slow_tenants.pop(tenant_id, None)
        if spent_s > SLOW_S:
            self._slow_tenants[tenant_id] = None
            if len(self._slow_tenants) > MOST_SLOW_TENANTS:
                self._slow_tenants.popitem(last=False)

    @property
    def kept_bytes(self) -> int:
        return self._kept.bytes


class _ResultCache:
    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        # With the event loop's time of the last use.
        self._results: OrderedDict[tuple[str, bytes], tuple[CheckResult, float]] = OrderedDict()
        self._expiry: asyncio.TimerHandle | None = None
        self.bytes = 0

    def find(self, structure: Structure) -> CheckResult | None:
        name = _digest(structure)
        if name not in self._results:
            return None
        result, _ = self._results.pop(name)
        self._results[name] = result, asyncio.get_running_loop().time()
        return result

    def keep(self, structure: Structure, result: CheckResult) -> None:
        loop, name = asyncio.get_running_loop(), _digest(structure)
        if name in self._results:  # checked twice concurrently
            self._drop(name)
        self._results[name] = result, loop.time()
        self.bytes += _size(result)
        while self.bytes > MOST_KEPT_BYTES:
            self._drop(next(iter(self._results)))
        if self._expiry is None:
            self._expiry = loop.call_later(self._kept_s, self._expire)

    def clear(self) -> None:
        self._results.clear()
        self.bytes = 0
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _drop(self, name: tuple[str, bytes]) -> None:
        result, _ = self._results.pop(name)
        self.bytes -= _size(result)

    def _expire(self) -> None:
        loop, self._expiry = asyncio.get_running_loop(), None
        for name, (_, used_s) in list(self._results.items()):
            if used_s + self._kept_s > loop.time():
                self._expiry = loop.call_at(used_s + self._kept_s, self._expire)
                return
            self._drop(name)


def _digest(structure: Structure) -> tuple[str, bytes]:
    return structure.kind, hashlib.sha256(structure.text.encode("utf-8", "surrogatepass")).digest()


def _shown(step: Step) -> str:
    return f"[{step}]" if isinstance(step, int) else shown_name(step)


def _described(fault: str) -> str:
    lines = [line.strip() for line in fault.splitlines()]
    said = next((line for line in lines if line.startswith("error: ")), lines[0])
    said = next((plain for known, plain in _PLAIN_FAULTS.items() if said.startswith(known)), said)
    return said.removeprefix("error: ")[:MOST_FAULT_CHARS].rstrip(".:")


def _size(found: CheckResult) -> int:
    return 4 * (len(found.grammar) + len(found.fault)) + 300


@dataclass(eq=False)
class _Loan:
    child: "_Child"
    # Stops the check; None before it begins.
    stop: asyncio.Timeout | None = None
    timer: asyncio.TimerHandle | None = None


class _Lending:
    """Lends each child to one check at a time, in order of arrival. Slow tenants wait for the others, and start only
    while another child runs no slow check."""

    def __init__(self, children: Sequence["_Child"]) -> None:
        self._idle = [*children]
        self._count = len(children)
        self._quick: deque[asyncio.Future[_Loan]] = deque()
        self._slow: deque[asyncio.Future[_Loan]] = deque()
        # Loans to slow tenants and loans whose checks turned out slow, in the order in which they were added.
        self._long: list[_Loan] = []

    async def borrow(self, *, is_slow: bool) -> _Loan:
        turn: asyncio.Future[_Loan] = asyncio.get_running_loop().create_future()
        (self._slow if is_slow else self._quick).append(turn)
        self._lend()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            raise

    def begin(self, loan: _Loan, stop: asyncio.Timeout) -> None:
        """Start a loan's check: its time counts from now on, and `stop` may end it."""
        loan.stop = stop
        if loan.timer is None and loan not in self._long:
            loan.timer = asyncio.get_running_loop().call_later(SLOW_S, self._note_long, loan)

    def give_back(self, loan: _Loan) -> None:
        if loan.timer is not None:
            loan.timer.cancel()
        if loan in self._long:
            self._long.remove(loan)
        self._idle.append(loan.child)
        self._lend()

    def _note_long(self, loan: _Loan) -> None:
        self._long.append(loan)
        self._make_way()

    def _lend(self) -> None:
        while self._idle and (self._quick or (self._slow and len(self._long) < self._count - 1)):
            is_slow = not self._quick
            turn = (self._slow if is_slow else self._quick).popleft()
            if turn.done():
                continue
            loan = _Loan(self._idle.pop())
            if is_slow:
                self._long.append(loan)
            turn.set_result(loan)
        self._make_way()

    def _make_way(self) -> None:
        """Stop the latest slow check if all children run slow ones and a quick tenant waits."""
        if len(self._long) == self._count and not all(turn.done() for turn in self._quick):
            stop = self._long[-1].stop
            if stop is not None and not stop.expired():
                stop.reschedule(asyncio.get_running_loop().time())


class _Child:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, structure: Structure, begun: Callable[[], None]) -> CheckResult:
        """Return the result, or a fault if there is none. `begun` is called once the process is ready."""
        for _ in range(2):  # retry once, since the child may have been killed by something else
            try:
                process = self._process
                if process is None or process.returncode is not None:
                    process = await self._start()
                begun()
                async with asyncio.timeout(TIMEOUT_S):
                    return await self._exchange(process, structure)
            except TimeoutError:
                fault = f"it takes more than {TIMEOUT_S:g} s to compile"
                break
            except (OSError, msgspec.DecodeError, ValueError):  # it died, or ran out of memory
                fault = "compiling it takes too much memory"
                await self.kill()
            except BaseException:
                await self.kill()
                raise
        log.warning("a grammar was rejected, and the process that checked it was killed")
        await self.kill()
        return CheckResult(fault=fault, spent_s=TIMEOUT_S)

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fairlane.gateway.dialects.grammar.check_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_MOST_LINE_BYTES,
            start_new_session=True,  # so that signals to the gateway's group do not reach the child
        )
        await self._exchange(process, Structure("choice", '["ready"]', ""))
        return process

    async def _exchange(self, process: asyncio.subprocess.Process, structure: Structure) -> CheckResult:
        if process.stdin is None or process.stdout is None:
            raise OSError("the process has no pipes")
        process.stdin.write(msgspec.json.encode(structure) + b"\n")
        await process.stdin.drain()
        return msgspec.json.decode(await process.stdout.readline(), type=CheckResult)
