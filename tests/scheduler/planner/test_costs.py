import random

import pytest

from fairlane.scheduler.planner.costs import LEARNT_AFTER, CostModel, Measurement, NonNegativeFit
from fairlane.scheduler.planner.steps import NO_WORK, Row, SeqId, StepFeatures, features


def row(tokens: int, first: int) -> Row:
    return Row(
        seq=SeqId("job", 0),
        token_ids=(1,) * tokens,
        first_position=first,
        block_table=(),
        samples=True,
        output_index=0,
    )


def true_ms(step: StepFeatures) -> float:
    """A machine: 12 ms a step, 0.2 a row, 0.3 a prefill token, 1 µs per KV token and 0.1 µs per pair."""
    return 12.0 + 0.2 * step.rows + 0.3 * step.prefill_tokens + 0.001 * step.context + 0.0001 * step.attention


def random_step(rng: random.Random) -> StepFeatures:
    decodes, chunk = rng.randint(1, 60), rng.choice([0, 0, rng.randint(2, 400)])
    return StepFeatures(decodes + (chunk > 0), chunk, decodes * rng.randint(50, 1500), chunk * rng.randint(50, 1500))


def learnt(steps: int = 400, noise: float = 0.0) -> CostModel:
    costs, rng = CostModel(), random.Random(1)
    for _ in range(steps):
        step = random_step(rng)
        costs.observe(step, true_ms(step) * (1.0 + noise * rng.uniform(-1.0, 1.0)), 0, 0.0)
    return costs


def test_features_tell_prefill_from_decode() -> None:
    assert features([row(1, 99), row(1, 49), row(10, 20)]) == StepFeatures(3, 10, 150, 300)
    assert features([]) == NO_WORK


def test_an_empty_step_costs_nothing() -> None:
    assert CostModel().step_ms(NO_WORK) == 0.0
    assert CostModel().copy_ms(0) == 0.0


def test_step_times_are_learnt_from_observation() -> None:
    costs, rng = learnt(), random.Random(2)

    for _ in range(50):
        step = random_step(rng)
        assert costs.step_ms(step) == pytest.approx(true_ms(step), rel=0.05)


def test_noise_is_averaged_out() -> None:
    costs, rng = learnt(noise=0.3), random.Random(3)
    steps = [random_step(rng) for _ in range(200)]

    error = sum(abs(costs.step_ms(step) / true_ms(step) - 1.0) for step in steps) / len(steps)

    assert error < 0.1


def test_more_work_never_costs_less_whatever_was_seen() -> None:
    rng = random.Random(4)
    fit = NonNegativeFit(typical=(1.0, 10.0, 10.0), prior=(1.0, 1.0, 1.0))

    for _ in range(300):
        fit.observe((1.0, rng.random() * 20, rng.random() * 20), rng.random() * 50)
        assert min(fit.weights) >= 0.0


def test_a_change_of_the_machine_is_followed() -> None:
    costs, rng = learnt(), random.Random(5)

    for _ in range(600):
        step = random_step(rng)
        costs.observe(step, 3.0 * true_ms(step), 0, 0.0)

    step = StepFeatures(30, 0, 10_000, 0)
    assert costs.step_ms(step) == pytest.approx(3.0 * true_ms(step), rel=0.15)


def test_one_stall_of_the_machine_does_not_upset_what_was_learnt() -> None:
    costs = learnt()
    step = StepFeatures(30, 0, 10_000, 0)
    before = costs.step_ms(step)

    costs.observe(step, 60_000.0, 0, 0.0)

    assert costs.step_ms(step) < 1.1 * before


@pytest.mark.parametrize("measured", [0.0, float("nan"), float("inf"), -5.0])
def test_an_impossible_measurement_is_ignored(measured: float) -> None:
    costs, untouched = CostModel(), CostModel()
    step = StepFeatures(4, 0, 100, 0)

    costs.observe(step, measured, 4, measured)

    assert costs.step_ms(step) == untouched.step_ms(step)
    assert costs.copy_ms(4) == untouched.copy_ms(4)


def test_copies_are_learnt_apart_from_steps() -> None:
    costs = CostModel()
    for blocks in (1, 4, 16, 64) * 30:
        costs.observe(NO_WORK, 0.0, blocks, 0.5 + 0.05 * blocks)

    assert costs.copy_ms(32) == pytest.approx(2.1, rel=0.05)
    assert costs.swap_ms(32) == pytest.approx(4.2, rel=0.05)


def test_before_the_first_copy_the_size_of_a_block_decides() -> None:
    small, large = CostModel(), CostModel()
    small.expect_blocks_of(64 * 1024)
    large.expect_blocks_of(4 * 1024 * 1024)

    assert large.swap_ms(10) > 10 * small.swap_ms(10)


def test_what_comes_back_with_others_begins_no_copy_of_its_own() -> None:
    costs = CostModel()
    for blocks in (1, 4, 16, 64) * 30:
        costs.observe(NO_WORK, 0.0, blocks, 0.5 + 0.05 * blocks)

    bit_by_bit_ms = costs.swap_ms(3) + costs.swap_ms(5, away=3)

    assert bit_by_bit_ms == pytest.approx(costs.copy_ms(3) + costs.copy_ms(5) + costs.copy_ms(8))


def test_recomputing_twice_the_tokens_costs_more_than_twice() -> None:
    costs = learnt()

    assert costs.recompute_ms(2_000) > 2.0 * costs.recompute_ms(1_000) > 0.0


def test_a_recompute_costs_what_its_row_adds_to_a_step() -> None:
    costs = learnt()
    without, row = StepFeatures(20, 0, 9_000, 0), StepFeatures(20, 300, 9_000, 300 * 700)

    assert costs.recompute_ms(300, kept=400) == pytest.approx(costs.step_ms(row) - costs.step_ms(without))


def test_step_weights_add_up_to_the_time_of_a_step() -> None:
    base_ms, *weights = learnt().step_weights()
    step = StepFeatures(21, 300, 10_000, 90_000)

    assert base_ms + sum(w * x for w, x in zip(weights, step, strict=True)) == pytest.approx(true_ms(step), rel=0.05)


def test_a_model_has_learnt_after_enough_steps() -> None:
    assert not learnt(LEARNT_AFTER - 1).has_learnt
    assert learnt(LEARNT_AFTER).has_learnt


def measured() -> CostModel:
    """A worker ten times as fast as assumed, that copied a few blocks and ran a few steps before it served."""
    shapes = (StepFeatures(1, 0, 32, 0), StepFeatures(1, 64, 0, 4096), StepFeatures(8, 0, 256, 0))
    costs = CostModel()
    costs.start_from(
        Measurement(shape, 0.1 * true_ms(shape), blocks, 0.06 + 0.02 * blocks)
        for shape, blocks in zip(shapes * 2, (8, 1, 32) * 2, strict=True)
    )
    return costs


def test_what_was_measured_at_start_is_predicted_from_the_first_step_on() -> None:
    costs = measured()

    assert costs.knows_copies
    assert costs.copy_ms(16) == pytest.approx(0.38, rel=0.1)
    for step in (StepFeatures(4, 0, 128, 0), StepFeatures(1, 32, 0, 1024)):
        assert costs.step_ms(step) == pytest.approx(0.1 * true_ms(step), rel=0.25)


def test_what_is_observed_replaces_what_was_measured() -> None:
    costs, rng = measured(), random.Random(6)
    for _ in range(100):
        step = random_step(rng)
        costs.observe(step, true_ms(step), 8, 2.0)

    assert costs.copy_ms(8) == pytest.approx(2.0, rel=0.1)
    assert costs.step_ms(StepFeatures(30, 0, 10_000, 0)) == pytest.approx(28.0, rel=0.15)


def test_one_copy_that_stalled_does_not_upset_what_was_measured() -> None:
    costs = measured()
    before = costs.copy_ms(8)

    costs.observe(NO_WORK, 0.0, 8, 40.0)

    assert costs.copy_ms(8) < 4.0 * before


def test_copies_are_expected_to_take_what_they_usually_take() -> None:
    costs, rng = measured(), random.Random(7)
    for _ in range(200):
        stalls = 3.0 if rng.random() < 0.1 else 1.0
        costs.observe(NO_WORK, 0.0, 8, 0.4 * stalls)

    assert costs.copy_ms(8) == pytest.approx(0.4, rel=0.1)


def test_copies_that_all_become_slower_are_followed() -> None:
    costs = measured()
    for _ in range(100):
        costs.observe(NO_WORK, 0.0, 8, 0.4)
    for _ in range(100):
        costs.observe(NO_WORK, 0.0, 8, 0.8)

    assert costs.copy_ms(8) == pytest.approx(0.8, rel=0.1)
