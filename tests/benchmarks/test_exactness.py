"""A small part of `benchmarks/engine/exactness.py`, on the default model; and that the proof can fail."""

from typing import TYPE_CHECKING

import pytest

from benchmarks.engine.exactness import WAYS, Way, compare, generate, load_reference, make_prompts, serve
from fairlane.worker.model.files import ModelFiles
from fairlane.worker.model.fused import FusedModel
from fairlane.worker.model.reference import TransformersModel
from fairlane.worker.model.select import build_fused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS = 8


@pytest.fixture(scope="module")
def reference(default_files: ModelFiles) -> "PreTrainedModel":
    return load_reference(default_files)


@pytest.fixture(scope="module")
def prompts(default_model: TransformersModel) -> list[list[int]]:
    return make_prompts(4, 100, default_model.vocab_size)


@pytest.fixture(scope="module")
def expected(reference: "PreTrainedModel", prompts: list[list[int]]) -> list[list[int]]:
    return [generate(reference, prompt, TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def lean_model(default_model: TransformersModel) -> FusedModel:
    found = build_fused(default_model)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.thorough if way in ("alone", "cached") else ()) for way in WAYS]
)
def test_the_fused_models_greedy_output_is_token_identical_to_generate(
    lean_model: FusedModel,
    reference: "PreTrainedModel",
    prompts: list[list[int]],
    expected: list[list[int]],
    way: Way,
) -> None:
    found = serve(lean_model, prompts, TOKENS, way)

    differences = compare(reference, prompts, expected, found, way)
    assert [difference for difference in differences if not difference.is_near_tie] == []


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "batched" else pytest.mark.thorough) for way in WAYS]
)
def test_greedy_output_is_token_identical_to_generate(
    default_model: TransformersModel,
    reference: "PreTrainedModel",
    prompts: list[list[int]],
    expected: list[list[int]],
    way: Way,
) -> None:
    found = serve(default_model, prompts, TOKENS, way)

    differences = compare(reference, prompts, expected, found, way)
    assert [difference for difference in differences if not difference.is_near_tie] == []


def test_a_wrong_token_is_a_difference_and_no_near_tie(
    reference: "PreTrainedModel", prompts: list[list[int]], expected: list[list[int]]
) -> None:
    found = [list(tokens) for tokens in expected]
    found[3][5] = (found[3][5] + 1) % 49_152

    (difference,) = compare(reference, prompts, expected, found, "alone")

    assert (difference.prompt, difference.index) == (3, 5)
    assert not difference.is_near_tie
