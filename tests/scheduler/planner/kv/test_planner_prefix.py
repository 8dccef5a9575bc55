"""What the prefix cache does for requests, and what it never does: within a tenant, between tenants, under pressure."""

import msgspec
import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.prefix_reuse import Prefixes, salted_group
from fairlane.scheduler.planner.sequence_group import open_group
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.step_budget import Price, StepBudget
from fairlane.scheduler.planner.step_builder import StepBuilder
from fairlane.scheduler.planner.steps import Row, SeqId, StepPlan
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome, Preempted
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job


def world(blocks: int = 64, *, max_step_tokens: int = 64, max_sequences: int = 4) -> World:
    return World(blocks=blocks, max_step_tokens=max_step_tokens, max_sequences=max_sequences, prefix_share=0.5)


def computed(plans: list[StepPlan], job_id: str) -> int:
    """Tokens that were computed for a job."""
    return sum(len(row.token_ids) for plan in plans for row in plan.rows if row.seq.job_id == job_id)


def serve(in_world: World, *jobs: Job) -> list[int]:
    """One after another; the tokens computed for each."""
    for one in jobs:
        in_world.add(one)
        in_world.finish()
    in_world.check_outputs(*jobs)
    return [computed(in_world.plans, one.job_id) for one in jobs]


def cached(in_world: World, job_id: str) -> int:
    return in_world.ended[job_id].cached_tokens


def test_a_prompt_that_was_there_before_computes_only_what_no_full_block_holds() -> None:
    here = world()

    first, second = serve(here, job("a", prompt=18, text="x"), job("b", prompt=18, text="x"))

    assert (first - second, cached(here, "a"), cached(here, "b")) == (16, 0, 16)


def test_at_least_one_token_is_computed() -> None:
    here = world()

    _, second = serve(here, job("a", prompt=16, text="x", max_tokens=1), job("b", prompt=16, text="x", max_tokens=1))

    assert (second, cached(here, "b")) == (4, 12)


def test_the_next_turn_of_a_chat_finds_the_answer_too() -> None:
    here = world()
    first = job("a", prompt=10, max_tokens=10)
    serve(here, first)
    prompt = (*first.prompt, *here.outputs[SeqId("a", 0)], 1, 2, 3)
    turn = msgspec.structs.replace(first, job_id="b", prompt=prompt)

    serve(here, turn)

    assert cached(here, "b") == 16  # of 19 tokens with KV: the last of 20 was never fed back


@pytest.mark.parametrize(("group", "hit"), [("", 0), ("family", 16)])
def test_another_tenants_prompt_is_found_only_within_a_declared_group(group: str, hit: int) -> None:
    here = world()

    serve(
        here,
        job("a", prompt=18, text="x", tenant="acme", share_group=group),
        job("b", prompt=18, text="x", tenant="globex", share_group=group),
    )

    assert cached(here, "b") == hit


def test_a_tenant_that_was_made_anew_finds_nothing_of_the_one_before() -> None:
    here = world()
    gone = job("a", prompt=18, text="x")

    serve(here, gone, *(msgspec.structs.replace(gone, job_id=name, tenant_since=2.0) for name in ("b", "c")))

    assert (cached(here, "b"), cached(here, "c")) == (0, 16)


@pytest.mark.parametrize(
    ("group", "salt", "left"), [("", "", 16), ("family", "", 16), ("", "salt", 16), ("family", "salt", 16)]
)
def test_what_is_cached_of_a_deleted_tenant_is_evicted_and_nothing_of_others(group: str, salt: str, left: int) -> None:
    here = world()
    shared = salted_group("acme", 1.0, group, salt) if salt else group
    asked = job("a", prompt=18, text="x", tenant="acme", share_group=shared)
    gone, other = msgspec.structs.replace(asked, tenant_since=1.0), job("b", prompt=18, text="y", tenant="globex")
    serve(here, gone, other)

    evicted = here.planner.forget_prompts("acme", 1.0, group)
    here.planner.check_integrity()
    serve(here, *(msgspec.structs.replace(one, job_id=f"{one.job_id}2") for one in (gone, other)))

    assert evicted > 0
    assert (cached(here, "a2"), cached(here, "b2")) == (0, left)


def test_a_group_named_like_a_tenant_is_not_that_tenant() -> None:
    here = world()

    serve(
        here,
        job("a", prompt=18, text="x", tenant="acme"),
        job("b", prompt=18, text="x", tenant="globex", share_group="acme"),
    )

    assert cached(here, "b") == 0


def test_steps_are_the_same_whatever_another_tenant_has_sent() -> None:
    """All that a tenant can time: which of its tokens each step computes."""

    def seen(others_text: str) -> list[tuple[int, int]]:
        here = world(blocks=24)
        for number in range(3):
            serve(here, job(f"o{number}", prompt=18, text=others_text, tenant="other"))
        before = len(here.plans)
        serve(here, *(job(f"m{number}", prompt=18, text="mine") for number in range(2)))
        return [(row.first_position, len(row.token_ids)) for plan in here.plans[before:] for row in plan.rows]

    assert seen("mine") == seen("theirs")


def test_without_a_share_nothing_is_found() -> None:
    here = World(blocks=64, max_step_tokens=64)

    serve(here, job("a", prompt=18, text="x"), job("b", prompt=18, text="x"))

    assert (cached(here, "b"), here.planner.blocks_cached) == (0, 0)


def test_a_cache_that_never_hits_changes_no_step() -> None:
    def steps(prefix_share: float | None) -> list[object]:
        here = World(prefix_share=prefix_share)
        jobs = [job(f"f{number}", LATENCY if number % 3 else THROUGHPUT, prompt=5 + number) for number in range(12)]
        for one in jobs:
            here.add(one)
            here.step()
        here.finish()
        here.check_outputs(*jobs)
        return [
            ([(row.seq, row.token_ids, row.first_position) for row in plan.rows], plan.events, plan.copies)
            for plan in here.plans
        ]

    assert steps(None) == steps(0.25)


def test_what_is_cached_is_free_to_others_without_wait_or_preemption() -> None:
    here = world(blocks=16)
    for number in range(3):
        serve(here, job(f"a{number}", prompt=16, tenant="acme"))
    assert here.planner.blocks_free == 16
    assert here.planner.blocks_cached >= 12

    here.add(job("b", prompt=40, max_tokens=8, tenant="globex"))
    plan, _ = here.step()
    here.finish()

    assert [len(row.token_ids) for row in plan.rows] == [40]
    assert not here.events(Preempted)


def test_requests_that_share_a_prefix_hold_it_once() -> None:
    here = world(blocks=24, max_sequences=8)
    serve(here, job("first", prompt=64, text="x", max_tokens=1))
    alike = [job(f"f{number}", prompt=66, text="x", max_tokens=4) for number in range(4)]

    for one in alike:
        here.add(one)
    plan, _ = here.step()
    here.finish()

    assert len(plan.rows) == 4  # each alone would need 18 blocks of 24
    assert not here.events(Preempted)
    here.check_outputs(*alike)


def test_what_waits_behind_the_head_is_not_looked_up_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(blocks=24, max_sequences=8)
    serve(here, job("first", prompt=40, text="x", max_tokens=1))
    here.add(job("holder", prompt=40, max_tokens=12))
    alike = [job(f"f{number}", prompt=72, text="x", max_tokens=4) for number in range(6)]
    here.step()
    for one in alike:
        here.add(one)
    here.step()
    adopted: list[int] = []
    adopt = BlockPool.adopt

    def counting(pool: BlockPool, blocks: list[int], table: list[int], first: int) -> None:
        adopted.append(len(blocks))
        adopt(pool, blocks, table, first)

    monkeypatch.setattr(BlockPool, "adopt", counting)
    plan, _ = here.step()

    assert [row.seq.job_id for row in plan.rows] == ["holder"]
    assert adopted == [10]
    here.finish()
    here.check_outputs(*alike)


def test_a_prefill_goes_on_behind_what_another_has_computed_meanwhile() -> None:
    here = world(max_step_tokens=24)
    alike = [job(f"f{number}", prompt=40, text="x", max_tokens=2) for number in range(3)]

    for one in alike:
        here.add(one)
    here.finish()

    here.check_outputs(*alike)
    assert sum(computed(here.plans, one.job_id) for one in alike) < 40 + 3 * 12


def test_a_dropped_sequence_finds_its_own_blocks_again() -> None:
    here = world()
    one = job("a", prompt=16, max_tokens=8)
    here.add(one)
    for _ in range(3):
        here.step()
    here.planner.preempt(SeqId("a", 0), "recompute")
    here.finish()

    here.check_outputs(one)
    assert computed(here.plans, "a") == 16 + 7 + 2  # of 18 tokens with KV, two are in no full block
    assert cached(here, "a") == 0  # computed for it, not saved


def test_a_swapped_sequence_gets_its_own_kv_back_and_publishes_on() -> None:
    here = world()
    one = job("a", prompt=16, max_tokens=9)
    here.add(one)
    for _ in range(3):
        here.step()
    here.planner.preempt(SeqId("a", 0), "swap")
    here.finish()

    here.check_outputs(one)
    assert sum(len(plan.swap_in) for plan in here.plans) == 5
    serve(here, job("b", prompt=17, text="a", max_tokens=1))
    assert cached(here, "b") == 16


def test_a_prefill_that_was_swapped_out_first_gets_back_what_it_had() -> None:
    here = world(max_step_tokens=16, max_sequences=1)
    one, other = job("a", prompt=40, text="x"), job("b", LATENCY, prompt=40, text="x", max_tokens=2)
    here.add(one)
    here.step()
    here.planner.preempt(SeqId("a", 0), "swap")
    here.add(other)
    here.finish()

    here.check_outputs(one, other)
    assert sum(len(plan.swap_in) for plan in here.plans) == 4
    assert cached(here, "a") == 4  # of 36: it had computed 16, and computes 16 as it comes back


def test_a_hit_that_makes_the_next_token_dear_still_leaves_one_to_compute() -> None:
    prices = Price(row=0.0, token=1.0, context=0.0, pair=1.0)
    budget = StepBudget(4, 64, 64, 0, 0, dict.fromkeys(LaneName, 0), time_ms=2.0, spare_ms=0.0, price=prices)
    pool = BlockPool(blocks=8, block_size=4, host_slots=0)
    draft = StepBuilder(budget, pool, Prefixes(pool, enabled=True), SequenceIndex(DEFAULT_LANES, window=1.0), 0.0)
    lease = Lease(job=job("a", prompt=18), epoch=1, arrived_ms_ago=0.0)
    (seq,) = open_group(lease, DEFAULT_LANES[THROUGHPUT], 0.0, 4).choices
    assert draft.tokens_left(seq) == 2

    pool.allocate(seq.table, 2)
    seq.num_computed = 8
    draft.run(seq)

    assert [len(row.token_ids) for row in draft.finish(1, [], CostModel(), {}).rows] == [1]


def test_what_was_found_in_vain_is_not_borrowed() -> None:
    pool = BlockPool(blocks=8, block_size=4, host_slots=0)
    prefixes = Prefixes(pool, enabled=True)
    mine, other = (
        open_group(Lease(job=one, epoch=1, arrived_ms_ago=0.0), DEFAULT_LANES[THROUGHPUT], 0.0, 4).choices[0]
        for one in (job("a", prompt=18, text="x"), job("b", prompt=18, text="x"))
    )
    for seq, blocks in ((mine, 2), (other, 4)):  # the second holds the first one's, and two that follow
        prefixes.reuse(seq)
        pool.allocate(seq.table, blocks - len(seq.table))
        seq.num_computed = 4 * blocks
        prefixes.leave(seq, Row(seq.id, (1, 2), 0, tuple(seq.table), True, 0))

    prefixes.reuse(mine)
    assert (len(mine.table), mine.borrowed) == (4, 2)
    prefixes.give_back(mine, 2)

    assert (len(mine.table), mine.num_computed, mine.borrowed, other.borrowed) == (2, 8, 0, 2)
    pool.check_integrity([mine.table, other.table], [])


def test_choices_share_a_cached_prompt_and_it_counts_once() -> None:
    here = world()

    serve(here, job("a", prompt=18, text="x"), job("b", prompt=18, text="x", n=3))

    assert cached(here, "b") == 16


def test_only_what_was_computed_is_charged() -> None:
    here = world()
    serve(here, job("a", prompt=18, text="x"))

    here.add(job("b", prompt=18, text="x"))
    _, outcome = here.step()

    assert outcome.charges["b"] == 2 * 1.0 + 2.0


def test_a_failed_row_leaves_nothing_behind() -> None:
    here = world()
    here.add(job("a", prompt=18, text="x"))
    here.step({SeqId("a", 0): "NaN"})
    assert here.ended["a"].outcome is Outcome.FAILED
    assert here.planner.blocks_cached == 0

    serve(here, job("b", prompt=18, text="x"))

    assert cached(here, "b") == 0


def test_a_prompt_is_found_only_once_a_token_has_come_of_it() -> None:
    here = world(max_step_tokens=16, max_sequences=4)
    here.add(job("a", prompt=40, text="x"))
    here.step()
    here.planner.cancel("a")

    assert here.planner.blocks_cached == 0


def test_a_share_of_the_pool_is_safe_from_who_keeps_more() -> None:
    here = World(blocks=32, max_step_tokens=64, prefix_share=0.25)
    serve(here, job("small", prompt=18, text="x", tenant="small", max_tokens=1))

    for number in range(20):
        serve(here, job(f"f{number}", prompt=24, tenant="flood", max_tokens=1))
    serve(here, job("again", prompt=18, text="x", tenant="small", max_tokens=1))

    assert cached(here, "again") == 16


def test_ids_that_no_vocabulary_has_are_not_looked_for() -> None:
    here = world()
    one = job("a", prompt=8)
    here.add(msgspec.structs.replace(one, prompt=(2**40,) * 8))

    here.finish()

    assert here.planner.blocks_cached == 0
