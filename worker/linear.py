"""Matrix products with weights in the layout that the processor's kernels want, laid out once and not in every call.

`torch.nn.functional.linear` rearranges a weight each time it is used. oneDNN keeps it arranged: half the time of a
lone token's product in bfloat16, half the time of any product in float32 where MKL does not know the processor. Torch
has the operators for its own compiler and calls them private, so they are tried before they are trusted.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch.nn.functional import linear

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, inputs] to [rows, outputs]."""
_ROWS = 64
"""The number of rows that weights are laid out for. Within a few percent the best at any, which 1 is not."""

_log = logging.getLogger(__name__)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The product with `weight` [outputs, inputs]; of a packed one nothing but the packed copy is kept."""
    if is_packed(weight):
        return _packed(weight, bias)
    return lambda rows: linear(rows, weight, bias)


def is_packed(weight: torch.Tensor) -> bool:
    """A product with it has a copy of its own."""
    return weight.device.type == "cpu" and _packing_works(weight.dtype)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    multiply = torch.ops.mkldnn._linear_pointwise.default
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return lambda rows: multiply(rows, laid_out, bias, "none", [], "")


@cache
def _packing_works(dtype: torch.dtype) -> bool:
    """Torch has the operators, the processor computes in `dtype`, and small products come out right."""
    weight, bias, rows = torch.eye(48, 32, dtype=dtype), torch.ones(48, dtype=dtype), torch.ones(3, 32, dtype=dtype)
    try:
        product = _packed(weight, bias)
        right = all(torch.equal(product(rows[:count]), linear(rows[:count], weight, bias)) for count in (0, 1, 3))
    except (AttributeError, RuntimeError) as error:  # no such operator, or not on this processor
        _log.info("weights stay as they are, for lack of oneDNN's layout: %s", str(error).partition("\n")[0])
        return False
    return right
