"""What a request's end will leave of the limits can be told before the store has been asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.limits import LIMIT_NAMES, Demand, Limits, LimitStatus, after_settling
from quotas.memory_store import MemoryQuotaStore
from quotas.store import Charge
from tests.quotas.house import START_MS, ask, charge


def figures(statuses: tuple[LimitStatus, ...] | None) -> list[tuple[str, str, int, int, int]]:
    return [(status.name, status.scope, status.limit, status.used, status.reserved) for status in statuses or ()]


@pytest.mark.anyio
@given(
    prompts=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    n=st.integers(1, 3),
    stated=st.booleans(),
    output_share=st.floats(0.0, 1.0),
)
async def test_it_is_what_the_store_says_where_nothing_else_happens(
    prompts: list[int], n: int, stated: bool, output_share: float
) -> None:
    store = MemoryQuotaStore(lambda: START_MS)
    store.put_tenant("acme", "acme", Limits(**dict.fromkeys(LIMIT_NAMES, 500)))
    store.put_key("acme", "acme", "key", Limits(tokens_per_day=700, concurrent_requests=3))
    for flight_id in ("before", "beside"):
        await store.reserve(ask(flight_id, key_id="key"))
    await store.settle("acme", "before", charge())

    one = ask(prompts=tuple(prompts), n=n, explicit_max=stated, key_id="key")
    reservation = await store.reserve(one)
    output_tokens = int(output_share * reservation.granted_tokens * one.choices)
    told = after_settling(
        reservation.statuses,
        Demand(one.prompt_tokens, reservation.granted_tokens, one.choices),
        input_tokens=one.prompt_tokens,
        output_tokens=output_tokens,
    )
    settled = await store.settle(
        "acme", "f1", Charge(prompt_tokens=one.prompt_tokens, output_tokens=output_tokens, outcome="finished")
    )

    assert figures(told) == figures(settled.statuses)
