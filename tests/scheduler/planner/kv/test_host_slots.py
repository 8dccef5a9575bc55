"""Host slots as copies of full blocks: who yields a block that the host has already moves nothing."""

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.preemption import Victim
from fairlane.scheduler.planner.steps import Copy, SeqId
from fairlane.scheduler.protocol.messages import Preempted
from tests.support.scheduler.planner_world import LATENCY, World, job
from tests.support.scheduler.pools import table_of
from tests.support.scheduler.victim_shop import LATENCY_RANK, THROUGHPUT_RANK, Shop, swap_is_cheap


def back_again(pool: BlockPool, *, blocks: int = 3, full: int = 2) -> list[int]:
    """A table that was away; its first `full` blocks have copies."""
    table, slots = table_of(pool, blocks), list[int]()
    pool.swap_out(table, blocks, slots)
    pool.slots.settle()
    pool.swap_in(slots, table, full)
    pool.slots.settle()
    return table


def test_what_came_back_full_goes_out_again_for_nothing(pool: BlockPool) -> None:
    table, slots = table_of(pool, 3), list[int]()
    pool.swap_out(table, 3, slots)
    before = list(slots)
    pool.swap_in(slots, table, 2)
    pool.slots.settle()
    last = table[2]
    assert (pool.slots.free, pool.slots.unused, pool.slots.unsaved(table)) == (4, 2, 1)

    copies = pool.swap_out(table, 3, slots)

    assert [copy.source for copy in copies] == [last]
    assert (slots[:2], pool.slots.free) == (before[:2], 1)
    pool.check_integrity([], [slots])


def test_a_copy_yields_to_whoever_needs_a_slot_the_oldest_first(pool: BlockPool) -> None:
    table, slots = back_again(pool), list[int]()
    pool.swap_out(table_of(pool, 3), 3, slots)

    assert pool.slots.unsaved(table[:1]) == 1
    assert pool.slots.unsaved(table[1:2]) == 0
    pool.check_integrity([table], [slots])


def test_those_who_yield_keep_their_own_copies_while_others_are_left(pool: BlockPool) -> None:
    first, second = back_again(pool, blocks=2), back_again(pool, blocks=2)
    pool.allocate(second, 1)
    new, slots = second[2], list[int]()

    copies = pool.swap_out(second, 3, slots)

    assert [copy.source for copy in copies] == [new]
    assert pool.slots.unsaved(first) == 1
    pool.check_integrity([first], [slots])


def test_a_copy_ends_with_the_last_who_holds_its_block(pool: BlockPool) -> None:
    table, branch = back_again(pool), list[int]()
    pool.share(table, 1, branch)
    pool.release(table)
    assert pool.slots.unsaved(branch) == 0

    pool.release(branch)

    assert pool.slots.unused == 4
    other = table_of(pool, 8)
    assert pool.slots.unsaved(other) == 8
    pool.check_integrity([other], [])


def test_a_copy_that_has_not_arrived_is_no_copy(pool: BlockPool) -> None:
    table, slots = table_of(pool, 2), list[int]()
    pool.swap_out(table, 2, slots)
    pool.swap_in(slots, table, 2)
    assert (pool.slots.free, pool.slots.unsaved(table)) == (2, 2)
    pool.check_integrity([table], [])

    pool.release(table)

    assert pool.slots.free == 2, "the host slots are still to be read"
    pool.slots.settle()
    assert pool.slots.unused == 4
    pool.check_integrity([], [])


def test_blocks_are_copied_ahead_once_and_from_the_next_step_on(pool: BlockPool) -> None:
    table, slots = table_of(pool, 3), list[int]()
    held = list(table)

    first = pool.slots.copy_ahead(table[:2])

    assert [copy.source for copy in first] == held[:2]
    assert pool.slots.copy_ahead(table[:2]) == []
    pool.slots.settle()
    assert pool.slots.copy_ahead(table) == [Copy(held[2], 2)]
    pool.slots.settle()
    assert pool.swap_out(table, 3, slots) == []
    assert slots == [copy.target for copy in first] + [2]


def test_the_planner_copies_only_what_is_new_of_one_that_was_away_before() -> None:
    world = World(blocks=12, block_size=4, host_slots=16, max_step_tokens=64, costs=swap_is_cheap())
    batch = job("batch", prompt=22, max_tokens=16)
    chats = [job(f"chat-{number}", LATENCY, prompt=40, max_tokens=1) for number in range(2)]
    world.add(batch)
    for chat in chats:
        world.step()
        world.add(chat)
        while chat.job_id not in world.ended:
            world.step()
    world.finish()

    first, second = (one for plan in world.plans for one in plan.yields)
    assert first.copied == -(-first.end // 4) - first.first // 4
    assert second.copied == -(-second.end // 4) - max(second.first, first.end // 4 * 4) // 4
    assert second.copied < first.copied
    assert 0 < second.predicted_ms < first.predicted_ms
    world.check_outputs(batch, *chats)


def test_copies_go_ahead_of_those_who_may_be_asked_to_yield_and_of_nobody_else() -> None:
    world = World(blocks=24, block_size=4, host_slots=16, max_step_tokens=64, copies_ahead=2, costs=swap_is_cheap())
    batch, chat = job("batch", prompt=30, max_tokens=12), job("chat", LATENCY, prompt=10, max_tokens=12)
    world.add(batch)
    world.add(chat)
    plans = [world.step()[0] for _ in range(7)]

    assert [len(plan.swap_out) for plan in plans] == [0, 2, 2, 2, 2, 0, 0], "its eight full blocks, none of the chat's"
    assert [plan.copies for plan in plans] == [0] * 7, "no swap to learn from, or to expect something of"
    assert world.planner.host_slots_free == 16
    urgent = job("urgent", LATENCY, prompt=60, max_tokens=1)
    world.add(urgent)
    plan, _ = world.step()

    (yielded,) = world.events(Preempted)
    (given,) = plan.yields
    assert (yielded.job_id, yielded.mode) == ("batch", "swap")
    assert given.copied == len(plan.swap_out) <= 2, "what it has filled since"
    world.finish()
    world.check_outputs(batch, chat, urgent)


def test_what_the_host_has_makes_a_victim_cheaper() -> None:
    shop = Shop()
    saved, other = shop.stand("saved", THROUGHPUT_RANK), shop.stand("other", THROUGHPUT_RANK, urgency=2.0)
    shop.pool.slots.copy_ahead(saved.seq.table)
    shop.pool.slots.settle()
    chat = shop.stand("chat", LATENCY_RANK)

    victims = shop.choose(2, chat)

    assert other.rank > saved.rank
    assert victims is not None
    assert victims == [Victim(saved.seq, "swap", 2, shop.costs.swap_ms(2, 0, 0))]
    assert victims[0].seq.id == SeqId("saved", 0)
