"""The simulator beside real runs: what is compared, and the policies to compare with before a runner that moves KV."""

import pytest

from benchmarks.scheduling.lines.fidelity import NAMES, Found, Latency, asked, bar, error, lines, repeat_error
from benchmarks.scheduling.policies import POLICIES, Setup
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.simulation.calibration import Calibration
from tests.support.benchmarks.stage import HARDWARE, LATENCY, THROUGHPUT
from tests.support.scheduler.kv_runner import KvRunner, expected_output
from tests.support.scheduler.planner_world import job

BLOCKS, HOST_SLOTS = 12, 12


def found(simulated: tuple[float, float, float], spread: float = 0.0) -> Found:
    """Real means of 100, 200 and 300 ms in two runs each, and what was simulated."""
    real = {name: 100.0 * (place + 1) for place, name in enumerate(NAMES)}
    return Found(
        real={name: [Latency(*(ms * part,) * 3) for part in (1 - spread, 1 + spread)] for name, ms in real.items()},
        simulated={name: Latency(*(ms,) * 3) for name, ms in zip(NAMES, simulated, strict=True)},
        calibration=Calibration(),
    )


def test_an_error_is_the_mean_distance_from_each_run() -> None:
    assert error([100.0, 200.0], 150.0) == pytest.approx((0.5 + 0.25) / 2)


def test_runs_that_differ_raise_the_bar() -> None:
    assert repeat_error([90.0, 110.0]) == pytest.approx(0.2)
    assert bar([90.0, 110.0]) == pytest.approx(0.3)
    assert bar([100.0, 100.0]) == 0.1


def test_every_policy_must_be_predicted_in_every_figure() -> None:
    good, bad = lines(found((105.0, 190.0, 310.0))), lines(found((105.0, 190.0, 360.0)))

    assert [line.met for line in good] == [True, True, True, True]
    assert [line.met for line in bad] == [False, False, False, True]
    assert [line.value for line in bad] == [0.2, 0.2, 0.2, 1.0]


def test_where_reality_differs_from_itself_more_is_forgiven() -> None:
    assert all(line.met for line in lines(found((100.0, 200.0, 360.0), spread=0.1)))


def test_policies_must_be_in_the_same_order() -> None:
    [*_, ranking] = lines(found((205.0, 195.0, 300.0)))

    assert (ranking.value, ranking.met) == (0.0, False)


def test_calibration_and_test_ask_for_different_things() -> None:
    assert asked(1, 8.0) == asked(1, 8.0) != asked(2, 8.0)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "clairvoyant"])  # which holds no KV
def test_a_policy_with_filled_rows_runs_a_model_that_sees_what_it_should(name: str) -> None:
    jobs = [
        job(
            f"f{number}",
            (LATENCY, THROUGHPUT)[number % 2],
            prompt=3 + 2 * number,
            max_tokens=10,
            tenant=f"t{number % 3}",
        )
        for number in range(8)
    ]
    runner = KvRunner(blocks=BLOCKS, block_size=4, host_slots=HOST_SLOTS, max_sequences=4, max_step_tokens=16)
    setup = Setup(
        hardware=HARDWARE,
        blocks=BLOCKS,
        block_size=4,
        host_slots=HOST_SLOTS,
        max_sequences=4,
        max_step_tokens=16,
        output_tokens=lambda job_id: 10,
        fills_rows=True,
    )
    policy = POLICIES[name](setup)
    for one in jobs:
        policy.add(Lease(job=one, epoch=1, arrived_ms_ago=0.0), 0.0)

    outputs: dict[SeqId, list[int]] = {SeqId(one.job_id, 0): [] for one in jobs}
    for step in range(1, 400):
        outcome = policy.apply(runner.run(policy.plan(10.0 * step)), 10.0 * step)
        for produced in outcome.produced:
            outputs[produced.seq].append(produced.token_id)

    assert not policy.has_work
    assert outputs == {SeqId(one.job_id, 0): expected_output(one, 0) for one in jobs}
    assert (policy.blocks_free, policy.host_slots_free) == (BLOCKS, HOST_SLOTS)
    assert not any(policy.counts().waiting.values())
