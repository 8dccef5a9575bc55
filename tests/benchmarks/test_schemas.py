"""The measurement of grammars counts as served what the API serves, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine.schemas import Truth
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import model_card, resolve

COLOURS: dict[str, Any] = {"enum": ["red", "green"]}


@pytest.fixture
def truth(models_dir: Path) -> Truth:
    return Truth(model_card(resolve(DEFAULT_MODEL, models_dir)))


def test_instances_of_a_served_schema_are_tried(truth: Truth) -> None:
    truth.run("colours", {"schema": COLOURS, "tests": [{"data": "red", "valid": True}, {"data": 1, "valid": False}]})

    found = truth.found
    assert (found.served, found.valid_taken, found.invalid_rejected, found.walks_finished) == (1, 1, 1, 1)


def test_a_schema_that_is_too_long_for_a_request_is_refused_by_name(truth: Truth) -> None:
    truth.run("long", {"schema": COLOURS | {"description": "x" * 70_000}, "tests": []})

    assert (truth.found.served, dict(truth.found.refused)) == (0, {"must have at most 65536 characters": 1})
