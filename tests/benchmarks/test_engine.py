"""The engine's benchmark: its work, its turns, what it plays inside our engine, its bound, and its verdicts."""

import random
from pathlib import Path

import pytest

from benchmarks.common.line import Line
from benchmarks.common.turns import Answer, Contender, TurnError
from benchmarks.engine import programme as p
from benchmarks.engine.bound import bound, least_slowdown, steps_in_order
from benchmarks.engine.footprint import MIB, Footprint
from benchmarks.engine.lines import alone, footprint, overhead, pressure, scheduling, throughput
from benchmarks.engine.work import demand_tokens, draw_w1, draw_w2, equal, load

WEIGHTS = (10.0, 0.0, 0.0, 0.0, 0.0)


def answers(*seconds: float, **more: object) -> list[Answer]:
    return [{"seconds": one, "tokens": 100, **more} for one in seconds]


def by_name(found: list[Line]) -> dict[str, Line]:
    return {line.name: line for line in found}


@pytest.mark.parametrize(("name", "draw"), [("w1", draw_w1), ("w2", draw_w2)])
def test_the_token_files_are_what_the_seed_gives(name: str, draw: object) -> None:
    assert callable(draw)
    assert [list(request) for request in load(name)] == [list(request) for request in draw(random.Random(2026))]


def test_the_work_is_as_large_as_the_issue_says() -> None:
    prompts, outputs = ([size(one) for one in load("w1")] for size in (lambda one: len(one[0]), lambda one: one[1]))

    assert len(prompts) == 128
    assert 90 <= sorted(prompts)[64] <= 110
    assert 700 <= sorted(prompts)[126] <= 900
    assert max(outputs) <= 512
    assert {len(prompt) for prompt, _ in load("w2")} == {128}


def test_demand_counts_whole_blocks() -> None:
    assert demand_tokens([([1] * 10, 6), ([1], 16)]) == 16 + 32


def test_a_process_serves_turn_by_turn_and_says_what_it_is_made_of(tmp_path: Path) -> None:
    with Contender("echo", "tests.support.benchmarks.echo", {"less": 0}, tmp_path / "log") as echo:
        assert echo.serve(equal(2, 3, 4))["tokens"] == 8
        assert echo.serve(equal(1, 3, 1), twice=True)["order"] == ["requests", "twice"]

        assert set(echo.versions) == {"pytest"}


def test_an_engine_that_makes_too_few_tokens_has_no_figure(tmp_path: Path) -> None:
    with (
        Contender("echo", "tests.support.benchmarks.echo", {"less": 1}, tmp_path / "log") as echo,
        pytest.raises(TurnError, match="echo made 7 tokens of 8"),
    ):
        echo.serve(equal(2, 3, 4))


def test_an_engine_that_breaks_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        Contender("echo", "tests.support.benchmarks.echo", {}, tmp_path / "log") as echo,
        pytest.raises(TurnError, match=r"(?s)echo ended: .*KeyError: 'less'"),
    ):
        echo.serve(equal(2, 3, 4))


def test_all_take_turns_and_another_begins_each_round(tmp_path: Path) -> None:
    entries = [p.Entry("a", "echo"), p.Entry("b", "echo", {"twice": True})]
    turns: list[str] = []
    with Contender("echo", "tests.support.benchmarks.echo", {"less": 0}, tmp_path / "log") as echo:
        results = p.take_turns({"echo": echo}, [p.Load("L", equal(1, 2, 3), entries, repeats=3)], 2, turns.append)

    assert turns == ["L: a", "L: b", "L: b", "L: a"]
    assert [len(each) for each in results.values()] == [2, 2]
    assert p.rates(results, "L", "b")[0] > 0


def test_who_is_absent_takes_no_part_and_quick_leaves_out_what_takes_long(tmp_path: Path) -> None:
    ours = {p.OURS: Contender(p.OURS, "tests.support.benchmarks.echo", {}, tmp_path / "log")}

    assert {entry.contender for one in p.loads(ours, quick=False) for entry in one.entries} == {p.OURS}
    assert [one.name for one in p.loads(ours, quick=True)] == [p.FIRST, p.ALONE, p.PRESSURE]


def test_transformers_may_serve_the_first_requests_only_with_ours_beside_it(tmp_path: Path) -> None:
    present = {
        name: Contender(name, "tests.support.benchmarks.echo", {}, tmp_path / name) for name in (p.OURS, p.PLAIN)
    }

    cut = {one.name: one for one in p.loads(present, quick=False, plain_requests=100)}

    assert cut["first 100 of W1"].requests == load("w1")[:100]
    assert [entry.name for entry in cut["first 100 of W1"].entries] == [p.OURS, p.CONTINUOUS, p.STATIC_32]
    assert [entry.name for entry in cut[p.W1].entries] == [p.OURS]
    assert cut[p.W1].requests == load("w1")
    assert {p.STATIC_16, p.OURS} <= {entry.name for entry in cut[p.W2].entries}, "64 requests, all of W2"
    assert len(p.loads(present, quick=False)) == len(cut) - 1


def test_where_a_step_costs_the_same_the_bound_is_that_of_the_steps() -> None:
    found = bound([([1] * 10, tokens) for tokens in (40, 10, 40, 10)], 2, 100, 512, WEIGHTS)

    held = 2 * (400 + 820) + 2 * (100 + 55)
    assert found.steps == pytest.approx((40 + 40) / max(40, held / 100))
    assert found.time == pytest.approx(found.steps)


def test_what_every_schedule_pays_brings_the_bound_down() -> None:
    found = bound([([1] * 10, tokens) for tokens in (40, 10, 40, 10)], 2, 100, 512, (10.0, 1.0, 1.0, 0.1, 0.01))

    assert 1.0 < found.in_order <= found.time < found.steps


def test_ratios_count_by_their_worse_end() -> None:
    results = {
        (p.W1, p.OURS): answers(1.0, 1.0),
        (p.W1, p.VLLM): answers(2.0, 2.0),
        (p.W2, p.OURS): answers(1.0, 2.0),
        (p.W2, p.VLLM): answers(2.0, 2.2),
    }

    found = by_name(throughput(results))

    assert found["W1 output tokens/s, times those of vLLM CPU"].value == pytest.approx(2.0)
    assert found["W1 output tokens/s, times those of vLLM CPU"].met
    assert found["W2 output tokens/s, times those of vLLM CPU"].met is False
    assert found["W1 output tokens/s, times those of OpenVINO GenAI"].met is None


def test_transformers_is_compared_on_the_requests_that_it_served() -> None:
    results = {(p.W1, p.OURS): answers(0.1), ("first 24 of W1", p.OURS): answers(1.0)}
    results["first 24 of W1", p.CONTINUOUS] = answers(9.0)

    line = by_name(throughput(results, 24))["first 24 of W1 output tokens/s, times those of transformers, continuous"]

    assert line.value == pytest.approx(9.0)
    assert (line.target, line.met) == (8.0, True)
    assert "both served the first 24 of W1" in line.how


def test_paged_scheduling_is_held_against_the_bound_and_the_slowest_ratio_of_latencies() -> None:
    results = {
        (p.W2, p.IN_STATIC): answers(30.0),
        (p.W2, p.IN_PAGED): answers(10.0, step_weights=WEIGHTS),
    }
    latencies = {
        0.5: {p.IN_STATIC: [[2.0] * 10], p.IN_RESERVE: [[1.0] * 10], p.IN_PAGED: [[1.5] * 10]},
        1.0: {p.IN_STATIC: [[9.0] * 10], p.IN_RESERVE: [[9.0] * 10], p.IN_PAGED: [[1.0] * 10]},
    }

    share, p50, _ = scheduling(results, latencies)

    assert share.value == pytest.approx(
        3.0 / bound(load("w2"), p.SLOTS, p.EQUAL_KV_TOKENS, p.STEP_TOKENS, WEIGHTS).time
    )
    assert (p50.value, p50.met) == (1.5, False)
    assert [line.met for line in scheduling({}, {})] == [None] * 3


def test_in_order_of_arrival_little_kv_costs_steps() -> None:
    requests = [([1] * 10, 10)] * 4

    assert steps_in_order(requests, 10_000, 512) == 10
    assert steps_in_order(requests, 20, 512, block_size=1) == 40
    assert steps_in_order(requests, 32, 512) == 28, (
        "two at a time while a block each suffices, which is six steps of ten"
    )
    assert steps_in_order(requests, 10_000, 11) > 10
    assert least_slowdown(requests, 32, 512, (10.0, 0.0, 0.0, 0.0, 0.0)) == pytest.approx(10 / 28)


def test_the_roofline_is_weights_over_bandwidth_and_the_first_token_is_taken_off() -> None:
    memory = {"weight_bytes": 300e6, "bytes_per_s": 20e9}
    results = {(p.FIRST, p.OURS): answers(0.5), (p.ALONE, p.OURS): answers(0.5 + 64 * 0.02, **memory)}

    first, share = alone(results)

    assert first.met is None
    assert share.value == pytest.approx(0.015 / 0.02)
    assert share.met


def test_overhead_and_pressure_have_their_verdicts() -> None:
    results = {
        (p.PRESSURE, p.QUARTER): answers(10.0, preemptions=3, step_weights=WEIGHTS),
        (p.PRESSURE, p.AMPLE): answers(9.0, preemptions=0),
    }

    forced = [{"costs": [["swap", 0.8], ["recompute", 2.0], ["swap", 1.3]]}, {"costs": [["swap", 1.0]]}]

    (share,) = overhead([{"share": 0.02, "step_ms": 50.0}])
    little, swap, recompute, same = pressure(results, p.pressure([([1] * 8, 64)] * 4), forced, 0)

    assert share.met
    assert (little.value, little.met) == (0.9, False)
    assert swap.value == pytest.approx(0.2)
    assert "always full" in little.how
    assert (swap.met, recompute.value, recompute.met) == (True, 1.0, False)
    assert same.met


def test_memory_counts_beyond_imports_weights_and_pool_and_growth_only_after_many_requests() -> None:
    few, many = (Footprint((8.0, 9.0, 12.0), 300 * MIB, 800 * MIB, 20 * MIB, requests) for requests in (300, 100_000))

    beyond, start, growth = footprint(few, 250 * MIB)

    assert (beyond.value, beyond.met, start.met, growth.met) == (250.0, True, True, None)
    assert start.value == 9.0
    assert footprint(many, 250 * MIB)[-1].met is False
