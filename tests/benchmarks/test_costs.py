"""The cost book: the hot paths do no more work than was accepted."""

import subprocess
import sys

import pytest

from benchmarks.costs import book
from benchmarks.costs.counting import CallCounter


def test_no_cost_has_grown() -> None:
    """Counted in a process of its own: what other tests have loaded and left running changes counts."""
    counted = subprocess.run(
        [sys.executable, "-m", "benchmarks.costs"], capture_output=True, text=True, timeout=240, check=False
    )

    assert counted.returncode == 0, (
        f"{counted.stdout}{counted.stderr}\n"
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
