"""What is said of the hour is measured here and now, and leaves the process as it was."""

import os
import re

import pytest

from benchmarks.common import hour


def test_the_hour_is_told_in_figures_and_leaves_the_process_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour, "MEMORY_BYTES", 2**20)
    before = os.sched_getaffinity(0)

    said = hour.describe()

    found = re.fullmatch(r"this hour (\d+) ns to read memory at random and (\d+) µs to wake another core", said)
    assert found is not None
    assert int(found[1]) > 0
    assert os.sched_getaffinity(0) == before
