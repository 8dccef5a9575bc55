"""What our lanes inside vLLM's real scheduler do, scenario by scenario.

`python -m tests.worker.vllm.scenarios [NAME ...]`, by the Python of an environment that has vLLM; nothing else of the
tests need be there. Each scenario prints one line, its name and what went wrong, if anything.
"""

import itertools
import json
import logging
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import vllm
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request, RequestStatus

from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.planner.costs import CostModel
from fairlane.worker.vllm import UnsupportedVllm, lane_scheduler
from fairlane.worker.vllm.lane_policy import LanePolicy
from fairlane.worker.vllm.lane_scheduler import LaneScheduler
from tests.worker.vllm.stepped import BLOCK, FAR_MS, MODEL, NAME, SLOTS, Known, Stepped, flooded, high, low


def an_upper_lane_takes_a_slot_in_the_next_step(config: VllmConfig) -> None:
    engine = flooded(Stepped(config))
    assert len(engine.running()) == SLOTS
    engine.add("high", high())
    assert engine.step().get("high") == 20
    assert len(engine.running()) == SLOTS
    engine.run_out()


def as_many_as_the_floor_leaves_take_slots_at_once(config: VllmConfig) -> None:
    engine = flooded(Stepped(config))
    for number in range(SLOTS):
        engine.add(f"high{number}", high(), prompt=10)
    planned = engine.step()
    assert sum(name.startswith("high") for name in planned) == SLOTS - 1, planned
    assert sum(name.startswith("low") for name in engine.running()) == 1
    engine.run_out()


def without_a_floor_all_slots_are_taken(config: VllmConfig) -> None:
    engine = flooded(Stepped(config, lanes={"throughput": {"share_floor": 0.0}}))
    for number in range(SLOTS):
        engine.add(f"high{number}", high(), prompt=10)
    engine.step()
    assert all(name.startswith("high") for name in engine.running())
    engine.run_out()


def a_lane_below_its_floor_gets_the_next_free_slot(config: VllmConfig) -> None:
    engine = Stepped(config)
    names = (f"high{number}" for number in itertools.count())
    for _ in range(SLOTS * 2):
        engine.add(next(names), high(), tokens=5)
    engine.step()
    engine.add("low", low(), tokens=5)
    for _ in range(30):  # a lane above that never ends
        while len(engine.scheduler.waiting) < 3 * SLOTS:
            engine.add(next(names), high(), tokens=5)
        engine.step()
        if len(engine.outputs["low"]) == 5:
            break
    else:
        raise AssertionError("the lower lane starved")
    engine.run_out()


def an_upper_lane_takes_blocks(config: VllmConfig) -> None:
    engine = Stepped(config, blocks=60, tokens=1_024)
    for number in range(4):  # 13 blocks each, of 59
        engine.add(f"low{number}", low(), prompt=200, tokens=40)
    engine.steps(3)
    assert len(engine.running()) == 4
    engine.add("high", high(), prompt=300, tokens=20)
    assert engine.step().get("high"), "it was not admitted at once"
    assert len(engine.running()) == 4, "more yielded than was needed"
    engine.run_out()


def nobody_yields_to_what_could_not_start_even_so(config: VllmConfig) -> None:
    engine = Stepped(config, blocks=60, tokens=1_024)
    engine.add("huge", high(), prompt=700, tokens=20)
    engine.steps(2)
    for number in range(2):
        engine.add(f"low{number}", low(), prompt=60, tokens=20)
    engine.steps(2)
    engine.add("high", high(), prompt=600, tokens=20)
    engine.steps(2)
    assert {"low0", "low1", "huge"} == set(engine.running())
    assert engine.requests["low0"].num_preemptions == 0
    engine.run_out()


def equals_never_take_from_each_other(config: VllmConfig) -> None:
    engine = Stepped(config)
    for number in range(20):
        engine.add(f"high{number}", high(FAR_MS - number))
    engine.run_out()
    assert not any(one.num_preemptions for one in engine.requests.values())


def the_least_computed_yields(config: VllmConfig) -> None:
    engine = Stepped(config, tokens=2_048)
    for number in range(SLOTS):
        engine.add(f"low{number}", low(), prompt=200 if number != 3 else 30, tokens=50)
    engine.steps(3)
    engine.scheduler._rank_ms = 0.0  # by the clock it may not be due yet
    engine.add("high", high())
    engine.step()
    assert [name for name, one in engine.requests.items() if one.num_preemptions] == ["low3"]
    engine.run_out()


def lower_prompts_are_cut_to_the_upper_lanes_pace(config: VllmConfig) -> None:
    engine = Stepped(config, tokens=2_048)
    engine.scheduler._costs = Known(10.0, 0.5)
    engine.add("high", high(), tokens=60)
    engine.steps(3)
    engine.add("low", low(), prompt=1_000, tokens=5)
    planned = engine.step()
    assert planned["high"] == 1
    assert 32 <= planned["low"] <= (60.0 - 10.0) / 0.5, planned
    engine.add("high2", high(), prompt=1_000, tokens=5)
    assert engine.step()["high2"] == 1_000, "the upper lane's prompt was cut"
    engine.run_out()


def a_prompt_that_its_sender_meters_is_not_cut(config: VllmConfig) -> None:
    engine = Stepped(config, tokens=2_048)
    engine.scheduler._costs = Known(10.0, 0.5)
    engine.add("high", high(), tokens=60)
    engine.steps(3)
    engine.add("low", low(), prompt=1_000, tokens=5, is_paced=True)
    assert engine.step()["low"] == 1_000
    engine.run_out()


def prompts_behind_one_without_tokens_cost_no_lookups(config: VllmConfig) -> None:
    engine = Stepped(config, tokens=2_048)
    engine.scheduler._costs = Known(10.0, 0.5)
    engine.add("high", high(), tokens=60)
    engine.steps(3)
    for number in range(50):
        engine.add(f"low{number}", low(), prompt=200, tokens=5)
    cut, lookups = engine.scheduler._cut, list[str]()

    def counted(request: Request, computed: int, tokens: int) -> int:
        lookups.append(request.request_id)
        return cut(request, computed, tokens)

    engine.scheduler.__dict__["_cut"] = counted
    planned = engine.step()
    assert len(planned) > 1, "no lower prompt was computed"
    assert len(lookups) <= len(planned) + 1, lookups
    engine.run_out()


def the_earlier_deadline_starts_first(config: VllmConfig) -> None:
    engine = flooded(Stepped(config), count=SLOTS, tokens=60)
    for number in range(6):
        engine.add(f"high{number}", high(FAR_MS - number), tokens=60)
    engine.add("late", low(FAR_MS + 1.0))
    engine.add("soon", low(FAR_MS - 1_000.0))
    assert [one.request_id for one in engine.scheduler.waiting][-2:] == ["soon", "late"]
    engine.run_out()


def tenants_share_a_lane(config: VllmConfig) -> None:
    engine = Stepped(config)
    for number in range(60):
        engine.add(f"a{number}", low(), tokens=20, tenant="a")
    engine.steps(30)
    for number in range(10):
        engine.add(f"b{number}", low(), tokens=20, tenant="b")
    while not all(len(engine.outputs[f"b{number}"]) == 20 for number in range(10)):
        engine.step()
    unfinished = sum(len(engine.outputs[f"a{number}"]) < 20 for number in range(60))
    assert unfinished > 15, f"the second tenant waited for the first one's flood: {unfinished} left"
    engine.run_out()


def aborts_free_what_they_held(config: VllmConfig) -> None:
    engine = flooded(Stepped(config))
    engine.add("high", high())
    engine.step()
    preempted = [name for name, one in engine.requests.items() if one.num_preemptions]
    for name in (*preempted, "high", engine.running()[0]):
        engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    engine.run_out()


def a_paused_engine_stays_paused(config: VllmConfig) -> None:
    from vllm.v1.core.sched.interface import PauseState

    engine = flooded(Stepped(config))
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    engine.add("high", high())
    engine.steps(3)
    assert not any(one.num_preemptions for one in engine.requests.values())
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run_out()


def a_reset_of_the_prefix_cache_loses_nothing(config: VllmConfig) -> None:
    engine = flooded(Stepped(config))
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    for _ in range(3):
        engine.step()
    engine.run_out()


def whatever_comes_every_stream_is_whole(config: VllmConfig) -> None:
    for seed in range(int(os.environ.get("FAIRLANE_TEST_SCHEDULES", "12"))):
        rng = random.Random(seed)
        floor = {"throughput": {"share_floor": rng.choice([0.0, 0.05, 0.5])}}
        tokens = rng.choice([64, 256, 1_024])
        engine = Stepped(
            config, blocks=rng.choice([64, 120, 400]), depth=rng.choice([1, 2, 2]), lanes=floor, tokens=tokens
        )
        if rng.random() < 0.5:
            engine.scheduler._costs = Known(5.0, rng.choice([0.05, 0.5]))
        for number in range(80):
            due_ms = FAR_MS + rng.randint(-9, 9)
            priority = rng.choice([high(due_ms), low(due_ms), low(due_ms), 0, 7])
            prompt, length = rng.choice([5, 40, 300]), rng.randint(1, 60)
            engine.add(f"r{number}", priority, prompt, length, tenant=rng.choice(["", "a", "b"]))
            for _ in range(rng.choice([0, 0, 1, 3])):
                engine.step()
            if rng.random() < 0.1:
                gone = f"r{rng.randrange(number + 1)}"
                engine.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
        try:
            engine.run_out()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert engine.scheduler._lanes is not None, f"seed {seed}: our policy failed"


@contextmanager
def faulty(holder: object, name: str) -> Iterator[list[str]]:
    """Let a function fail, and collect what is logged."""
    logged: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("made to fail")

    real, handler = getattr(holder, name), Collect(logging.ERROR)
    setattr(holder, name, fail)
    lane_scheduler.log.addHandler(handler)
    try:
        yield logged
    finally:
        lane_scheduler.log.removeHandler(handler)
        setattr(holder, name, real)


class Recorded:
    """A compiled grammar that takes a list of tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.left = [*tokens]

    def accept_tokens(self, _: str, tokens: Sequence[int]) -> bool:
        read, self.left = self.left[: len(tokens)], self.left[len(tokens) :]
        return read == [*tokens]


class Broken:
    """A compiled grammar that fails."""

    def accept_tokens(self, *_: object) -> bool:
        raise ZeroDivisionError("made to fail")


def a_grammar_reads_what_an_earlier_run_has_said(config: VllmConfig) -> None:
    engine = Stepped(config)
    begun, whole = Recorded([18, 19, *range(10)]), Recorded([*range(1_000, 1_010)])
    engine.add("begun", high(), prompt=20, tokens=10, grammar=begun, begun=2)
    engine.add("whole", high(), prompt=20, tokens=10, grammar=whole)
    engine.add("other", high(), grammar=Recorded([18, 77]), begun=2)
    engine.add("broken", high(), grammar=Broken(), begun=2)
    engine.run_out()
    assert begun.left == whole.left == []
    for name in ("other", "broken"):
        assert engine.requests[name].status == RequestStatus.FINISHED_ERROR
        assert not engine.outputs[name]


def a_fault_of_ours_leaves_vllm_its_own_order(config: VllmConfig) -> None:
    methods = ("begin", "arrive", "waiting_rank", "running_rank", "charge", "lane_rank")
    functions = ("choose_yielding", "allowance", "claim_of")
    faults: list[tuple[object, str]] = [(LanePolicy, name) for name in methods]
    faults += [(lane_scheduler, name) for name in functions]
    faults += [(CostModel, "observe")]
    for holder, name in faults:
        engine = flooded(Stepped(config))
        with faulty(holder, name) as logged:
            engine.add("high", high(), prompt=100)
            engine.add("late", low(), prompt=400)
            engine.run_out()
        assert len(logged) <= 1, f"{name}: {logged}"
        failed = engine.scheduler._lanes is None
        assert failed == bool(logged), name
        assert failed or name == "allowance", f"{name} was never called"


def the_class_follows_async_scheduling(config: VllmConfig) -> None:
    assert resolve_obj_by_qualname(NAME) is LaneScheduler
    assert isinstance(Stepped(config, depth=2).scheduler, AsyncScheduler)
    assert not isinstance(Stepped(config, depth=1).scheduler, AsyncScheduler)


def an_unknown_version_is_refused(config: VllmConfig) -> None:
    known, vllm.__version__ = vllm.__version__, "0.99.0"
    try:
        refused = [refusal(lambda: LaneScheduler(config)), refusal(lambda: resolve_obj_by_qualname(NAME))]
    finally:
        vllm.__version__ = known
    assert all("not 0.99.0" in one for one in refused), refused


def an_unknown_setting_is_refused(config: VllmConfig) -> None:
    refused = refusal(lambda: Stepped(config, lanes={"throughput": {"share": 0.1}}))
    assert "lanes.throughput.share: no such setting" in refused, refused


def refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except (UnsupportedVllm, SettingsError) as error:
        return str(error)
    return "it was not refused"


SCENARIOS: list[Callable[[VllmConfig], None]] = [
    an_upper_lane_takes_a_slot_in_the_next_step,
    as_many_as_the_floor_leaves_take_slots_at_once,
    without_a_floor_all_slots_are_taken,
    a_lane_below_its_floor_gets_the_next_free_slot,
    an_upper_lane_takes_blocks,
    nobody_yields_to_what_could_not_start_even_so,
    equals_never_take_from_each_other,
    the_least_computed_yields,
    lower_prompts_are_cut_to_the_upper_lanes_pace,
    a_prompt_that_its_sender_meters_is_not_cut,
    prompts_behind_one_without_tokens_cost_no_lookups,
    the_earlier_deadline_starts_first,
    tenants_share_a_lane,
    aborts_free_what_they_held,
    a_paused_engine_stays_paused,
    a_reset_of_the_prefix_cache_loses_nothing,
    whatever_comes_every_stream_is_whole,
    a_grammar_reads_what_an_earlier_run_has_said,
    a_fault_of_ours_leaves_vllm_its_own_order,
    the_class_follows_async_scheduling,
    an_unknown_version_is_refused,
    an_unknown_setting_is_refused,
]


def engine_config(directory: Path) -> VllmConfig:
    (directory / "config.json").write_text(json.dumps(MODEL))
    return EngineArgs(
        model=str(directory),
        max_num_seqs=SLOTS,
        max_model_len=2048,
        max_num_batched_tokens=2_048,
        block_size=BLOCK,
        scheduling_policy="priority",
        enforce_eager=True,
        skip_tokenizer_init=True,
    ).create_engine_config()


def main() -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    wanted = sys.argv[1:]
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as directory:
        config = engine_config(Path(directory))
        for scenario in SCENARIOS:
            if wanted and scenario.__name__ not in wanted:
                continue
            try:
                scenario(config)
                wrong = None
            except Exception:  # noqa: BLE001 - each scenario is told by itself
                wrong = traceback.format_exc()
            print(json.dumps({"scenario": scenario.__name__, "wrong": wrong}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
