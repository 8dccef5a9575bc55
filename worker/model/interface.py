"""The interface of a model, for every implementation: packed rows in, logits of the rows that sample out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from fairlane.worker.attention.base import Metadata
from fairlane.worker.kv.cache import KVCache, KVShape


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one step, one after another, as input of a model."""

    token_ids: torch.Tensor  # [tokens], int64
    positions: torch.Tensor  # [tokens], int64: each token's place in its own sequence
    logit_rows: torch.Tensor  # [rows that sample], int64: the tokens whose logits are needed
    metadata: Metadata


class Likeliest(NamedTuple):
    """The first of the most likely tokens of each row of logits, and its logit: NaN if any logit of the row is NaN."""

    tokens: torch.Tensor  # [rows], int64
    logits: torch.Tensor  # [rows], float32


class Output(NamedTuple):
    """A model's output of a step. The next forward pass may overwrite the logits."""

    logits: torch.Tensor  # [rows that sample, vocabulary]
    # Set if the forward pass computed it as a by-product.
    likeliest: Likeliest | None = None


class Model(Protocol):
    """The runner's interface to a model, the same for every implementation."""

    name: str
    vocab_size: int
    context_length: int
    shape: KVShape
    device: torch.device
    backend: str

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        """Compute the rows, write their keys and values, and return the logits of those that sample."""


# Cosines and sines [1, tokens, head_dim] of positions [1, tokens], in the dtype of the first argument.
Rotary = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
