"""Torch's own paged attention on a GPU, where this torch has it and it takes blocks of our size.

Its splits are switched off: with them torch's kernels have left rows of paged calls unwritten. FlashAttention 2 takes
blocks of a multiple of 256 tokens only, FlashAttention 3, which has to be installed apart, any: `probe.py` finds out.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import cast

import torch

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention.base import Metadata
from fairlane.worker.attention.gather import page_view, write
from fairlane.worker.engine.kv_cache import KVCache, KVShape
from fairlane.worker.engine.row_layout import upload

_CAUSAL = (-1, 0)


class TorchVarlen:
    """One call for all rows of a step, decode and prefill alike."""

    name = "varlen"
    reads_beyond = True

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Tensors: slots [tokens] int64; where rows begin and end [rows + 1], contexts, pages, int32.

        Numbers: the longest row's tokens, and the longest context.
        """
        contexts = [row.context_length for row in rows]
        tokens = [len(row.token_ids) for row in rows]
        bounds = torch.tensor([0, *accumulate(tokens)], dtype=torch.int32)
        return Metadata(
            [
                cache.slots(rows),
                upload(bounds, cache.device),
                upload(torch.tensor(contexts, dtype=torch.int32), cache.device),
                cache.pages(rows).to(torch.int32),
            ],
            [max(tokens), max(contexts)],
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv: torch.Tensor,
        metadata: Metadata,
        scaling: float,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        slots, bounds, contexts, table = metadata.tensors
        longest, widest = metadata.numbers
        pages = page_view(kv)
        write(pages, slots, key, value)
        return _varlen_attn()(
            query,
            pages[:-1],
            pages[1:],  # a block's value page follows its key page
            bounds,
            None,
            longest,
            widest,
            scale=scaling,
            window_size=_CAUSAL,
            enable_gqa=True,
            seqused_k=contexts,
            block_table=table,
            num_splits=1,
        )


def serves(shape: KVShape, device: torch.device) -> bool:
    """This torch's function takes block tables, and computes in such a type."""
    return device.type == "cuda" and shape.dtype in (torch.bfloat16, torch.float16) and _takes_tables()


def _takes_tables() -> bool:
    try:
        return {"block_table", "num_splits", "seqused_k"} <= inspect.signature(_varlen_attn()).parameters.keys()
    except ImportError:
        return False


@cache
def _varlen_attn() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.varlen import varlen_attn

    return cast(Callable[..., torch.Tensor], varlen_attn)
