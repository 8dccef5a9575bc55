"""The phases of a worker: which moves are legal, and which requests and events lead where."""

import asyncio
from collections.abc import Callable

import pytest

from fairlane.worker.lifecycle import MOVES, IllegalMove, Lifecycle, Phase

PATHS: dict[Phase, list[Callable[[Lifecycle], None]]] = {
    Phase.SERVING: [],
    Phase.ENGINE_AWAY: [lambda one: one.engine_changed(is_up=False)],
    Phase.DRAINING: [Lifecycle.drain],
    Phase.DRAINED: [Lifecycle.drain, Lifecycle.handed_back],
    Phase.REPLACED: [lambda one: one.engine_replaced("its root was one, and is two")],
    Phase.LEAVING: [Lifecycle.stop],
    Phase.LEFT: [Lifecycle.stop, Lifecycle.handed_back],
    Phase.FAILED: [Lifecycle.fail],
}
EVENTS: list[Callable[[Lifecycle], None]] = [
    Lifecycle.drain,
    Lifecycle.undrain,
    Lifecycle.stop,
    Lifecycle.handed_back,
    Lifecycle.fail,
    lambda one: one.engine_changed(is_up=False),
    lambda one: one.engine_changed(is_up=True),
    lambda one: one.engine_replaced("its root was one, and is two"),
]


def lifecycle(phase: Phase, on_pause: Callable[[], None] = lambda: None) -> Lifecycle:
    """One in this phase, by the events that lead there."""
    made = Lifecycle(on_pause)
    for event in PATHS[phase]:
        event(made)
    assert made.phase is phase
    return made


@pytest.mark.parametrize(("before", "after"), [(one, other) for one in Phase for other in Phase])
def test_a_move_outside_the_table_is_refused_and_changes_nothing(before: Phase, after: Phase) -> None:
    made = lifecycle(before)
    if after in MOVES[before]:
        made.move(after)
        assert made.phase is after
        return
    with pytest.raises(IllegalMove, match=f"{before} cannot become {after}"):
        made.move(after)
    assert made.phase is before


@pytest.mark.parametrize("phase", Phase)
def test_no_request_or_event_makes_an_illegal_move(phase: Phase) -> None:
    for event in EVENTS:
        made = lifecycle(phase)
        event(made)
        assert made.phase is phase or made.phase in MOVES[phase]


def test_a_stopped_worker_never_takes_jobs_again() -> None:
    made = lifecycle(Phase.LEAVING)
    made.undrain()
    made.engine_changed(is_up=True)
    made.engine_replaced("its root was one, and is two")
    assert made.phase is Phase.LEAVING


def test_an_undrained_worker_waits_for_its_engine() -> None:
    made = lifecycle(Phase.DRAINING)
    made.engine_changed(is_up=False)
    made.undrain()
    waiting = made.phase
    made.engine_changed(is_up=True)
    assert (waiting, made.phase) == (Phase.ENGINE_AWAY, Phase.SERVING)


@pytest.mark.parametrize("phase", [one for one in Phase if one in MOVES[Phase.SERVING]])
def test_whatever_ends_serving_stops_the_intake_once(phase: Phase) -> None:
    pauses: list[None] = []
    lifecycle(phase, lambda: pauses.append(None))
    assert len(pauses) == 1


def test_a_wait_ends_with_the_phase_that_it_is_for() -> None:
    async def check() -> None:
        made = lifecycle(Phase.DRAINING)
        waiting = asyncio.create_task(made.until(Phase.LEFT, Phase.FAILED))
        made.stop()
        await asyncio.sleep(0)
        assert not waiting.done()
        made.handed_back()
        await waiting

    asyncio.run(check())
