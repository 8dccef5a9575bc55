"""What every policy to compare with must keep, on the same small and crowded worker."""

import math
import re
from collections.abc import Callable

import pytest

from benchmarks.scheduling.policies import POLICIES, Setup
from benchmarks.scheduling.policies.bands import Bands
from benchmarks.scheduling.policies.clairvoyant import Clairvoyant
from benchmarks.scheduling.policies.fcfs_sarathi import FcfsSarathi
from benchmarks.scheduling.policies.fcfs_vllm import FcfsVllm
from benchmarks.scheduling.policies.hygen import HyGen
from benchmarks.scheduling.policies.mlfq import Mlfq
from benchmarks.scheduling.policies.niyama import Niyama
from benchmarks.scheduling.policies.priority_sglang import PrioritySglang
from benchmarks.scheduling.policies.setup import prefill_within
from benchmarks.scheduling.policies.vtc import Vtc
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import Simulation
from tests.support.benchmarks.stage import HARDWARE, Stage, crowd, request

every_policy = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("bands", "vtc") else pytest.mark.thorough) for name in POLICIES]
)


def stage(name: str, host_slots: int = 20) -> Stage:
    return Stage(crowd(seed=1), host_slots=host_slots, holds_kv=name != "clairvoyant")


@every_policy
@pytest.mark.parametrize("host_slots", [0, 20, 200])
def test_every_request_ends_and_no_block_is_lost(name: str, host_slots: int) -> None:
    crowded = stage(name, host_slots=host_slots)

    policy = crowded.play(POLICIES[name])

    assert not policy.has_work
    assert policy.capacity().kv_tokens == dict.fromkeys(DEFAULT_LANES, crowded.blocks * crowded.block_size)
    assert policy.capacity().sequences == dict.fromkeys(DEFAULT_LANES, crowded.max_sequences)
    for record in crowded.records.values():
        finished = record.outcome is Outcome.FINISHED
        assert finished or name == "clairvoyant"
        assert record.tokens == record.arrival.output_tokens or not finished


@every_policy
def test_the_same_input_gives_the_same_records(name: str) -> None:
    once, again = stage(name), stage(name)

    once.play(POLICIES[name])
    again.play(POLICIES[name])

    assert once.records == again.records
    assert once.steps == again.steps


@every_policy
def test_service_is_charged_once_however_often_it_is_recomputed(name: str) -> None:
    crowded = stage(name)

    crowded.play(POLICIES[name])

    for job_id, record in crowded.records.items():
        if record.outcome is Outcome.FINISHED:
            charged = sum(step.outcome.charges.get(job_id, 0.0) for step in crowded.steps)
            assert charged == record.arrival.prompt_tokens + 2 * record.tokens


@every_policy
def test_several_workers_share_the_global_queue(name: str) -> None:
    arrivals = crowd(2)
    setup = Stage(arrivals).setup()
    policies = [POLICIES[name](setup) for _ in range(3)]

    records = Simulation(arrivals, policies, HARDWARE, queue=LaneQueue(dict(DEFAULT_LANES))).run()

    assert all(record.outcome is not None for record in records.values())
    assert sum(record.outcome is Outcome.FINISHED for record in records.values()) > len(arrivals) / 2


@every_policy
def test_what_can_never_fit_fails_and_hurts_nobody(name: str) -> None:
    if name == "clairvoyant":
        pytest.skip("its KV has no end")
    crowded = Stage([request("huge", prompt=400), *crowd(1, count=5)])

    crowded.play(POLICIES[name])

    assert crowded.records.pop("huge").outcome is Outcome.FAILED
    assert {record.outcome for record in crowded.records.values()} == {Outcome.FINISHED}


def setup(blocks: int = 40, max_step_tokens: int = 8192) -> Setup:
    return Setup(hardware=HARDWARE, blocks=blocks, max_step_tokens=max_step_tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: setup(blocks=0), "blocks must be between 1 and inf, not 0"),
        (lambda: setup(max_step_tokens=8), "max_step_tokens must be between 256 and inf, not 8"),
        (lambda: FcfsVllm(setup(), step_tokens=0), "step_tokens must be between 1 and 8192, not 0"),
        (lambda: FcfsSarathi(setup(), chunk_tokens=9000), "chunk_tokens must be between 1 and 8192, not 9000"),
        (lambda: PrioritySglang(setup(), threshold=-1), "threshold must be between 0 and inf, not -1"),
        (lambda: Mlfq(setup(), base_quantum_ms=math.nan), "base_quantum_ms must be between 0.001 and inf, not nan"),
        (lambda: Mlfq(setup(), starvation_period_steps=0), "starvation_period_steps must be between 1 and inf, not 0"),
        (lambda: Vtc(setup(), decode_steps=0), "decode_steps must be between 1 and inf, not 0"),
        (lambda: Vtc(setup(), oracle=True), "vtc with an oracle needs output_tokens, not None"),
        (lambda: Bands(setup(), kv_limit=1.5), "kv_limit must be between 0.01 and 1.0, not 1.5"),
        (lambda: Niyama(setup(), alpha_ms=-1.0), "alpha_ms must be between 0.0 and 1000000.0, not -1.0"),
        (lambda: Niyama(setup(), safety=0.5), "safety must be between 1.0 and 100.0, not 0.5"),
        (lambda: HyGen(setup(), budget_ms=-1.0), "budget_ms must be between 0.0 and inf, not -1.0"),
        (lambda: Clairvoyant(setup()), "clairvoyant needs output_tokens, not None"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("context", [0, 100])
def test_a_chunk_is_as_long_as_the_time_allows_and_no_longer(context: int) -> None:
    count = prefill_within(HARDWARE, 5.0, context, most=1000)

    def added_ms(tokens: int) -> float:
        return HARDWARE.step_ms(StepFeatures(1, tokens, 0, tokens * (context + tokens))) - HARDWARE.step[0]

    assert added_ms(count) <= 5.0 < added_ms(count + 1)
    assert prefill_within(HARDWARE, 0.05, context, most=1000) == 0
