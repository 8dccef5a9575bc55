import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.protocol.engine_priority import (
    BITS,
    EARLIEST_MS,
    LATEST_MS,
    MAX_RANK,
    EnginePriority,
    decode,
    encode,
)

ranks = st.integers(0, MAX_RANK)
dues = st.integers(EARLIEST_MS, LATEST_MS)
claims = st.tuples(ranks, st.booleans(), dues)


def encoded(claim: tuple[int, bool, int]) -> int:
    rank, guaranteed, due_ms = claim
    return encode(rank, due_ms, guaranteed=guaranteed)


@given(claims)
def test_decode_gives_back_what_was_encoded(claim: tuple[int, bool, int]) -> None:
    assert decode(encoded(claim)) == EnginePriority(*claim)


@given(claims, claims)
def test_the_integers_order_by_lane_then_promise_then_deadline(
    one: tuple[int, bool, int], other: tuple[int, bool, int]
) -> None:
    def order(claim: tuple[int, bool, int]) -> tuple[int, bool, int]:
        return claim[0], not claim[1], claim[2]

    assert (encoded(one) < encoded(other)) == (order(one) < order(other))
    assert (encoded(one) == encoded(other)) == (one == other)


@given(ranks, st.booleans(), st.floats(allow_nan=False))
def test_every_deadline_fits_a_double_of_json(rank: int, guaranteed: bool, due_ms: float) -> None:
    priority = encode(rank, due_ms, guaranteed=guaranteed)

    assert 0 <= priority < 1 << BITS <= 1 << 53
    assert int(float(priority)) == priority


@given(ranks, st.booleans(), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_a_later_deadline_is_never_more_urgent(rank: int, guaranteed: bool, one_ms: float, other_ms: float) -> None:
    earlier, later = sorted((one_ms, other_ms))

    assert encode(rank, earlier, guaranteed=guaranteed) <= encode(rank, later, guaranteed=guaranteed)


@given(st.integers(-(2**63), EARLIEST_MS - 1))
def test_a_plain_number_is_no_claim(priority: int) -> None:
    assert decode(priority) is None


@given(st.integers(1 << BITS, 2**63 - 1))
def test_a_number_beyond_every_claim_is_none(priority: int) -> None:
    assert decode(priority) is None


def test_what_is_never_due_comes_last_in_its_lane() -> None:
    assert encode(0, math.inf) == encode(0, LATEST_MS)
    assert encode(0, math.inf) < encode(1, 0.0, guaranteed=True)


@pytest.mark.parametrize("rank", [-1, MAX_RANK + 1])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"lane rank must be between 0 and {MAX_RANK}, not {rank}"):
        encode(rank, 0.0)


def test_a_deadline_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="a deadline must be a number of milliseconds"):
        encode(0, math.nan)
