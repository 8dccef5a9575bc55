"""A worker measures itself before it serves, and leaves nothing behind."""

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.worker.engine.build import calibrate
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import lease
from tests.support.worker.prompts import PROMPTS, alone
from tests.support.worker.stepped import Client

STEP = StepFeatures(4, 0, 100, 0)


@pytest.mark.parametrize(("host_slots", "knows_copies"), [(32, True), (0, False)])
def test_what_was_measured_is_what_is_expected(tiny: TransformersModel, host_slots: int, knows_copies: bool) -> None:
    client, costs = Client(tiny, blocks=256, host_slots=host_slots), CostModel()

    calibrate(client.runner, costs, max_sequences=8, max_step_tokens=24)

    assert costs.knows_copies == knows_copies
    assert costs.step_ms(STEP) != CostModel().step_ms(STEP) > 0.0
    assert (costs.copy_ms(4) != CostModel().copy_ms(4)) == knows_copies
    client.add(lease("a", PROMPTS[2], max_tokens=10))
    client.run()
    assert [*client.tokens.values()] == [alone(tiny, PROMPTS[2], 10)]


def test_a_pool_too_small_to_measure_in_leaves_what_is_assumed(tiny: TransformersModel) -> None:
    costs = CostModel()

    calibrate(Client(tiny, blocks=8).runner, costs, max_sequences=8, max_step_tokens=24)

    assert costs.step_weights() == CostModel().step_weights()
    assert not costs.knows_copies
