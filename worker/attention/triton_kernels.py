"""Triton kernels over the paged pool: write a step's keys and values, attend single tokens, attend many tokens.

Offsets count elements, in 64 bits, because a pool may hold more than 2^31 of them. The same batch gives the same bits.
Everything that differs between steps is read from device memory, so that a CUDA graph may contain the launches."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Protocol, cast

import torch
import triton
import triton.language as tl

from fairlane.scheduler.planner.steps import Row

# Factor of the scores, since the hardware's exponential is to base 2.
LOG2_E = 1.4426950408889634
# Keys per split; smaller splits cost more in merging than they gain.
LEAST_SPLIT = 256
# With at least this many splits, several programs share a long context among short ones, however many rows there are.
_LEAST_SPLITS, _MOST_SPLITS = 4, 64
# Programs per multiprocessor that keep the memory busy.
_WAVES = 4
# Maximum size of a tile of keys for which two more tiles of keys and of values fit into shared memory.
_STAGE_BYTES = 16_384
# Rows of the smallest matrix product that tensor cores support.
_LEAST_HEADS = 16


class Kernel(Protocol):
    """A function compiled by `jit`: launched with a grid in brackets, or called by another kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]: ...

    def __call__(self, *arguments: object) -> tl.tensor: ...


jit = cast(Callable[[Callable[..., object]], Kernel], triton.jit)


@jit
def line_offsets(
    table: tl.tensor,  # pointer to one sequence's blocks, int32
    positions: tl.tensor,  # [any], int32
    wanted: tl.tensor,  # [any], bool: of the others nothing is read
    block_stride: tl.int64,
    line: tl.constexpr,  # elements of one token's keys: kv_heads * head_dim
    block_size: tl.constexpr,
) -> tl.tensor:
    """Return the offsets of the positions' keys in a layer's view; their values are one page further."""
    blocks = tl.load(table + positions // block_size, mask=wanted, other=0)
    return blocks.to(tl.int64) * block_stride + (positions % block_size) * line


def write(key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """Write keys and values [tokens, kv_heads, head_dim] to their slots (`KVCache.slots`), skipping negative ones."""
    tokens, kv_heads, head_dim = key.shape
    line = kv_heads * head_dim
    _write[(tokens,)](
        key,
        value,
        kv,
        slots,
        *key.stride()[:2],
        *value.stride()[:2],
        kv.stride(1),
        line=line,
        span=triton.next_power_of_2(line),
        head_dim=head_dim,
        num_warps=4,
    )


@jit
def _write(
    key: tl.tensor,
    value: tl.tensor,
    kv: tl.tensor,
    slots: tl.tensor,
    key_token: tl.int64,
    key_head: tl.int64,
    value_token: tl.int64,
    value_head: tl.int64,
    page: tl.int64,
    line: tl.constexpr,
    span: tl.constexpr,
    head_dim: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    channels = tl.arange(0, span)
    inside = (channels < line) & (slot >= 0)
    heads, parts = channels // head_dim, channels % head_dim
    target = kv + slot * line + channels
    tl.store(target, tl.load(key + token * key_token + heads * key_head + parts, mask=inside), mask=inside)
    tl.store(target + page, tl.load(value + token * value_token + heads * value_head + parts, mask=inside), mask=inside)


def count_splits(rows: int, kv_heads: int, multiprocessors: int) -> int:
    """Return the maximum number of splits of a context: a power of two that does not depend on the contexts."""
    wanted = -(-_WAVES * multiprocessors // (rows * kv_heads))
    return min(_MOST_SPLITS, max(_LEAST_SPLITS, 1 << (wanted - 1).bit_length()))


def attend_singles(
    query: torch.Tensor,  # [rows, heads, head_dim]
    kv: torch.Tensor,  # one layer's view of the cache
    contexts: torch.Tensor,  # [rows], int32: keys that each row attends to; none where it is 0
    tables: torch.Tensor,  # [rows, blocks], int32
    out: torch.Tensor,  # [rows, heads, head_dim], contiguous; written, with zeros where there is no key
    scaling: float,
    splits: int,
) -> None:
    """Attend each row's token to its sequence up to itself.

    Contexts are cut into splits that are computed in parallel with a running maximum (online softmax, Milakov and
    Gimelshein 2018), then weighted by their log-sum-exp (Flash-Decoding, Dao et al. 2023)."""
    rows, heads, head_dim = query.shape
    block_size, kv_heads = kv.shape[2], kv.shape[3]
    tile = 32 if query.dtype == torch.float32 else 64
    partial = torch.empty((rows, heads, splits, head_dim), dtype=torch.float32, device=query.device)
    weight = torch.empty((rows, heads, splits), dtype=torch.float32, device=query.device)
    group = heads // kv_heads
    _attend_split[(rows * kv_heads, splits)](
        query,
        kv,
        contexts,
        tables,
        partial,
        weight,
        scaling * LOG2_E,
        *query.stride()[:2],
        *kv.stride()[:2],
        tables.stride(0),
        splits=splits,
        least=LEAST_SPLIT,
        kv_heads=kv_heads,
        group=group,
        padded=max(_LEAST_HEADS, triton.next_power_of_2(group)),
        head_dim=head_dim,
        block_size=block_size,
        tile=tile,
        num_warps=4,
        num_stages=3 if tile * head_dim * query.element_size() <= _STAGE_BYTES else 2,
    )
    _merge_splits[(rows * heads,)](
        partial,
        weight,
        contexts,
        out,
        splits=splits,
        least=LEAST_SPLIT,
        heads=heads,
        head_dim=head_dim,
        tile=tile,
        num_warps=4,
    )


@jit
def _split_keys(context: tl.tensor, splits: tl.constexpr, least: tl.constexpr, tile: tl.constexpr) -> tl.tensor:
    return tl.maximum(least, tl.cdiv(tl.cdiv(context, splits), tile) * tile)


@jit
def _attend_split(
    query: tl.tensor,
    kv: tl.tensor,
    contexts: tl.tensor,
    tables: tl.tensor,
    partial: tl.tensor,
    weight: tl.tensor,
    scaling: tl.float32,
    query_row: tl.int64,
    query_head: tl.int64,
    block_stride: tl.int64,
    page: tl.int64,
    table_row: tl.int64,
    splits: tl.constexpr,
    least: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    padded: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Compute `partial`, and the base-2 logarithm of its `weight`."""
    row, kv_head = (tl.program_id(0) // kv_heads).to(tl.int64), tl.program_id(0) % kv_heads
    split = tl.program_id(1)
    context = tl.load(contexts + row)
    size = _split_keys(context, splits, least, tile)
    start = split * size
    end = tl.minimum(start + size, context)
    if start < end:
        places = tl.arange(0, padded)
        channels = tl.arange(0, head_dim)
        present = places < group
        heads = kv_head * group + places
        asked = tl.load(
            query + row * query_row + heads[:, None] * query_head + channels[None, :], mask=present[:, None], other=0.0
        )
        top = tl.full([padded], float("-inf"), tl.float32)
        total = tl.zeros([padded], tl.float32)
        sums = tl.zeros([padded, head_dim], tl.float32)
        for first in range(start, end, tile):
            positions = first + tl.arange(0, tile)
            inside = positions < end
            lines = line_offsets(
                tables + row * table_row, positions, inside, block_stride, kv_heads * head_dim, block_size
            )
            cells = lines[:, None] + kv_head * head_dim + channels[None, :]
            keys = tl.load(kv + cells, mask=inside[:, None], other=0.0)
            scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scaling
            scores = tl.where(inside[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            shares = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(top - higher)
            total = total * fade + tl.sum(shares, 1)
            values = tl.load(kv + page + cells, mask=inside[:, None], other=0.0)
            sums = sums * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
            top = higher
        place = (row * kv_heads * group + heads) * splits + split
        tl.store(partial + place[:, None] * head_dim + channels[None, :], sums / total[:, None], mask=present[:, None])
        tl.store(weight + place, top + tl.log2(total), mask=present)


@jit
def _merge_splits(
    partial: tl.tensor,
    weight: tl.tensor,
    contexts: tl.tensor,
    out: tl.tensor,
    splits: tl.constexpr,
    least: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    line = tl.program_id(0).to(tl.int64)
    context = tl.load(contexts + line // heads)
    numbers = tl.arange(0, splits)
    channels = tl.arange(0, head_dim)
    used = numbers * _split_keys(context, splits, least, tile) < context
    weights = tl.load(weight + line * splits + numbers, mask=used, other=float("-inf"))
    shares = tl.exp2(weights - tl.maximum(tl.max(weights, 0), -1e30))  # a row without a context uses no split
    parts = tl.load(
        partial + (line * splits + numbers[:, None]) * head_dim + channels[None, :], mask=used[:, None], other=0.0
    )
    found = tl.sum(parts * shares[:, None], 0) / tl.where(context > 0, tl.sum(shares, 0), 1.0)
    tl.store(out + line * head_dim + channels, found.to(out.dtype.element_ty))


# A tile's first packed token, its number of tokens, the first one's position, and the number of its row's table.
TILE_FIELDS = 4


def tile_tokens(dtype: torch.dtype, head_dim: int) -> int:
    """Return the tokens per program. Products of float32 need the registers for their operands."""
    return 32 if dtype == torch.float32 else 64 if head_dim > 128 else 128


def cut_tiles(rows: Sequence[Row], first_token: int, tokens: int) -> list[int]:
    """Cut rows into tiles, a flat list, longest contexts first, since those take longest."""
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
    """Attend each tile's tokens to their sequence up to themselves (FlashAttention-2, Dao 2023)."""
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
        *query.stride()[:2],
        *kv.stride()[:2],
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
    higher = tl.maximum(top, tl.max(scores, 1))
    shares = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(top - higher)
    sums = sums * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
    return higher, total * fade + tl.sum(shares, 1), sums
