"""The twin and the real store, told the same things at the same times, answer by answer."""

import asyncio
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fairlane.quotas.escrow.transfers import Ending, Progress, Rights, Transfer, reservation_id
from fairlane.quotas.limits import FREE, LIMIT_NAMES, Limits, LimitStatus, Prices
from fairlane.quotas.store import (
    TOMBSTONE_MS,
    AccessDenied,
    AlreadySettled,
    Charge,
    Denied,
    Lapsed,
    Need,
    Once,
    QuotaStore,
    Resumption,
)
from tests.support.quotas.house import LEASE_MS, START_MS, MemoryHouse, RedisHouse, ask
from tests.support.store import topology

TENANTS = ("acme", "other")
PROJECTS = ("web", "jobs")
"""Of acme, and below it."""
ROOTS = {"acme": "acme", "other": "other", "web": "acme", "jobs": "acme"}
PARENTS = {"acme": (), "other": (), "web": ("acme",), "jobs": ("web", "acme")}
KEYS = ("", "k1", "k2")
RESERVATIONS = [f"f{number}" for number in range(12)]
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Auckland")
DAY_MS = 86_400_000
EXAMPLES = int(os.environ.get("FAIRLANE_TEST_EXAMPLES", "25"))
"""More of them on a machine of one's own: FAIRLANE_TEST_EXAMPLES=2000."""

small_limits = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(LIMIT_NAMES, st.sampled_from([0, 1, 2, 5, 30, 60, 100, 300, 10**15]))
)
roomy_limits = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("requests_per_minute", "tokens_per_minute", "output_tokens_per_minute", "tokens_per_day", "tokens_per_month"),
        st.sampled_from([60, 300, 3_000]),
    ),
)
"""Those of which gateways get rights."""
some_limits = st.one_of(small_limits, roomy_limits)
prices = st.sampled_from(
    [
        FREE,
        Prices(input=1, cached=1, output=2),
        Prices(input=3, cached=1, output=7),
        Prices(input=10, cached=0, output=0),
        Prices(input=0, cached=0, output=5),
        Prices(input=10**8, cached=99_999_999, output=10**8),
    ]
)
limits_by = st.dictionaries(
    st.sampled_from([("smol", ""), ("", "latency"), ("smol", "latency"), ("other", ""), ("smol", "throughput")]),
    small_limits.map(lambda figures: Limits(**figures)),
    max_size=2,
)
moments = st.one_of(
    st.integers(0, 2_000),
    st.integers(0, 70_000),
    st.sampled_from([250, 60_000, 60_249, 60_250, LEASE_MS, 14 * 3_600_000, 86_400_000]),
    st.integers(-100_000, -1),
    st.integers(-600, -1),
    st.sampled_from([-86_400_000, -600_001]),
)


POOLS = {
    "aaaa": {"root": "acme", "account": "acme", "key_id": "", "model": "smol", "lane": "latency"},
    "bbbb": {"root": "acme", "account": "web", "key_id": "", "model": "smol", "lane": "latency"},
    "cccc": {"root": "acme", "account": "acme", "key_id": "k1", "model": "other", "lane": "throughput"},
}
"""Rights of gateways, by the beginning of their names."""
tokens = st.sampled_from([0, 1, 10, 40])
entries = st.one_of(
    st.builds(
        lambda held_input, held_output, charged_input, charged_output, **figures: (
            lambda asked: Progress(
                ask=asked,
                input=held_input + charged_input,
                output=held_output + charged_output,
                charged_input=charged_input,
                charged_output=charged_output,
                **figures,
            )
        ),
        **dict.fromkeys(("held_input", "held_output", "charged_input", "charged_output", "choice", "ceiling"), tokens),
    ),
    st.builds(
        lambda outcome, prompt, output: (
            lambda asked: Ending(
                ask=asked,
                charge=Charge(outcome=outcome, prompt_tokens=prompt, cached_tokens=prompt // 2, output_tokens=output),
            )
        ),
        st.sampled_from(["finished", "cancelled", "rejected"]),
        tokens,
        tokens,
    ),
)
"""What a gateway reports of a reservation."""


async def answer(store: QuotaStore, name: str, *args: object) -> object:
    """What a call returns, or the refusal as a value."""
    try:
        return await getattr(store, name)(*args)
    except Denied as denied:
        return ("denied", denied.status, denied.requested, denied.retry_after_s, denied.kind)
    except (AccessDenied, AlreadySettled) as refusal:
        return (type(refusal).__name__, str(refusal))


async def lapsed(store: QuotaStore, limit: int) -> dict[tuple[str, str], Lapsed]:
    """What `expired` finds; the order between roots is each store's own."""
    return {(found.root, found.reservation_id): found for found in await store.expired(limit)}


def resumption(begun: Sequence[int], going: int) -> Resumption:
    """Of choices with so many tokens each, of which the first go on."""
    live, over = begun[:going], begun[going:]
    return Resumption(published=sum(begun), ended=sum(over), going=len(live), longest=max(live, default=0))


def line(tenant: str) -> dict[str, Any]:
    """Where a tenant stands below others."""
    return {"root": ROOTS[tenant], "parents": PARENTS[tenant]}


class StoreMachine(RuleBasedStateMachine):
    """Compares the stores, and holds them to what must always be so."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.get_loop().run_until_complete  # Runner.run sets signal handlers for every call
        self.client = topology.client(self.url)
        self.houses = (MemoryHouse(), RedisHouse(self.client))
        self.now_ms = START_MS
        self.last_settled_ms: dict[str, int] = {}
        # How many pools of a kind are over; the last call of each pool, and the number of its next reservation.
        self.made = dict.fromkeys(POOLS, 0)
        self.calls: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.run(self.client.flushall())
        self.move(0)

    def teardown(self) -> None:
        self.run(self.client.aclose())
        self.runner.close()

    def both(self, name: str, *args: object) -> Any:
        async def answers() -> list[object]:
            return [await answer(house.store, name, *args) for house in self.houses]

        memory, real = self.run(answers())
        assert memory == real
        return memory

    def move(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for house in self.houses:
            self.run(house.set_clock(self.now_ms))

    @initialize(limits=some_limits, of_key=some_limits, zone=st.sampled_from(ZONES))
    def settle_in(self, limits: dict[str, int], of_key: dict[str, int], zone: str) -> None:
        for house in self.houses:
            for tenant in TENANTS:
                self.run(house.tenant(Limits(**limits), tenant=tenant, timezone=zone))
            for tenant in PROJECTS:
                self.run(house.tenant(Limits(**of_key), tenant=tenant, **line(tenant)))
            self.run(house.key("k1", Limits(**of_key)))
            self.run(house.key("k2", Limits(), expires_ms=START_MS + 100_000))

    @rule(
        tenant=st.sampled_from(list(ROOTS)),
        limits=some_limits,
        by=st.one_of(st.just({}), limits_by),
        shadow=st.one_of(st.just(set[str]()), st.sets(st.sampled_from(LIMIT_NAMES), max_size=2)),
        zone=st.sampled_from(ZONES),
        barred=st.sampled_from([None, None, None, "suspended", "deleted"]),
    )
    def change_tenant(self, tenant: str, limits: dict[str, int], zone: str, **changes: Any) -> None:
        changes["limits_by"] = changes.pop("by")
        for house in self.houses:
            self.run(house.tenant(Limits(**limits), tenant=tenant, timezone=zone, **line(tenant), **changes))

    @rule(limits=small_limits)
    def change_key(self, limits: dict[str, int]) -> None:
        for house in self.houses:
            self.run(house.key("k1", Limits(**limits)))

    @rule(by_ms=moments)
    def wait(self, by_ms: int) -> None:
        self.move(by_ms)

    @rule(
        reservation_id=st.sampled_from(RESERVATIONS),
        tenant=st.sampled_from(list(ROOTS)),
        key_id=st.sampled_from(KEYS),
        lane=st.sampled_from(["latency", "throughput"]),
        quantum=st.sampled_from([None, 1, 8, 64]),
        prompts=st.sampled_from([(0,), (1,), (10,), (29,), (100,), (1, 9), (20, 0, 9)]),
        max_output_tokens=st.sampled_from([1, 2, 20, 100]),
        n=st.sampled_from([1, 1, 3]),
        explicit_max=st.booleans(),
        is_batch=st.sampled_from([False, False, True]),
        once=st.sampled_from(["", "", "k1:order:one", "k1:order:two"]),
        until_ms=st.sampled_from([DAY_MS, DAY_MS, 2 * DAY_MS]),
        begun=st.lists(st.sampled_from([0, 1, 8, 20]), max_size=3),
        going=st.integers(0, 3),
        prices=prices,
    )
    def reserve(
        self, reservation_id: str, tenant: str, once: str, until_ms: int, begun: list[int], going: int, **changes: Any
    ) -> None:
        if once:
            changes["once"] = Once(once, START_MS + until_ms)
            choices = changes["n"] * len(changes["prompts"])
            changes["resumption"] = resumption((*begun, 0, 0, 0)[:choices], going) if begun else None
        asked = ask(self.living(reservation_id), root=ROOTS[tenant], tenant=tenant, **changes)
        self.both("reserve", asked)

    @rule(
        reservation_id=st.sampled_from(RESERVATIONS),
        tenant=st.sampled_from(TENANTS),
        published=st.sampled_from([0, 1, 2, 20, 60, 100]),
        prompt_tokens=st.sampled_from([0, 10, 29, 100]),
        known=st.sampled_from([0, 1, 8, 20, 60]),
        most=st.sampled_from([0, 20, 60, 300]),
        unit=st.sampled_from([1, 1, 3]),
        ended=st.sampled_from([0, 0, 20]),
        quantum=st.sampled_from([1, 8, 64]),
        stuck=st.booleans(),
    )
    def extend(self, reservation_id: str, tenant: str, **figures: Any) -> None:
        self.both("extend", tenant, self.living(reservation_id), Need(**figures))

    @rule(
        reservation_id=st.sampled_from(RESERVATIONS),
        tenant=st.sampled_from(TENANTS),
        prompt_tokens=st.sampled_from([0, 10, 29]),
        cached_tokens=st.sampled_from([0, 0, 5, 29]),
        output_tokens=st.sampled_from([0, 1, 20, 200]),
        outcome=st.sampled_from(["finished", "cancelled", "rejected"]),
    )
    def settle(self, reservation_id: str, tenant: str, outcome: str, **figures: int) -> None:
        reservation_id = self.living(reservation_id)
        self.both("settle", tenant, reservation_id, Charge(outcome=outcome, **figures))
        self.last_settled_ms[reservation_id] = self.now_ms

    @rule(
        kind=st.sampled_from(sorted(POOLS)),
        step=st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]),
        number=st.integers(0, 8),
        wanted=st.tuples(st.sampled_from([0, 4, 64]), st.sampled_from([0, 10, 300]), st.sampled_from([0, 7, 60])),
        gateways=st.sampled_from([1, 1, 3]),
        entries=st.lists(st.tuples(st.integers(0, 8), entries), max_size=3, unique_by=lambda one: one[0]),
        prices=prices,
    )
    def transfer(
        self, kind: str, step: int, number: int, wanted: tuple[int, int, int], gateways: int, **content: Any
    ) -> None:
        """Usually the call after the last one; a repeat or a gap as well."""
        made, pool = POOLS[kind], f"{kind}{self.made[kind]:012x}"
        first, call = self.numbers.get(pool, 0), self.calls.get(pool, 0) + step
        named = [
            ask(
                self.living(reservation_id(pool, first + place)),
                root=made["root"],
                tenant=made["account"],
                **{name: made[name] for name in ("key_id", "model", "lane")},
                prices=content["prices"],
                max_output_tokens=100,
            )
            for place, _ in content["entries"]
        ]
        reported = [entry(asked) for asked, (_, entry) in zip(named, content["entries"], strict=True)]
        order = Transfer(
            pool=pool,
            **made,
            call=call,
            first=first + number,
            wanted=Rights(*wanted),
            gateways=gateways,
            entries=tuple(reported),
        )
        answered = self.both("transfer", order)
        self.calls[pool] = answered.call
        if answered.rights is None or not answered.rights.requests:
            self.made[kind] += step == 1
        if answered.rights is not None:
            self.numbers[pool] = first + number
            for asked in named:
                self.last_settled_ms.setdefault(asked.reservation_id, self.now_ms)

    @rule(
        reservation_id=st.sampled_from(RESERVATIONS),
        tenant=st.sampled_from(list(ROOTS)),
        key_id=st.sampled_from(KEYS),
        is_batch=st.booleans(),
        prices=prices,
    )
    def book(self, reservation_id: str, tenant: str, **changes: Any) -> None:
        self.both("book", ask(self.living(reservation_id), root=ROOTS[tenant], tenant=tenant, **changes))

    @rule(tenant=st.sampled_from(TENANTS), reservations=st.lists(st.sampled_from(RESERVATIONS), max_size=4))
    def renew(self, tenant: str, reservations: list[str]) -> None:
        self.both("renew", tenant, [self.living(reservation_id) for reservation_id in reservations])

    @rule(limit=st.sampled_from([0, 100]))
    def look_for_lapsed(self, limit: int) -> None:
        memory, real = (self.run(lapsed(house.store, limit)) for house in self.houses)
        assert memory == real

    @invariant()
    def every_figure_is_the_same_and_none_negative(self) -> None:
        asked = [(root, tenant, key_id) for tenant, root in ROOTS.items() for key_id in KEYS]

        async def statuses(store: QuotaStore) -> list[list[LimitStatus]]:
            return await asyncio.gather(*(store.statuses(*whose) for whose in asked))

        memory, real = (self.run(statuses(house.store)) for house in self.houses)
        assert memory == real
        for status in chain.from_iterable(memory):
            assert status.used >= 0
            assert status.reserved >= 0

    def living(self, reservation_id: str) -> str:
        """A name that no store may have forgotten: the twin's memory runs by this clock, the real one's does not."""
        settled_ms = self.last_settled_ms.get(reservation_id)
        if settled_ms is not None and self.now_ms - settled_ms >= TOMBSTONE_MS:
            return f"{reservation_id}-after-{settled_ms}"
        return reservation_id


@pytest.mark.parametrize("server", ["valkey", "redis_server"])
def test_twin_and_real_store_answer_alike(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server).url
    machine = type("Machine", (StoreMachine,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES if server == "valkey" else EXAMPLES // 4,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
