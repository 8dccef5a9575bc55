"""Exact work whose slots were not counted keeps its room in the host, and leaves newcomers theirs on the device."""

from fairlane.scheduler.planner.sequence import State
from tests.support.scheduler.planner_world import World, job
from tests.support.scheduler.victim_shop import LATENCY_RANK, Shop, modes, names


def test_what_others_give_less_of_takes_no_room_from_exact_work_whose_slots_were_not_counted() -> None:
    shop = Shop(host_slots=2)
    forked = shop.stand("forked", blocks=3)  # 3 blocks fit no host of 2; the one that is its own does
    shop.pool.share(forked.seq.table, 2, [])
    staying = shop.stand("staying", exact=True)
    assert shop.claims.stays(staying.seq)

    victims = shop.choose(3, shop.stand("chat", LATENCY_RANK, state=State.WAITING))

    assert dict(zip(names(victims), modes(victims), strict=True)) == {"forked": "recompute", "staying": "swap"}


def test_a_newcomers_exact_work_begins_beside_a_flood_that_the_host_never_holds() -> None:
    world = World(blocks=32, host_slots=0, max_step_tokens=64, max_sequences=8)
    flood = [job(f"flood{number}", prompt=8, max_tokens=24, exact=True) for number in range(6)]
    for one in flood:
        world.add(one)
    world.step()
    newcomer = job("newcomer", prompt=4, max_tokens=4, tenant="globex", exact=True)
    world.add(newcomer)

    world.step()

    assert "newcomer" in world.rows()
    world.finish()
    world.check_outputs(*flood, newcomer)
