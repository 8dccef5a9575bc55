import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.step_budget import HOLD, TRICKLE_DIVISOR
from fairlane.scheduler.protocol.lanes import LATENCY
from fairlane.worker.vllm.pace import Load, allowance

MAX_TOKENS = 2048
BASE_MS, ROW_MS, TOKEN_MS, CONTEXT_MS, PAIR_MS = 10.0, 1.0, 0.5, 0.001, 0.0001
SINGLE_MS = 20.0
"""Of a stream alone: the first lane's target is three times that."""


def learnt() -> CostModel:
    costs = CostModel()
    costs.know((BASE_MS, ROW_MS, TOKEN_MS, CONTEXT_MS, PAIR_MS), (1.0, 1.0), SINGLE_MS)
    return costs


def step_ms(load: Load, tokens: int, context: int) -> float:
    decodes = load.decodes * ROW_MS + load.context * CONTEXT_MS
    return BASE_MS + decodes + ROW_MS + tokens * (TOKEN_MS + PAIR_MS * (context + tokens))


def test_a_step_beside_the_first_lanes_decodes_keeps_to_their_pace() -> None:
    load = Load(decodes=8, context=4_000, first_decodes=1, first_tokens=0)
    granted = allowance(load, LATENCY, learnt(), MAX_TOKENS).take(1_000, 0)

    assert MAX_TOKENS // TRICKLE_DIVISOR < granted < 1_000
    assert step_ms(load, granted, 0) <= LATENCY.tpot_on(SINGLE_MS)


def test_lower_lanes_alone_have_longer_steps() -> None:
    load = Load(decodes=8, context=4_000, first_decodes=0, first_tokens=0)
    beside = allowance(load._replace(first_decodes=1), LATENCY, learnt(), MAX_TOKENS).take(MAX_TOKENS, 0)
    alone = allowance(load, LATENCY, learnt(), MAX_TOKENS).take(MAX_TOKENS, 0)

    assert beside < alone
    assert step_ms(load, alone, 0) <= HOLD * LATENCY.tpot_on(SINGLE_MS)


def test_what_the_first_lane_computes_of_its_prompts_is_not_left_to_others() -> None:
    waits = allowance(Load(4, 400, 0, 2_000), LATENCY, learnt(), MAX_TOKENS)

    assert waits.take(1_000, 0) == MAX_TOKENS // TRICKLE_DIVISOR


def test_before_anything_is_known_steps_beside_the_first_lane_are_small() -> None:
    beside = allowance(Load(4, 400, 1, 0), LATENCY, CostModel(), MAX_TOKENS)
    alone = allowance(Load(4, 400, 0, 0), LATENCY, CostModel(), MAX_TOKENS)

    assert beside.take(5_000, 0) == MAX_TOKENS // TRICKLE_DIVISOR * 2
    assert alone.take(5_000, 0) == MAX_TOKENS - 4


@pytest.mark.parametrize("load", [Load(200, 200_000, 200, 0), Load(1, 100, 1, 2_000), Load(0, 0, 0, 0)])
def test_lower_lanes_always_go_on(load: Load) -> None:
    assert allowance(load, LATENCY, learnt(), MAX_TOKENS).take(1_000, 5_000) >= MAX_TOKENS // TRICKLE_DIVISOR


loads = st.builds(Load, st.integers(0, 256), st.integers(0, 500_000), st.integers(0, 256), st.integers(0, MAX_TOKENS))
prompts = st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 8_000)), max_size=8)


weights = st.tuples(*[st.just(0.0) | st.floats(1e-9, 100.0)] * 5)
"""Of a step's features: a fit may find that one of them costs nothing."""


@given(loads, prompts, st.none() | weights)
def test_no_more_is_granted_than_asked_for_nor_than_a_step_holds(
    load: Load, prompts: list[tuple[int, int]], found: tuple[float, ...] | None
) -> None:
    costs = CostModel()
    if found is not None:
        costs.know(found, (1.0, 1.0), SINGLE_MS)
    rest = allowance(load, LATENCY, costs, MAX_TOKENS)
    granted = [rest.take(tokens, context) for tokens, context in prompts]

    assert all(0 <= given <= tokens for given, (tokens, _) in zip(granted, prompts, strict=True))
    trickle = MAX_TOKENS // TRICKLE_DIVISOR
    assert sum(granted) <= max(MAX_TOKENS - load.decodes - load.first_tokens, trickle) + trickle
    assert math.isfinite(sum(granted))
