"""What only the bearer of a key can read."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.common.seal import Seal

KEY = "fl-k1-secret"


@given(st.binary(max_size=300))
def test_what_is_closed_opens_with_the_key_at_its_place_alone(content: bytes) -> None:
    kept = Seal(KEY).close(content, "here")

    assert Seal(KEY).open(kept, "here") == content
    assert Seal(KEY).open(kept, "there") is None
    assert Seal(KEY + "x").open(kept, "here") is None


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_any_length_comes_back(length: int) -> None:
    content = bytes(range(256)) * (length // 256 + 1)

    assert Seal(KEY).open(Seal(KEY).close(content[:length], "p"), "p") == content[:length]


@given(st.binary(min_size=1, max_size=50), st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_noticed(content: bytes, place: int, change: int) -> None:
    kept = bytearray(Seal(KEY).close(content, "p"))
    kept[place % len(kept)] ^= change

    assert Seal(KEY).open(bytes(kept), "p") is None


@given(st.binary(max_size=100))
def test_what_was_never_closed_does_not_open(kept: bytes) -> None:
    assert Seal(KEY).open(kept, "p") is None


def test_nothing_shows_through_and_nothing_repeats() -> None:
    content = b"the same words again and again " * 5_000
    first, second = (Seal(KEY).close(content, "p") for _ in range(2))

    assert first != second
    assert b"words" not in first
    halves = {first[start : start + 32] for start in range(17, len(first) - 64, 31)}
    assert len(halves) == len(range(17, len(first) - 64, 31))


def test_a_mark_is_the_same_for_one_key_and_says_nothing_without_it() -> None:
    digest = hashlib.sha256(b"a prompt").digest()

    assert Seal(KEY).mark(digest) == Seal(KEY).mark(digest) != Seal("fl-k2-secret").mark(digest)
    assert digest.hex() not in Seal(KEY).mark(digest)
    assert KEY not in repr(Seal(KEY))
