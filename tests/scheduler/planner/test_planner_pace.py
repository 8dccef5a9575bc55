"""How long a step may take beside chats, and what lower lanes and other tenants have of it."""

import msgspec
import pytest

from fairlane.scheduler.planner.costs import OUTLIER, CostModel, Measurement
from fairlane.scheduler.planner.step_budget import HOLD, PROMPT_PART, STRETCH
from fairlane.scheduler.planner.steps import SeqId, StepFeatures
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Preempted, Resumed
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

PACE_MS = DEFAULT_LANES[LATENCY].tpot_ms


def known_costs(token_ms: float = 2.0) -> CostModel:
    """10 ms a step and so much a prompt token, seen often enough."""
    costs = CostModel()
    for tokens in (2, 50, 100, 200) * 20:
        costs.observe(StepFeatures(2, tokens, 0, 0), 10.0 + token_ms * tokens, 0, 0.0)
    return costs


def paced(job_id: str, *, tpot_ms: float) -> Job:
    """A chat whose tokens are due so far apart."""
    return msgspec.structs.replace(job(job_id, LATENCY, max_tokens=40), tpot_ms=tpot_ms)


def prefilled(world: World, job_id: str) -> int:
    """Prompt tokens of a job in the last step."""
    return sum(len(row.token_ids) for row in world.plans[-1].rows if row.seq.job_id == job_id)


def test_a_prompt_of_the_first_lane_may_use_the_time_that_chats_are_ahead() -> None:
    world = World(blocks=400, max_step_tokens=400, costs=known_costs(token_ms=0.5))
    world.add(paced("chat", tpot_ms=20.0))
    for _ in range(20):
        world.step()
    world.add(job("prompt", LATENCY, prompt=300))
    world.add(job("batch", THROUGHPUT, prompt=300))

    world.step()

    longest_ms = PROMPT_PART * DEFAULT_LANES[LATENCY].ttft_ms
    assert 3.0 * 20.0 < 10.0 + 0.5 * prefilled(world, "prompt") <= longest_ms, "each step of the chat left it 10 ms"


@pytest.mark.parametrize("max_step_tokens", [1_024, 8_192])
def test_beside_long_prompts_of_the_first_lane_a_lower_one_has_its_share_of_what_is_prefilled(
    max_step_tokens: int,
) -> None:
    costs = CostModel()
    shapes = [StepFeatures(*one) for one in ((1, 0, 100, 0), (8, 0, 800, 0), (1, 16, 0, 256), (1, 64, 0, 4_096))]
    costs.start_from([Measurement(one, 8.0 + 0.03 * one.prefill_tokens, 8, 0.5) for one in shapes])
    world = World(blocks=8_000, max_step_tokens=max_step_tokens, costs=costs)
    for number in range(4):
        world.add(job(f"flood-{number}", LATENCY, prompt=8_000))
    world.add(job("batch", THROUGHPUT, prompt=2_000))

    for _ in range(8):
        world.step()
        flood = sum(prefilled(world, f"flood-{number}") for number in range(4))
        assert flood > 600, "more than its pace alone leaves time for"
        assert 0.9 <= prefilled(world, "batch") / (DEFAULT_LANES[THROUGHPUT].share_floor * flood) <= 1.1


def test_a_prompt_of_the_first_lane_leaves_chats_their_pace() -> None:
    world = World(blocks=400, max_step_tokens=64, costs=known_costs())
    world.add(paced("chat", tpot_ms=150.0))
    world.step()
    world.add(job("prompt", LATENCY, prompt=300))

    world.step()

    assert 0 < 10.0 + 2.0 * prefilled(world, "prompt") <= 150.0


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_no_step_takes_long_for_somebody_might_come(lane: LaneName) -> None:
    costs = known_costs(token_ms=0.5)
    world = World(blocks=4_000, host_slots=0, max_sequences=64, max_step_tokens=1_000, costs=costs)
    for number in range(8):
        world.add(job(f"flood-{number}", lane, prompt=1_500))

    for _ in range(20):
        world.step()
        longest_ms = HOLD * PACE_MS if lane is THROUGHPUT else PROMPT_PART * DEFAULT_LANES[LATENCY].ttft_ms
        took_ms = 10.0 + 0.5 * sum(len(row.token_ids) for row in world.plans[-1].rows)
        assert 0.5 * longest_ms < took_ms <= 1.05 * longest_ms


def test_a_newcomers_own_step_is_not_filled_up_with_work_of_lower_lanes() -> None:
    world = World(blocks=4_000, host_slots=0, max_sequences=64, max_step_tokens=4_000, costs=known_costs())
    for number in range(8):
        world.add(job(f"flood-{number}", THROUGHPUT, prompt=1_500))
    world.step()
    world.add(job("chat", LATENCY, prompt=20))

    world.step()

    others = sum(len(row.token_ids) for row in world.plans[-1].rows) - prefilled(world, "chat")
    assert prefilled(world, "chat") == 20
    assert others > 0
    assert 10.0 + 2.0 * (20 + others) <= PACE_MS


def test_a_prompt_of_a_lower_lane_may_not() -> None:
    world = World(blocks=400, max_step_tokens=400, costs=known_costs())
    world.add(job("chat", LATENCY, max_tokens=40))
    world.step()
    world.add(job("batch", THROUGHPUT, prompt=300))

    world.step()

    assert 10.0 + 2.0 * prefilled(world, "batch") <= STRETCH * PACE_MS


def test_beside_chats_steps_stay_small_until_their_times_are_known() -> None:
    world = World(blocks=400, max_step_tokens=400)
    world.add(job("chat", LATENCY, max_tokens=40))
    world.step()
    world.add(job("prompt", LATENCY, prompt=300))

    world.step()

    assert 0 < prefilled(world, "prompt") <= 400 // 4


def test_lower_lanes_go_on_under_a_flood_of_prompts_of_the_first() -> None:
    world = World(blocks=2_000, max_sequences=8, max_step_tokens=640)
    world.add(job("batch", THROUGHPUT, prompt=40, max_tokens=4))

    for number in range(20):
        world.add(job(f"chat-{number}", LATENCY, prompt=700, max_tokens=1))
        world.step()

    assert "batch" in world.ended


def test_tenants_share_the_prefill_of_one_step() -> None:
    world = World(blocks=100, max_sequences=8, max_step_tokens=16, window=100.0)
    for number in range(4):
        for tenant in ("acme", "zeta"):
            world.add(job(f"{tenant}-{number}", prompt=4, tenant=tenant))

    world.step()

    assert sorted(world.rows()) == ["acme-0", "acme-1", "zeta-0", "zeta-1"]


def test_who_had_the_worker_alone_owes_nothing() -> None:
    world = World(blocks=400, max_sequences=4, max_step_tokens=64, window=8.0)
    world.add(job("alone", prompt=8, max_tokens=400, tenant="acme"))
    for _ in range(100):
        world.step()

    for number in range(12):
        for tenant in ("acme", "zeta"):
            world.add(job(f"{tenant}-{number}", prompt=4, max_tokens=4, tenant=tenant))
    for _ in range(12):
        world.step()

    assert {"acme-0", "zeta-0"} <= set(world.ended)


def test_one_guaranteed_request_does_not_hide_what_can_be_in_time_behind_what_is_late() -> None:
    world = World(blocks=400, max_sequences=1, max_step_tokens=64, costs=known_costs())
    for number in range(40):
        world.add(job(f"late-{number:02}", LATENCY), arrived_ms_ago=5_000.0)
    world.add(job("in-time", LATENCY, max_tokens=1))
    world.add(job("promised", LATENCY, guaranteed=True, hard_ttft_ms=5_000.0, max_tokens=1))

    world.step()
    world.step()

    assert list(world.ended) == ["promised", "in-time"]


def test_one_stop_is_told_and_counted_once() -> None:
    world = World(blocks=40, max_sequences=1, max_step_tokens=64, host_slots=40)
    world.add(job("batch", THROUGHPUT, max_tokens=20))
    world.step()
    world.add(job("chat", LATENCY, max_tokens=3))
    world.step()
    world.planner.preempt(SeqId("batch", 0), "swap")

    world.finish()

    assert (len(world.events(Preempted)), len(world.events(Resumed))) == (1, 1)
    assert world.ended["batch"].preemptions == 1
    assert [one.mode for plan in world.plans for one in plan.yields] == ["swap"], "of what only lacked a row"


@pytest.mark.parametrize("stall_ms", [2_000.0, 60_000.0])
def test_one_stall_between_steps_does_not_take_the_time_of_the_next_ones(stall_ms: float) -> None:
    costs = known_costs()
    for _ in range(50):
        costs.observe_between(1.0)

    costs.observe_between(stall_ms)

    assert costs.between_ms < 1.0 + OUTLIER * 10.0 * 0.1


def test_ended_jobs_leave_no_deadlines_behind() -> None:
    world = World()
    for number in range(500):
        world.add(job(f"f{number}", deadline_ms=60_000.0))
        world.planner.cancel(f"f{number}")

    assert len(world.planner._expiries) < 50


@pytest.mark.parametrize("holds", [True, False])
def test_decodes_of_lower_lanes_wait_for_a_chats_pace_where_the_planner_makes_the_steps(holds: bool) -> None:
    costs = CostModel()
    for rows in (1, 2, 4, 8) * 20:
        costs.observe(StepFeatures(rows, 0, 0, 0), 5.0 + 5.0 * rows, 0, 0.0)
    world = World(blocks=400, max_sequences=8, max_step_tokens=64, costs=costs, holds_decodes=holds)
    for number in range(6):
        world.add(job(f"batch-{number}", THROUGHPUT, prompt=4, max_tokens=60))
    for _ in range(10):
        world.step()
    world.add(paced("chat", tpot_ms=10.0))

    plans = [world.step()[0] for _ in range(20)]

    kept = [event for plan in plans for event in plan.events if isinstance(event, Preempted) and event.mode == "keep"]
    assert bool(kept) is holds
    assert "chat" in world.rows()


def test_where_decodes_are_not_held_a_lower_prompt_gets_the_time_that_they_leave() -> None:
    costs = known_costs(token_ms=0.5)
    for rows in (1, 2, 4, 8) * 20:
        costs.observe(StepFeatures(rows, 0, 0, 0), 5.0 + 5.0 * rows, 0, 0.0)
    world = World(blocks=400, max_step_tokens=640, max_sequences=8, costs=costs, holds_decodes=False)
    world.add(paced("chat", tpot_ms=40.0))
    for number in range(6):
        world.add(job(f"batch-{number}", THROUGHPUT, prompt=4, max_tokens=60))
    for _ in range(10):
        world.step()
    world.add(job("prompt", THROUGHPUT, prompt=300))

    world.step()

    assert len(world.rows()) == 8
    assert 0 < prefilled(world, "prompt") < 10
