"""Requests by the clock at a real engine, here with the tiny model: the records that a simulation would leave."""

import pytest

from benchmarks.scheduling.lines.fidelity import BLOCKS, HOST_SLOTS, NAMES, asked, policy
from benchmarks.scheduling.lines.world import BLOCK_SIZE
from benchmarks.scheduling.real_runs import Bench, Learner
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.worker.model.reference import TransformersModel

ARRIVALS = [one for one in asked(0, 0.5) if one.output_tokens < 60][:6]


@pytest.mark.parametrize("name", NAMES)
def test_every_request_comes_and_ends_with_all_its_tokens(tiny: TransformersModel, name: str) -> None:
    bench = Bench(tiny, BLOCK_SIZE, BLOCKS, HOST_SLOTS)
    learner = Learner()

    records = bench.play(policy(name, 1_024), ARRIVALS, learner)

    assert list(records) == [arrival.job_id for arrival in ARRIVALS]
    for record in records.values():
        assert record.outcome is Outcome.FINISHED
        assert record.tokens == record.arrival.output_tokens
        assert record.ttft_ms is not None
        assert record.end_ms is not None
        assert 0.0 < record.ttft_ms <= record.end_ms - record.arrival.at_ms
    assert learner.calibration().learnt


def test_an_engine_that_breaks_ends_the_run(tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("fairlane.worker.engine.runner.Runner.run", broken)

    with pytest.raises(MemoryError, match="no more"):
        Bench(tiny, BLOCK_SIZE, BLOCKS, HOST_SLOTS).play(policy(NAMES[0], 1_024), ARRIVALS)
