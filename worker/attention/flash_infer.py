"""FlashInfer's paged attention on a GPU, where it is installed and computes what the reference does.

It plans a batch on the host and then runs every layer by that plan (https://docs.flashinfer.ai, batch prefill over a
paged KV cache). A batch of single-token rows is to it one of short prefills: one call serves every step.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Protocol

import torch

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention import probe
from fairlane.worker.attention.base import Metadata
from fairlane.worker.attention.gather import page_view, write
from fairlane.worker.engine.kv_cache import KVCache, KVShape
from fairlane.worker.engine.row_layout import int32, upload

_HEAD_DIMS = {64, 128, 256}
_WORKSPACE_BYTES = 128 * 2**20
"""As its documentation recommends; splits of long contexts meet there."""
_PLANS = 2
"""Kept in turn: a plan's copy to the device may still be on its way while the next step is planned."""


class FlashInfer:
    """One call for all rows of a step, decode and prefill alike."""

    name = "flashinfer"
    reads_beyond = True

    def __init__(self) -> None:
        self._planners: dict[torch.device, _Planner] = {}

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Tensors: slots [tokens] int64 and every table's blocks, one table after another, int32, on the device; on the
        host where rows begin and end, where their tables do [rows + 1], and the tokens of each last block, int32."""
        size = cache.block_size
        held = [-(-row.context_length // size) for row in rows]
        tables = chain.from_iterable(row.block_table[:count] for row, count in zip(rows, held, strict=True))
        return Metadata(
            [
                cache.slots(rows),
                upload(int32(array("i", tables)), cache.device),
                int32(array("i", accumulate((len(row.token_ids) for row in rows), initial=0))),
                int32(array("i", accumulate(held, initial=0))),
                int32(array("i", ((row.context_length - 1) % size + 1 for row in rows))),
            ],
            [],
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
        write(page_view(kv), metadata.tensors[0], key, value)
        if query.device not in self._planners:
            self._planners[query.device] = _Planner(query.device)
        return self._planners[query.device].planned(query, kv, metadata).run(query, kv, q_scale=scaling)


def serves(shape: KVShape, device: torch.device) -> bool:
    """It is installed, and made for such keys and values on this GPU."""
    return (
        probe.is_at_hand("flashinfer", device)
        and shape.head_dim in _HEAD_DIMS
        and shape.dtype in (torch.bfloat16, torch.float16)
    )


class _Wrapper(Protocol):
    """What we call of FlashInfer's `BatchPrefillWithPagedKVCacheWrapper`."""

    def plan(self, *described: torch.Tensor | int, **options: object) -> None: ...

    def run(self, query: torch.Tensor, kv: torch.Tensor, *, q_scale: float) -> torch.Tensor: ...


@dataclass(slots=True)
class _Planner:
    """FlashInfer's plans on one device: made at a step's first layer, which alone knows the query's heads."""

    device: torch.device
    _wrappers: list[_Wrapper] = field(default_factory=list)
    _bounds: torch.Tensor | None = None
    """Of the step that the latest plan is for: no other step has this tensor."""

    def planned(self, query: torch.Tensor, kv: torch.Tensor, metadata: Metadata) -> _Wrapper:
        """The wrapper that holds this step's plan."""
        _, blocks, bounds, table_bounds, last_lengths = metadata.tensors
        if self._bounds is not bounds:
            self._turn()
            (heads, head_dim), (block_size, kv_heads) = query.shape[1:], kv.shape[2:4]
            self._wrappers[0].plan(
                bounds,
                table_bounds,
                blocks,
                last_lengths,
                heads,
                kv_heads,
                head_dim,
                block_size,
                causal=True,
                sm_scale=1.0,  # a layer's own is given where it runs
                q_data_type=query.dtype,
                kv_data_type=kv.dtype,
            )
            self._bounds = bounds
        return self._wrappers[0]

    def _turn(self) -> None:
        if not self._wrappers:
            from flashinfer import BatchPrefillWithPagedKVCacheWrapper

            workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)
            self._wrappers = [BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD") for _ in range(_PLANS)]
        self._wrappers.append(self._wrappers.pop(0))
