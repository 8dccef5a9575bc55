"""The breaker: three failures in a row, trials of its own, one log line per change, and no wait while it is open."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

import pytest
import redis
import redis.asyncio

from fairlane.store.circuit_breaker import (
    FAILURES,
    LOG_REFUSALS_EVERY_S,
    LONGEST_WAIT_S,
    STEADY_S,
    TRIAL_EVERY_S,
    Breaker,
    StoreAway,
)
from fairlane.store.errors import has_library, is_rewriting
from tests.support.store import topology

pytestmark = pytest.mark.anyio

LOST = redis.ConnectionError("lost")


class Bench:
    """A breaker whose time passes only when told, over a store that is there or not."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_up = False
        self.trials = 0
        self.waits: list[float] = []
        self._turns: asyncio.Queue[None] = asyncio.Queue()
        self.breaker = Breaker("store", self._trial, clock=lambda: self.now_s, sleep=self._sleep)

    def call(self, error: Exception | None = None) -> None:
        """One call that ends so."""
        with self.breaker:
            if error is not None:
                raise error

    def fail(self, *errors: Exception) -> None:
        """Calls that end so, one after the other; those that the breaker stops too."""
        for error in errors:
            with suppress(type(error), StoreAway):
                self.call(error)

    async def wait(self) -> None:
        """The time until the next trial passes, and the trial is over."""
        before = self.trials
        self._turns.put_nowait(None)
        while self.trials == before:  # noqa: ASYNC110 - a turn of the loop each
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _sleep(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        await self._turns.get()
        self.now_s += delay_s

    async def _trial(self) -> None:
        self.trials += 1
        if not self.is_up:
            raise LOST


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.breaker.aclose()


TROUBLE = [
    LOST,
    TimeoutError(),
    redis.TimeoutError(),
    ConnectionRefusedError(),
    redis.BusyLoadingError(),
    redis.ReadOnlyError(),
    redis.exceptions.ClusterDownError("down"),
    redis.exceptions.OutOfMemoryError("full"),
    redis.ResponseError("MISCONF the append-only file cannot be written"),
    redis.ResponseError("BUSY a script is running"),
]


@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__)
async def test_three_failures_in_a_row_open_it_whatever_their_kind(bench: Bench, error: Exception) -> None:
    bench.fail(*[error] * (FAILURES - 1))
    assert bench.breaker.openings == 0

    bench.fail(error)

    assert bench.breaker.is_away
    with pytest.raises(StoreAway):
        bench.call()


async def test_a_success_between_keeps_it_closed(bench: Bench) -> None:
    for _ in range(5):
        bench.fail(LOST, LOST)
        bench.call()

    assert not bench.breaker.is_away


@pytest.mark.parametrize(
    "error",
    [redis.exceptions.NoScriptError("no such script"), redis.ResponseError("WRONGTYPE secret-argument"), ValueError()],
    ids=lambda error: type(error).__name__,
)
async def test_what_is_of_one_call_alone_opens_nothing(bench: Bench, error: Exception) -> None:
    bench.fail(*[error] * 50)

    assert not bench.breaker.is_away


async def test_a_refused_call_is_told_now_and_then_by_its_first_word(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        bench.fail(*[redis.ResponseError("WRONGTYPE of secret-argument")] * 50)
        bench.now_s += LOG_REFUSALS_EVERY_S

    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "WRONGTYPE" in caplog.text
    assert "secret-argument" not in caplog.text


async def test_a_refusal_without_a_code_is_logged_by_its_kind_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fail(redis.ResponseError("no such thing"))

    assert caplog.messages == ["the store refuses a call (ResponseError)"]


async def test_a_library_that_another_process_has_loaded_is_not_logged(
    bench: Bench, store_url: str, store: redis.asyncio.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topology.one_master(store_url)
    source = "#!lua name=fairlane_twice\nredis.register_function('fairlane_twice', function() return 1 end)"
    await store.execute_command("FUNCTION LOAD", source)  # type: ignore[no-untyped-call]
    with pytest.raises(redis.ResponseError) as refused:
        await store.execute_command("FUNCTION LOAD", source)  # type: ignore[no-untyped-call]

    bench.fail(refused.value)

    assert has_library(refused.value)
    assert caplog.messages == []


async def test_a_rewrite_that_is_already_running_is_not_logged(
    bench: Bench, store_url: str, store: redis.asyncio.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topology.one_master(store_url)
    calls = store.pipeline(transaction=False)
    for _ in range(2):
        calls.execute_command("BGREWRITEAOF")
    [_, refused] = await calls.execute(raise_on_error=False)

    bench.fail(refused)

    assert is_rewriting(refused)
    assert caplog.messages == []


async def test_it_closes_by_a_trial_of_its_own(bench: Bench) -> None:
    bench.fail(*[LOST] * FAILURES)
    await bench.wait()
    with pytest.raises(StoreAway):
        bench.call()

    bench.is_up = True
    await bench.wait()

    bench.call()
    assert bench.waits == [TRIAL_EVERY_S] * 2


async def test_what_comes_in_while_it_is_open_does_not_close_it(bench: Bench) -> None:
    with bench.breaker:  # under way when it opens
        bench.fail(*[LOST] * FAILURES)

    assert bench.breaker.is_away


async def test_a_change_is_one_line_however_many_calls_fail(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    bench.fail(*[LOST] * 5_000)
    bench.is_up = True
    await bench.wait()

    assert [record.getMessage() for record in caplog.records] == [
        "the store fails (ConnectionError): until it answers, calls fail at once",
        "the store answers again after 0.2 s",
    ]
    assert bench.breaker.openings == 1


async def test_what_flaps_is_tried_less_often_until_it_is_steady(bench: Bench) -> None:
    bench.is_up = True
    for _ in range(8):
        bench.fail(*[LOST] * FAILURES)
        await bench.wait()
    bench.now_s += STEADY_S
    bench.fail(*[LOST] * FAILURES)
    await bench.wait()

    assert bench.waits == [0.25, 0.5, 1.0, 2.0, *[LONGEST_WAIT_S] * 4, TRIAL_EVERY_S]


async def test_closing_ends_the_trials(bench: Bench) -> None:
    before = asyncio.all_tasks()
    bench.fail(*[LOST] * FAILURES)
    assert asyncio.all_tasks() != before

    await bench.breaker.aclose()

    assert asyncio.all_tasks() == before


async def test_what_was_asked_before_it_closed_opens_it_no_more(bench: Bench) -> None:
    stuck = [ExitStack() for _ in range(2 * FAILURES)]
    for call in stuck:
        call.enter_context(bench.breaker)
    bench.fail(*[LOST] * FAILURES)
    bench.is_up = True
    await bench.wait()
    assert not bench.breaker.is_away

    for call in stuck:
        call.__exit__(TimeoutError, TimeoutError(), None)
    assert (bench.breaker.is_away, bench.breaker.openings) == (False, 1)

    bench.fail(*[LOST] * FAILURES)
    assert (bench.breaker.is_away, bench.breaker.openings) == (True, 2)
