"""No step of a worker is interrupted by a collection of garbage."""

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fairlane.common.gc_tuning import OF_A_WORKER, collect_seldom, no_collection
from fairlane.scheduler.protocol.lanes import LaneName
from tests.support.scheduler.planner_world import World, job

STREAMS, STEPS = 200, 20
OF_PYTHON = (700, 10, 10)


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of all collections, by the interpreter's defaults until the test changes them."""
    found: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        found.append(about["generation"])

    before = gc.get_threshold()
    gc.set_threshold(*OF_PYTHON)
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)


def stepped(steps: int) -> None:
    world = World(blocks=400, block_size=16, max_sequences=STREAMS, max_step_tokens=8 * STREAMS)
    for number in range(STREAMS):
        world.add(job(f"f{number}", LaneName.LATENCY, max_tokens=2 * STEPS))
    for _ in range(steps):
        world.step()


def test_steps_of_hundreds_of_streams_set_off_no_collection(collections: list[int]) -> None:
    stepped(STEPS)
    assert collections, "by the interpreter's defaults they do"
    collect_seldom(OF_A_WORKER)
    collections.clear()
    stepped(STEPS)
    assert collections == []


def test_collection_rests_only_so_long() -> None:
    with no_collection():
        assert not gc.isenabled()

    with suppress(ImportError), no_collection():
        raise ImportError

    assert gc.isenabled()
