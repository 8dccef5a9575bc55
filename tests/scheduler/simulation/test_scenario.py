"""A simulated installation: its workers are those of the hardware that was named."""

import pytest

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.step_budget import HOLD
from fairlane.scheduler.planner.steps import StepPlan
from fairlane.scheduler.protocol.lanes import LATENCY, LaneName
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.simulation.calibration import preset
from fairlane.scheduler.simulation.scenario import Scenario
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, lane_tiers
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import Arrival


@pytest.mark.parametrize("name", ["h100-1b", "h100-8b", "a100-8b"])
def test_a_workers_very_first_step_keeps_to_the_pace_of_its_hardware(name: str) -> None:
    calibration = preset(name)
    alone_ms = calibration.single_stream_ms
    tiers = lane_tiers(0.0, single_stream_ms=alone_ms)
    overlay = SyntheticTenants(tiers=tiers, kv_tokens=calibration.kv_tokens)
    rows = [TraceRow(number, 0.0, 8_000, 8) for number in range(4)]
    scenario = Scenario(rows=rows, overlay=overlay, calibration=calibration, workers=1, seed=0)
    planner = scenario.planner()
    arrivals: list[Arrival] = list(overlay.arrivals(rows))
    for arrival in arrivals:
        assert arrival.lane is LaneName.THROUGHPUT
        planner.add(Lease(job=arrival.job(), epoch=1, arrived_ms_ago=0.0), 0.0)

    plan = planner.plan(0.0)

    took_ms = calibration.step_ms(plan.features)
    assert 0.5 * HOLD * LATENCY.tpot_on(alone_ms) < took_ms <= 1.01 * HOLD * LATENCY.tpot_on(alone_ms)


def test_a_batch_that_only_decodes_is_not_planned_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches for a progress bar does not slow the simulation down."""
    calibration, plans = preset("h100-1b"), []
    plan = Planner.plan

    def counted(planner: Planner, now_ms: float) -> StepPlan:
        plans.append(now_ms)
        return plan(planner, now_ms)

    monkeypatch.setattr(Planner, "plan", counted)
    rows = [TraceRow(number, 0.0, 100, 500) for number in range(4)]
    overlay = SyntheticTenants(kv_tokens=calibration.kv_tokens)
    ends: list[None] = []
    total = (
        Scenario(rows=rows, overlay=overlay, calibration=calibration, workers=1, seed=0)
        .run(1.0, lambda: ends.append(None))
        .total
    )

    assert total.output_tokens == 4 * 500
    assert len(ends) == 4
    assert len(plans) < 100
