"""What is told of the next step while one runs: true where only tokens come, and without effect in any case."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.steps import Row
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job


def places(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """The rows, less their tokens."""
    return [(row.seq, row.first_position, row.block_table, row.samples, row.output_index) for row in rows]


@pytest.mark.parametrize("prefix_share", [None, 0.5])
def test_of_decodes_all_is_told_until_one_ends(prefix_share: float | None) -> None:
    world = World(blocks=64, block_size=4, prefix_share=prefix_share)
    for name, prompt in (("a", 3), ("b", 4), ("c", 6)):
        world.add(job(name, prompt=prompt, max_tokens=20))
    world.step()
    world.step()

    for _ in range(18):
        told = world.ahead
        plan, _ = world.step()
        assert told
        assert places(told) == places(plan.rows)

    assert world.ahead == ()
    assert not world.planner.has_work


def test_nothing_is_told_where_a_prompt_is_computed() -> None:
    world = World(max_step_tokens=8)
    world.add(job("a", prompt=12))
    world.step()

    assert world.ahead == ()


def test_nothing_is_told_where_a_sequence_comes_to_its_end_or_grant() -> None:
    world = World()
    world.add(job("ends", prompt=4, max_tokens=3))
    world.step()
    world.step()
    assert world.ahead

    world.step()
    assert world.ahead == ()

    world.finish()
    world.add(job("paused", prompt=4, max_tokens=8, granted_until=2))
    world.step()
    world.step()
    assert world.ahead == ()


@pytest.mark.parametrize(("prefix_share", "tells_all"), [(None, True), (1.0, False)])
def test_nothing_is_told_where_the_cache_would_have_to_let_a_block_go(
    prefix_share: float | None, tells_all: bool
) -> None:
    world = World(blocks=4, block_size=4, prefix_share=prefix_share)
    world.add(job("before", prompt=8, max_tokens=2))
    world.finish()
    world.add(job("a", prompt=4, max_tokens=9))
    world.step()

    told = []
    for _ in range(7):
        world.step()
        told.append(bool(world.ahead))

    assert all(told) is tells_all


@settings(deadline=None)
@given(
    job_ids=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([LATENCY, THROUGHPUT]), st.integers(1, 14), st.integers(1, 10)),
        min_size=1,
        max_size=8,
    ),
    blocks=st.integers(8, 24),
    prefix_share=st.sampled_from([None, 0.5]),
)
def test_telling_changes_no_plan(
    job_ids: list[tuple[int, str, int, int]], blocks: int, prefix_share: float | None
) -> None:
    worlds = [World(blocks=blocks, block_size=3, prefix_share=prefix_share, looks_ahead=one) for one in (False, True)]
    for step in range(10):
        for number, (at, lane, prompt, tokens) in enumerate(job_ids):
            if at == step:
                for world in worlds:
                    chosen = LATENCY if lane == LATENCY else THROUGHPUT
                    world.add(job(str(number), chosen, prompt=prompt, max_tokens=tokens, text="one"))
        for world in worlds:
            world.step()
    for world in worlds:
        world.finish()

    assert worlds[0].plans == worlds[1].plans
