"""Products with weights laid out once are those of torch, and torch's own where it cannot lay them out."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear

from fairlane.worker.model import fused as module
from fairlane.worker.model.fused import make_linear


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
