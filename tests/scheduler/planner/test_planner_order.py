"""The one ranked list: lanes, tenants, deadlines, who waits and why, and that nobody waits for ever."""

from collections import Counter
from dataclasses import replace

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.lane_index import NEWCOMER_PART
from fairlane.scheduler.planner.step_budget import STRETCH
from fairlane.scheduler.planner.steps import SeqId, StepFeatures
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome, Preempted
from tests.support.scheduler.kv_runner import expected_output
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

# Order.


def test_the_latency_lane_comes_first_whoever_came_first() -> None:
    world = World(max_sequences=1)
    world.add(job("batch"), arrived_ms_ago=5_000.0)
    world.add(job("chat", LATENCY))

    world.step()

    assert world.rows() == ["chat"]


def test_within_a_lane_the_earlier_deadline_comes_first() -> None:
    world = World(max_sequences=1)
    world.add(job("relaxed", LATENCY))
    world.add(job("urgent", LATENCY, hard_ttft_ms=200.0))

    world.step()

    assert world.rows() == ["urgent"]


def test_a_guaranteed_request_comes_before_best_effort() -> None:
    world = World(max_sequences=1)
    world.add(job("best-effort", LATENCY, hard_ttft_ms=200.0))
    world.add(job("guaranteed", LATENCY, hard_ttft_ms=900.0, guaranteed=True))

    world.step()

    assert world.rows() == ["guaranteed"]


@pytest.mark.parametrize(("end_ms", "ttft_ms"), [(9_000.0, None), (None, 4_000.0)])
def test_what_the_lower_lane_was_guaranteed_is_kept_whatever_comes_above(
    end_ms: float | None, ttft_ms: float | None
) -> None:
    lanes = {**DEFAULT_LANES, THROUGHPUT: replace(DEFAULT_LANES[THROUGHPUT], share_floor=0.0)}
    world = World(max_sequences=2, blocks=64, lanes=lanes)
    for number in range(200):
        world.add(job(f"chat-{number:03}", LATENCY, max_tokens=20, tenant=f"t{number % 4}"))
    world.step()
    world.add(job("batch", max_tokens=8, tenant="b", guaranteed=True, deadline_ms=end_ms, hard_ttft_ms=ttft_ms))

    while "batch" not in world.ended:
        world.step()

    assert world.ended["batch"].outcome is Outcome.FINISHED
    assert sum(name.startswith("chat") for name in world.ended) < 200, "the flood is here still"


def test_newcomers_go_before_promised_work_as_far_as_it_has_the_time() -> None:
    """Promises that are far off would else keep others out for as long as they are kept early."""
    world = World(blocks=4_000, max_sequences=64, max_step_tokens=64, host_slots=0)
    for number in range(40):
        promised = job(
            f"p{number:02}", prompt=40, max_tokens=1, guaranteed=True, hard_ttft_ms=60_000.0, tenant="greedy"
        )
        world.add(promised)
    world.step()
    for number in range(20):
        world.add(job(f"n{number:02}", prompt=40, max_tokens=1, tenant=f"new{number:02}"))

    computed = Counter[bool]()
    while any(job_id.startswith("p") for job_id in world.planner.job_ids()):
        for row in world.step()[0].rows:
            computed[row.seq.job_id.startswith("n")] += len(row.token_ids)

    assert 0 < computed[True] <= NEWCOMER_PART * computed[False] + 64
    assert "n00" in world.ended


def test_equal_requests_run_in_the_order_of_their_ids() -> None:
    world = World(max_sequences=1)
    for name in ("c", "a", "b"):
        world.add(job(name, max_tokens=1))

    world.finish()

    assert list(world.ended) == ["a", "b", "c"]


def test_running_work_does_not_trade_places_as_deadlines_come_near() -> None:
    world = World(max_sequences=1)
    world.add(job("first", max_tokens=12))
    world.step()
    world.add(job("second", max_tokens=12), arrived_ms_ago=590_000.0)

    world.finish()

    assert list(world.ended) == ["first", "second"]


def test_work_that_waited_half_its_lanes_longest_wait_is_promoted() -> None:
    world = World(max_sequences=1)
    world.add(job("old-batch"), arrived_ms_ago=0.6 * DEFAULT_LANES[THROUGHPUT].max_wait_ms)
    world.add(job("chat", LATENCY))

    world.step()

    assert world.rows() == ["old-batch"]


def test_work_taken_over_from_another_worker_comes_before_fresh_work() -> None:
    world = World(max_sequences=1)
    one = job("z-lost", max_tokens=6)
    world.add(job("a-fresh"))
    world.add(one, generated=(tuple(expected_output(one, 0)[:2]),))

    world.step()

    assert world.rows() == ["z-lost"]


# Tenants.


def test_a_flood_of_one_tenant_does_not_keep_another_from_its_share() -> None:
    world = World(blocks=64, max_sequences=2, max_step_tokens=32, window=40.0)
    for number in range(40):
        world.add(job(f"flood-{number:02}", tenant="flood", prompt=4, max_tokens=8))
    for number in range(10):
        world.add(job(f"small-{number}", tenant="small", prompt=4, max_tokens=8))

    served = {"flood": 0.0, "small": 0.0}
    gaps = []
    while sum(name.startswith("small") for name in world.ended) < 10:
        _, outcome = world.step()
        for job_id, tokens in outcome.charges.items():
            served[job_id.split("-")[0]] += tokens
        gaps.append(abs(served["flood"] - served["small"]))

    most_in_a_step = 32 + 2 * 2
    assert max(gaps) <= 2 * (40 + most_in_a_step)
    world.finish()


def test_a_newcomer_does_not_collect_credit_for_the_time_it_was_away() -> None:
    world = World(blocks=64, max_sequences=1, max_step_tokens=32, window=20.0)
    for number in range(30):
        world.add(job(f"steady-{number:02}", tenant="steady", prompt=4, max_tokens=4))
    for _ in range(60):
        world.step()
    for number in range(30):
        world.add(job(f"new-{number:02}", tenant="new", prompt=4, max_tokens=4))
    before = len(world.ended)
    while len(world.ended) < before + 10:
        world.step()

    newest = [name.split("-")[0] for name in list(world.ended)[before:]]
    assert 3 <= newest.count("steady") <= 7


def test_a_batch_flood_does_not_count_against_its_owners_chat() -> None:
    world = World(blocks=64, max_sequences=1, window=10.0)
    world.add(job("batch", tenant="acme", max_tokens=30))
    for _ in range(20):
        world.step()
    world.add(job("a-chat", LATENCY, tenant="acme", max_tokens=1))
    world.add(job("b-chat", LATENCY, tenant="globex", max_tokens=1))

    world.step()

    assert world.rows() == ["a-chat"]


# Who waits, and why.


def test_every_step_says_why_others_wait() -> None:
    world = World(blocks=12, block_size=4, max_sequences=3, max_step_tokens=64)
    world.add(job("paused", LATENCY, granted_until=0))
    world.add(job("runs", LATENCY, prompt=18, n=2, max_tokens=6))
    world.step()
    world.add(job("large", LATENCY, prompt=24))
    world.step()
    world.add(job("urgent", LATENCY, prompt=4, hard_ttft_ms=200.0, guaranteed=True, max_tokens=3, n=2))
    world.step()

    assert [plan.waits for plan in world.plans] == [
        {"grant": 1, "prefix": 1},
        {"grant": 1, "blocks": 1},
        {"grant": 1, "slots": 2},
    ]


def test_a_spent_token_budget_is_a_reason() -> None:
    world = World(max_step_tokens=8)
    world.add(job("a", prompt=20))
    world.add(job("b", prompt=20))

    world.step()

    assert world.rows() == ["a"]
    assert world.plans[-1].waits == {"tokens": 1}


def test_a_small_request_fills_the_gap_before_a_large_one_if_it_is_over_in_time() -> None:
    world = World(blocks=12, block_size=4, max_step_tokens=64)
    world.add(job("a-runs", prompt=20, max_tokens=12))
    world.step()
    world.add(job("b-large", prompt=32, max_tokens=4))
    world.add(job("c-long", prompt=4, max_tokens=20))
    world.add(job("d-short", prompt=4, max_tokens=4))

    world.step()

    assert world.rows() == ["a-runs", "d-short"]
    assert world.plans[-1].waits == {"blocks": 1, "head": 1}


def test_a_large_request_is_not_starved_by_a_stream_of_small_ones() -> None:
    world = World(blocks=12, block_size=4, max_step_tokens=64)
    world.add(job("a-runs", prompt=20, max_tokens=12))
    world.step()
    world.add(job("b-large", prompt=36, max_tokens=4))
    for number in range(100):
        if "b-large" in world.ended:
            break
        world.add(job(f"small-{number:03}", prompt=4, max_tokens=3))
        world.step()

    assert len(world.plans) < 20
    world.finish()


def test_fresh_work_leaves_running_work_room_to_grow() -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64)
    world.add(job("a", prompt=12, max_tokens=8))
    world.step()
    world.add(job("b", prompt=16, max_tokens=8))

    world.finish()

    assert world.events(Preempted) == []


# Steps.


def test_a_lower_lane_keeps_its_share_of_rows_while_it_runs() -> None:
    lanes = {**DEFAULT_LANES, THROUGHPUT: replace(DEFAULT_LANES[THROUGHPUT], share_floor=0.25)}
    world = World(blocks=64, max_sequences=4, max_step_tokens=64, lanes=lanes)
    for number in range(4):
        world.add(job(f"batch-{number}", max_tokens=20))
    world.step()
    for number in range(6):
        world.add(job(f"chat-{number}", LATENCY, max_tokens=6))

    for _ in range(6):
        world.step()
        assert sum(name.startswith("batch") for name in world.rows()) == 1

    world.finish()


def test_prefill_is_cut_to_the_pace_that_chats_were_promised() -> None:
    costs = CostModel()
    for tokens in (2, 50, 100, 200) * 20:
        costs.observe(StepFeatures(2, tokens, 0, 0), 10.0 + 2.0 * tokens, 0, 0.0)
    world = World(blocks=400, max_step_tokens=200, costs=costs)
    world.add(job("batch", prompt=1_000))
    world.step()
    assert 60 <= len(world.plans[-1].rows[0].token_ids) < 200, "nobody is in a hurry, but somebody might come"
    world.add(job("chat", LATENCY, max_tokens=12))
    world.step()

    plan, _ = world.step()

    chunk = next(len(row.token_ids) for row in plan.rows if row.seq == SeqId("batch", 0))
    assert chunk >= 200 // 10
    pace_ms = DEFAULT_LANES[LATENCY].tpot_ms
    assert 0.5 * pace_ms <= 10.0 + 2.0 * chunk <= STRETCH * pace_ms, "with a margin for the model's error"


def test_beside_a_pace_a_lower_lane_prefills_no_more_than_its_share_of_the_step() -> None:
    costs = CostModel()
    for tokens in (2, 50, 100, 200) * 20:
        costs.observe(StepFeatures(2, tokens, 0, 0), 10.0 + 0.5 * tokens, 0, 0.0)
    world = World(blocks=8_000, max_sequences=8, max_step_tokens=6_400, costs=costs)
    world.add(job("chat", LATENCY, max_tokens=40))
    world.step()
    world.add(job("flood", LATENCY, prompt=20_000))
    world.add(job("batch", prompt=1_000))

    for _ in range(4):
        plan, _ = world.step()
        chunks = {row.seq.job_id: len(row.token_ids) for row in plan.rows}
        assert chunks["flood"] > 100, "which fills the time"
        in_time = STRETCH * DEFAULT_LANES[LATENCY].tpot_ms / 0.5
        assert 0.8 <= chunks["batch"] / (DEFAULT_LANES[THROUGHPUT].share_floor * in_time) <= 1.0


def test_decodes_of_a_lower_lane_step_aside_where_they_would_hold_up_chats() -> None:
    costs = CostModel()
    for rows in (1, 4, 8, 16) * 20:
        costs.observe(StepFeatures(rows, 0, 0, 0), 20.0 + 10.0 * rows, 0, 0.0)
    world = World(blocks=400, max_sequences=16, max_step_tokens=200, costs=costs)
    for number in range(12):
        world.add(job(f"batch-{number}", max_tokens=40))
    world.step()
    world.step()
    assert len(world.rows()) == 12, "nobody is in a hurry"
    world.add(job("chat", LATENCY, max_tokens=8))
    world.step()

    world.step()

    pace_ms = DEFAULT_LANES[LATENCY].tpot_ms
    assert "chat" in world.rows()
    assert 0.5 * pace_ms <= world.plans[-1].predicted_ms <= STRETCH * pace_ms, "with a margin for the model's error"
    assert "pace" in world.plans[-1].waits
    world.finish()
