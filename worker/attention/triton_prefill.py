"""Triton: causal attention of many tokens of a sequence over the paged pool, wherever in the sequence they stand.

One program attends one head of up to `tile_tokens` tokens to all keys up to the last of them. Keys that every one of
them sees come first, without a mask; the few tiles around the diagonal follow (FlashAttention-2, Dao 2023).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
import triton.language as tl

from scheduler.steps import Row
from worker.attention.triton_pages import LOG2_E, jit, line_offsets

TILE_FIELDS = 4
"""A tile's first token and number of tokens among the packed ones, the first one's position, and its row's table."""


def tile_tokens(dtype: torch.dtype, head_dim: int) -> int:
    """Tokens of one program. Products of float32 do without tensor cores and need the room for their operands."""
    return 32 if dtype == torch.float32 else 64 if head_dim > 128 else 128


def cut_tiles(rows: Sequence[Row], first_token: int, tokens: int) -> list[int]:
    """The tiles of rows whose first token is the `first_token`th of the step; longest contexts first.

    Flat, `TILE_FIELDS` numbers each. A program's time grows with its context: the long ones must not come last.
    """
    starts = accumulate((len(row.token_ids) for row in rows), initial=first_token)
    tiles = [
        (start + inner, min(tokens, len(row.token_ids) - inner), row.first_position + inner, number)
        for number, (row, start) in enumerate(zip(rows, starts, strict=False))
        for inner in range(0, len(row.token_ids), tokens)
    ]
    return _flat(sorted(tiles, key=lambda tile: -tile[2]))


def _flat(tiles: Iterable[tuple[int, ...]]) -> list[int]:
    return [field for tile in tiles for field in tile]


def attend_tiles(
    query: torch.Tensor,  # [tokens, heads, head_dim], all of the step
    kv: torch.Tensor,  # one layer's view of the cache
    tiles: torch.Tensor,  # [tiles, TILE_FIELDS], int32
    tables: torch.Tensor,  # [rows, blocks], int32
    out: torch.Tensor,  # [tokens, heads, head_dim], contiguous; the tiles' tokens are written
    scaling: float,
) -> None:
    """Attend each tile's tokens to their sequence up to themselves."""
    _, heads, head_dim = query.shape
    block_size, kv_heads = kv.shape[2], kv.shape[3]
    exact = query.dtype == torch.float32
    _attend_tile[(heads, len(tiles))](
        query,
        kv,
        tiles,
        tables,
        out,
        scaling * LOG2_E,
        query.stride(0),
        query.stride(1),
        kv.stride(0),
        kv.stride(1),
        tables.stride(0),
        fields=TILE_FIELDS,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        tokens=tile_tokens(query.dtype, head_dim),
        tile=32 if exact else 64,
        num_warps=4 if exact else 8,
        num_stages=1 if exact else 2,
    )


@jit
def _attend_tile(
    query: tl.tensor,
    kv: tl.tensor,
    tiles: tl.tensor,
    tables: tl.tensor,
    out: tl.tensor,
    scaling: tl.float32,
    query_token: tl.int64,
    query_head: tl.int64,
    block_stride: tl.int64,
    page: tl.int64,
    table_row: tl.int64,
    fields: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tokens: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """One program: one head of one tile."""
    head = tl.program_id(0)
    described = tiles + tl.program_id(1) * fields
    start, count, position = tl.load(described).to(tl.int64), tl.load(described + 1), tl.load(described + 2)
    table = tables + tl.load(described + 3) * table_row
    places = tl.arange(0, tokens)
    channels = tl.arange(0, head_dim)
    present = (places < count)[:, None]
    asked = tl.load(
        query + (start + places[:, None]) * query_token + head * query_head + channels[None, :], mask=present, other=0.0
    )
    layer = kv + head // (heads // kv_heads) * head_dim + channels[None, :]
    top = tl.full([tokens], float("-inf"), tl.float32)
    total = tl.zeros([tokens], tl.float32)
    sums = tl.zeros([tokens, head_dim], tl.float32)
    own = position + places
    end = position + count
    seen = (position + 1) // tile * tile
    for first in range(0, seen, tile):
        keys_at = first + tl.arange(0, tile)
        lines = line_offsets(table, keys_at, keys_at < end, block_stride, kv_heads * head_dim, block_size)[:, None]
        scores = tl.dot(asked, tl.trans(tl.load(layer + lines)), input_precision="ieee") * scaling
        top, total, sums = _take(scores, tl.load(layer + page + lines), top, total, sums)
    for first in range(seen, end, tile):
        keys_at = first + tl.arange(0, tile)
        inside = keys_at < end
        lines = line_offsets(table, keys_at, inside, block_stride, kv_heads * head_dim, block_size)[:, None]
        keys = tl.load(layer + lines, mask=inside[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scaling
        scores = tl.where(keys_at[None, :] <= own[:, None], scores, float("-inf"))
        values = tl.load(layer + page + lines, mask=inside[:, None], other=0.0)
        top, total, sums = _take(scores, values, top, total, sums)
    found = (sums / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + ((start + places[:, None]) * heads + head) * head_dim + channels[None, :], found, mask=present)


@jit
def _take(
    scores: tl.tensor, values: tl.tensor, top: tl.tensor, total: tl.tensor, sums: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a tile of values, weighed by the exponentials of their scores, to what was summed so far."""
    higher = tl.maximum(top, tl.max(scores, 1))
    shares = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(top - higher)
    sums = sums * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
    return higher, total * fade + tl.sum(shares, 1), sums
