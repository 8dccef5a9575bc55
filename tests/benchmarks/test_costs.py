"""The cost book: the hot paths do no more work than was accepted."""

import pytest

from benchmarks.costs import book
from benchmarks.costs.counting import CallCounter


@pytest.fixture(scope="module")
def entries() -> list[book.Entry]:
    return book.compare(book.count())


def test_no_cost_has_grown(entries: list[book.Entry]) -> None:
    grown = [f"{entry.name}: {entry.accepted} -> {entry.counted} ({entry.change})" for entry in entries]

    assert [line for line, entry in zip(grown, entries, strict=True) if not entry.is_accepted] == [], (
        "where the work is worth it, run `python -m benchmarks.costs --write` and say why in the commit"
    )


def test_a_cost_may_grow_by_three_per_cent_and_no_more() -> None:
    assert book.Entry("plan", 100.0, 103.0).is_accepted
    assert not book.Entry("plan", 100.0, 103.1).is_accepted
    assert not book.Entry("store commands", 4.0, 5.0).is_accepted


def test_a_cost_that_is_new_or_gone_is_not_accepted() -> None:
    assert not book.Entry("new", None, 1.0).is_accepted
    assert not book.Entry("gone", 1.0, None).is_accepted


def test_the_counter_counts_python_and_c_calls_and_nothing_after_its_end() -> None:
    counter = CallCounter()

    with counter.counting():
        sorted([len("ab"), abs(-1)])
    counted = counter.calls
    sorted([len("ab")])

    assert counted - _empty() == 3
    assert counter.calls == counted


def test_under_another_python_only_store_commands_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "PYTHON", "2.7")

    compared = book.compare({"plan, calls": 1.0})

    assert compared
    assert all(entry.name.endswith("store commands") for entry in compared)


def _empty() -> int:
    counter = CallCounter()
    with counter.counting():
        pass
    return counter.calls
