"""A store core runs one call at a time; the arithmetic of what one carries."""

import pytest

from fairlane.scheduler.simulation.fleet.ceiling import USABLE, StoreLoad
from fairlane.scheduler.simulation.fleet.store_cores import MEASURED, Call, CallTime, StoreCore, StoreTimes

TIMES = StoreTimes.parse("put=1000,turn=2000+500")


def test_calls_wait_for_those_before_them() -> None:
    core = StoreCore(TIMES)

    ends = [core.call(Call.PUT, 1, 0.0), core.call(Call.TURN, 2, 0.5), core.call(Call.PUT, 1, 10.0)]

    assert ends == [1.0, 4.0, 11.0]
    assert (core.busy_ms, core.longest_ms) == (5.0, 3.0)
    assert core.calls == {Call.PUT: 2, Call.TURN: 1}
    assert (core.wait_ms(0.5), core.wait_ms(1.0)) == (0.0, 0.5)


def test_times_that_are_not_stated_are_those_measured() -> None:
    assert TIMES.times == {**MEASURED, Call.PUT: CallTime(1000.0), Call.TURN: CallTime(2000.0, 500.0)}
    both = StoreTimes.parse("80.5+10")
    assert both.times == {**MEASURED, Call.PUT: CallTime(80.5, 10.0), Call.TURN: CallTime(80.5, 10.0)}


@pytest.mark.parametrize("text", ["", "put", "put=", "poll=5", "put=-1", "put=1;turn=2", "put=nan", "put=1e3"])
def test_times_that_cannot_be_read_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="store-us must be such as put=190"):
        StoreTimes.parse(text)


def test_too_long_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match="put must be between"):
        StoreTimes.parse("put=1000001")


def test_shards_that_a_load_takes() -> None:
    times = StoreTimes.parse("put=100,turn=100,renew=0,beat=0")
    load = StoreLoad(chats_per_s=10_000.0, workers=1_000, times=times)

    assert load.busy(1) == pytest.approx(2.0)
    assert load.shards == 3
    assert load.busy(3) <= USABLE < load.busy(2)


def test_heartbeats_alone_may_be_too_much_for_any_number_of_shards() -> None:
    load = StoreLoad(chats_per_s=1.0, workers=10_000, times=StoreTimes.parse("renew=200"))

    assert load.shards is None
