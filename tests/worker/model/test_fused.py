"""The fused model beside transformers' modules: the same tokens, however a plan cuts and orders the rows."""

from collections.abc import Iterator

import pytest
import torch
import transformers
from torch.nn.functional import linear

from fairlane.worker.engine.sampling import BROKEN_LOGITS
from fairlane.worker.model import fused as module
from fairlane.worker.model.fused import FusedModel, make_linear
from fairlane.worker.model.reference import TransformersModel
from fairlane.worker.model.select import build_fused
from tests.support.worker.fused_family import FAMILY, generate
from tests.support.worker.hand import Hand, lease
from tests.support.worker.prompts import PROMPTS
from tests.support.worker.random_models import random_model


@pytest.fixture(scope="module")
def fused(tiny: TransformersModel) -> FusedModel:
    found = build_fused(tiny)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY.keys())
def test_each_of_the_family_is_proven(config: transformers.PreTrainedConfig, dtype: torch.dtype) -> None:
    assert build_fused(random_model(config, dtype)) is not None


@pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY.keys())
def test_tokens_are_those_of_the_reference(config: transformers.PreTrainedConfig) -> None:
    reference = random_model(config)
    fused = build_fused(reference)

    assert fused is not None
    assert generate(reference) == generate(fused)


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_a_prompt_may_be_computed_in_chunks_of_any_size(tiny: TransformersModel, fused: FusedModel, count: int) -> None:
    assert generate(tiny) == generate(fused, count=count)


def test_a_swapped_sequence_resumes_with_the_same_tokens(tiny: TransformersModel, fused: FusedModel) -> None:
    hand = Hand(fused)
    lines = [hand.start(lease(str(index), prompt)) for index, prompt in enumerate(PROMPTS)]
    hand.generate(lines, 3)
    victim, *others = lines
    slots = range(len(victim.table))

    hand.step(others, swap_out=hand.park(victim, slots))
    hand.step([victim, *others], swap_in=hand.fetch(victim, slots))

    assert generate(tiny) == hand.generate(lines, 12)


def test_a_step_in_which_nothing_samples_only_fills_the_cache(fused: FusedModel) -> None:
    hand = Hand(fused)

    result = hand.step([hand.start(lease("a", PROMPTS[2]))], count=4)

    assert (result.tokens, result.failed) == ({}, {})


def test_a_nan_fails_its_row_alone(tiny: TransformersModel, fused: FusedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned = fused._embedding.clone()
    poisoned[96] = float("nan")
    monkeypatch.setattr(fused, "_embedding", poisoned)
    hand = Hand(fused)
    bad, good = hand.start(lease("bad", [96] * 9)), hand.start(lease("good", PROMPTS[3]))

    result = hand.step([bad, good])

    assert {bad.seq: BROKEN_LOGITS} == result.failed
    assert good.seq in result.tokens


@pytest.fixture(autouse=True)
def _tried_anew() -> Iterator[None]:
    module._packing_works.cache_clear()
    yield
    module._packing_works.cache_clear()


def refuse(*_: object) -> module.Linear:
    raise RuntimeError("mkldnn_linear: not on this processor\nand more")


@pytest.mark.parametrize("rows", [0, 1, 7, 64, 200])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_products_are_torchs(rows: int, has_bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(rows)
    weight, bias, states = torch.randn(33, 70), torch.randn(33), torch.randn(rows, 70)
    expected = linear(states.to(dtype), weight.to(dtype), bias.to(dtype) if has_bias else None)

    found = make_linear(weight.to(dtype), bias.to(dtype) if has_bias else None)(states.to(dtype))

    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=10 * tolerance)


def test_without_the_operators_weights_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_packed", refuse)
    weight, states = torch.randn(5, 4), torch.randn(2, 4)

    with caplog.at_level("INFO"):
        products = [make_linear(weight)(states) for _ in range(2)]

    assert all(torch.equal(product, linear(states, weight)) for product in products)
    (record,) = caplog.records
    assert record.getMessage().endswith("not on this processor")


def test_operators_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_packed", lambda weight, bias: lambda rows: linear(rows, 2 * weight, bias))
    weight, states = torch.randn(5, 4), torch.randn(2, 4)

    assert torch.equal(make_linear(weight)(states), linear(states, weight))
