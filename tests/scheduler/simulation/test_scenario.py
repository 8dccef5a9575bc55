"""A simulated installation: its workers are those of the hardware that was named."""

import pytest

from fairlane.scheduler.planner.step_budget import HOLD
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
    alone_ms = calibration.hardware.single_stream_ms
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

    took_ms = calibration.hardware.step_ms(plan.features)
    assert 0.5 * HOLD * LATENCY.tpot_on(alone_ms) < took_ms <= 1.01 * HOLD * LATENCY.tpot_on(alone_ms)
