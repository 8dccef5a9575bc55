"""The reference backend: gathers the blocks, then runs torch's scaled dot product attention.

Single-token rows are gathered into padded batches of similar length; longer rows run one by one."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention.base import Metadata
from fairlane.worker.kv.cache import KVCache

# A batch of single-token rows; a row that starts its sequence; a row that continues one.
_SINGLES, _WHOLE, _CHUNK = range(3)


class SdpaGather:
    """Exact and simple; the reference for every other backend."""

    name = "sdpa"
    reads_beyond = True

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Return the metadata. Tensors: the slots of all tokens, then pages and mask of each piece except `_WHOLE`.
        Numbers: kind, start and end of each piece."""
        tensors = [cache.slots(rows)]
        numbers: list[int] = []
        start = 0
        for piece in _pieces(rows):
            kind, tokens = _kind(piece), sum(len(row.token_ids) for row in piece)
            numbers += [kind, start, start + tokens]
            if kind != _WHOLE:
                tensors += [cache.pages(piece), _mask(piece, cache)]
            start += tokens
        return Metadata(tensors, numbers)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, metadata: Metadata, scaling: float
    ) -> Tensor:
        slots, *gathers = metadata.tensors
        pages = _page_view(kv)
        _write(pages, slots, key, value)
        out = query.new_empty(query.shape)
        position = 0
        for kind, start, end in zip(*[iter(metadata.numbers)] * 3, strict=True):
            span = slice(start, end)
            if kind == _WHOLE:
                out[span] = _attend_whole(query[span], key[span], value[span], scaling)
                continue
            table, mask = gathers[position : position + 2]
            position += 2
            attend = _attend_singles if kind == _SINGLES else _attend_chunk
            out[span] = attend(query[span], _gather(pages, table), _gather(pages, table + 1), mask, scaling)
        return out


def _pieces(rows: Sequence[Row]) -> Iterator[list[Row]]:
    for _, piece in groupby(rows, key=lambda r: len(r.block_table).bit_length() if len(r.token_ids) == 1 else r.seq):
        yield list(piece)


def _kind(piece: Sequence[Row]) -> int:
    if len(piece[0].token_ids) == 1:
        return _SINGLES
    return _WHOLE if piece[0].first_position == 0 else _CHUNK


def _mask(piece: Sequence[Row], cache: KVCache) -> Tensor:
    width = max(len(row.block_table) for row in piece) * cache.block_size
    own = [row.first_position + index for row in piece for index in range(len(row.token_ids))]
    hidden = torch.arange(width) > torch.tensor(own)[:, None]
    mask = torch.zeros(hidden.shape, dtype=cache.dtype).masked_fill_(hidden, float("-inf")).to(cache.device)
    return mask[:, None, None, :] if _kind(piece) == _SINGLES else mask


def _page_view(kv: Tensor) -> Tensor:
    """View one layer's memory as pages [pages, block_size, kv_heads, head_dim], among the other layers' pages."""
    block_size, kv_heads, head_dim = kv.shape[2:]
    page = block_size * kv_heads * head_dim
    count = (kv.shape[0] - 1) * (kv.stride(0) // page) + 2
    return kv.as_strided((count, block_size, kv_heads, head_dim), (page, kv_heads * head_dim, head_dim, 1))


def _write(pages: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    lines = pages.view(-1, key.shape[1], key.shape[2])
    lines.index_copy_(0, slots, key)
    lines.index_copy_(0, slots + pages.shape[1], value)  # a block's value page follows its key page


def _gather(pages: Tensor, table: Tensor) -> Tensor:
    # [rows, kv_heads, positions, head_dim]
    found = pages.index_select(0, table.flatten())
    return found.view(table.shape[0], -1, *pages.shape[2:]).transpose(1, 2)


def _attend_singles(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    # Heads that share a key head become its queries, which avoids a copy.
    folded = query.reshape(len(query), keys.shape[1], -1, query.shape[2])
    return scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling).flatten(1, 2)


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    lifted = query.transpose(0, 1)[None]
    out = scaled_dot_product_attention(lifted, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True)
    return out[0].transpose(0, 1)


def _attend_whole(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    q, k, v = (states.transpose(0, 1)[None] for states in (query, key, value))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
    return out[0].transpose(0, 1)
