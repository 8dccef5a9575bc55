// Attention over the paged cache on a CPU. Keys and values are read in place, once for all heads that share them.
//
// Two passes over a row's context for each tile of queries: all scores, then, after a softmax, the weighted sum of the
// values. Both are products of rows with tiles, into which keys and values are copied some positions at a time.
// Everything is summed in float32, position by position, so that a result never depends on the rest of the batch.
// Weights are rounded to the type of the values.
#pragma once
#include "product.h"

namespace {

constexpr int64_t ROW = 4;                 // fields per row
constexpr int64_t TILE_TOKENS = 16;        // maximum tokens of a row whose queries are computed together
constexpr int64_t TILE_SCORES = 1 << 19;   // maximum scores of a tile, so that they stay in a core's cache
constexpr int64_t AHEAD = 32;              // prefetch distance in positions
constexpr int64_t TOGETHER = 64;           // positions whose values are copied into tiles together

// The arguments of one call; strides in elements.
template <typename T> struct Call {
  const Number<T>* query;  // [tokens, heads, D]
  int64_t query_stride;
  T* kv;            // [blocks, 2, block_size, kv_heads, D]
  int64_t block_stride, page;
  Number<T>* out;   // [tokens, heads, D]
  const int64_t* rows;    // [rows, 4]: first token, tokens, position of the first token, start of its table
  const int64_t* tables;  // every row's blocks, one table after another
  int64_t block_size, heads, kv_heads;
  float scaling;
};

// A thread's buffers, kept between tiles.
struct Scratch {
  std::vector<int64_t> lines;  // offset of each position's key; padded with the last one's
  AlignedBuffer queries, scores, factors, sums;
};

// Converts a key or value to what queries and weights are multiplied with.
template <typename T> inline Number<T> operand(T value) {
  if constexpr (std::is_same_v<T, Number<T>>) return value;
  else return widened(value);
}

// Transposes LANES words of as many keys: one vector of all keys per word. Prefetches keys and values AHEAD.
template <typename T> void transpose_keys(const T* keys, int64_t page, const int64_t* lines, int64_t word, Bits (&square)[LANES]) {
#pragma GCC unroll 16
  for (int j = 0; j < LANES; ++j) {
    std::memcpy(&square[j], keys + lines[j] + word * APART<T>, sizeof square[j]);
    const T* next = keys + lines[j + AHEAD] + word * APART<T>;
    __builtin_prefetch(next);
    __builtin_prefetch(next + page);
  }
  transpose(square);
}

// Copies 32 keys into a tile: for each channel, or pair of channels, the positions side by side.
template <typename T, int D> void tile_keys(const T* keys, int64_t page, const int64_t* lines, Number<T>* tile) {
  if constexpr (D % (LANES * APART<T>) == 0) {
    for (int64_t part = 0; part < TILE_OUTPUTS; part += LANES)
      for (int64_t word = 0; word < D / APART<T>; word += LANES) {
        Bits square[LANES];
        transpose_keys(keys, page, lines + part, word, square);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
          for (int number = 0; number < FACTORS<T>; ++number) {
            const Bits found = factor<T>(square[i], number);
            std::memcpy(tile + (((word + i) * FACTORS<T> + number) * TILE_OUTPUTS + part) * APART<Number<T>>, &found, sizeof found);
          }
      }
  } else {
    for (int64_t j = 0; j < TILE_OUTPUTS; ++j)
      for (int d = 0; d < D; ++d) tile[place<Number<T>>(d, j)] = operand(keys[lines[j] + d]);
  }
}

// Copies the values of a position, or a pair, into tiles [ceil(D / 32)] of 32 channels, `apart` from each other.
template <typename T, int D> inline void tile_values(const T* values, const int64_t* lines, Number<T>* tiles, int64_t apart) {
  using N = Number<T>;
#pragma GCC unroll 4
  for (int d = 0; d < D; d += TILE_OUTPUTS) {
    N* to = tiles + d / TILE_OUTPUTS * apart;
    if constexpr (D % TILE_OUTPUTS != 0) {
      for (int64_t i = 0; i < APART<N>; ++i)
        for (int64_t o = 0; o < std::min<int64_t>(TILE_OUTPUTS, D - d); ++o) to[place<N>(i, o)] = operand(values[lines[i] + d + o]);
    } else if constexpr (APART<N> == 2) {
      zip(to, values + lines[0] + d, values + lines[1] + d);
    } else {
      for (int64_t o = 0; o < TILE_OUTPUTS; o += LANES) store<LANES>(to + o, load<LANES>(values + lines[0] + d + o));
    }
  }
}

// Computes scores [count, padded] of queries [count, D].
template <typename T, int D>
void score(const T* keys, int64_t page, const int64_t* lines, const Number<T>* queries, int64_t count, int64_t padded, float scaling, float* scores) {
  using N = Number<T>;
  alignas(64) N tile[TILE_OUTPUTS * D];
  alignas(64) float sums[MOST_ROWS * TILE_OUTPUTS];
  for (int64_t start = 0; start < padded; start += TILE_OUTPUTS) {
    tile_keys<T, D>(keys, page, lines + start, tile);
    in_parts(count, [&](int64_t first, int64_t size) {
      PRODUCTS<N, Extra::NOTHING>[size - 1](queries + first * D, D, tile, D, sums, {});
      for (int64_t r = 0; r < size; ++r)
        for (int part = 0; part < TILE_OUTPUTS; part += LANES)
          store<LANES>(scores + (first + r) * padded + start + part, load<LANES>(sums + r * TILE_OUTPUTS + part) * scaling);
    });
  }
}

// Converts scores [0, context) in place to weights of type N, zero up to `padded`; returns the inverse of their sum.
template <typename N> float softmax(float* scores, int64_t context, int64_t padded) {
  constexpr int W = LANES;
  const int64_t whole = (context + W - 1) / W * W;
  for (int64_t j = context; j < whole; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  Vec highest = load<W>(scores);
  for (int64_t j = W; j < whole; j += W) highest = larger<W>(highest, load<W>(scores + j));
  float most = highest[0];
  for (int i = 1; i < W; ++i) most = std::max(most, highest[i]);
  N* weights = reinterpret_cast<N*>(scores);  // not wider than the scores, so writes stay behind reads
  Vec total = {};
  for (int64_t j = 0; j < whole; j += W) {
    const Vec weight = exponential<W>(load<W>(scores + j) - most);
    store<W>(weights + j, weight);
    total += weight;
  }
  float sum = 0;
  for (int i = 0; i < W; ++i) sum += total[i];  // padding adds 1e-38 to a sum of at least 1
  std::memset(weights + context, 0, (padded - context) * sizeof(N));
  return 1 / sum;
}

// Computes sums [D / 32, count, 32] of the values, weighted for `count` queries [count, stride].
template <typename T, int D>
void gather(const T* values, const int64_t* lines, const Number<T>* weights, int64_t stride, int64_t count, int64_t padded, float* sums) {
  using N = Number<T>;
  constexpr int64_t TILES = (D + TILE_OUTPUTS - 1) / TILE_OUTPUTS, TILE = TOGETHER * TILE_OUTPUTS;
  alignas(64) N tiles[TILES * TILE] = {};
  std::memset(sums, 0, TILES * count * TILE_OUTPUTS * sizeof(float));
  for (int64_t start = 0; start < padded; start += TOGETHER) {
    const int64_t known = std::min(TOGETHER, padded - start);
    for (int64_t j = 0; j < known; j += APART<N>)
      tile_values<T, D>(values, lines + start + j, tiles + j * TILE_OUTPUTS, TILE);
    for (int64_t tile = 0; tile < TILES; ++tile)
      in_parts(count, [&](int64_t first, int64_t size) {
        PRODUCTS<N, Extra::ADD>[size - 1](
            weights + first * stride + start, stride, tiles + tile * TILE, known, sums + (tile * count + first) * TILE_OUTPUTS, {});
      });
  }
}

constexpr int64_t FEW = 4;  // maximum queries multiplied with keys and values without tiles

// Computes the same as `score` and `gather` for R queries, without tiles, so that memory access never pauses.
template <typename T, int D, int R> struct Few {
  using N = Number<T>;

  static void score(const T* keys, int64_t page, const int64_t* lines, const N* queries, int64_t padded, float scaling, float* scores) {
    for (int64_t start = 0; start < padded; start += LANES) {
      Vec sums[R] = {};
      for (int64_t word = 0; word < D / APART<T>; word += LANES) {
        Bits square[LANES];
        transpose_keys(keys, page, lines + start, word, square);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
#pragma GCC unroll 2
          for (int number = 0; number < FACTORS<T>; ++number)
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
              sums[r] = added(sums[r], queries + r * D + (word + i) * APART<T> + number, factor<T>(square[i], number));
      }
      for (int r = 0; r < R; ++r) store<LANES>(scores + r * padded + start, sums[r] * scaling);
    }
  }

  static void gather(const T* values, const int64_t* lines, const N* weights, int64_t stride, int64_t padded, float* out) {
    constexpr int WIDTH = LANES == 16 ? D : TILE_OUTPUTS;  // channels whose sums are in registers
    for (int from = 0; from < D; from += WIDTH) gather_channels<WIDTH>(values + from, lines, weights, stride, padded, out + from * R);
  }

 private:
  template <int WIDTH>
  static void gather_channels(const T* values, const int64_t* lines, const N* weights, int64_t stride, int64_t padded, float* out) {
    Vec sums[R][WIDTH / LANES] = {};
    for (int64_t j = 0; j < padded; j += APART<N>) {
      alignas(64) N pairs[APART<N> == 2 ? WIDTH * 2 : 1];
      if constexpr (APART<N> == 2) tile_values<T, WIDTH>(values, lines + j, pairs, TILE_OUTPUTS * 2);
      for (int64_t i = 0; i < APART<N>; ++i) prefetch<T, WIDTH>(values + lines[j + i + AHEAD]);
#pragma GCC unroll 8
      for (int d = 0; d < WIDTH / LANES; ++d) {
        Bits part;
        if constexpr (APART<N> == 2) std::memcpy(&part, pairs + d * LANES * 2, sizeof part);
        else part = (Bits)load<LANES>(values + lines[j] + d * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[r][d] = added(sums[r][d], weights + r * stride + j, part);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int d = 0; d < WIDTH; d += LANES)
        store<LANES>(out + (d / TILE_OUTPUTS * R + r) * TILE_OUTPUTS + d % TILE_OUTPUTS, sums[r][d / LANES]);
  }
};

// Calls `work` with the kernels for few queries; returns false if there are none for this count.
template <typename T, int D, typename Work> bool with_few(int64_t count, Work&& work) {
  if constexpr (D % TILE_OUTPUTS == 0) {
    switch (count) {
      case 1: return work(Few<T, D, 1>()), true;
      case 2: return work(Few<T, D, 2>()), true;
      case 3: return work(Few<T, D, 3>()), true;
      case FEW: return work(Few<T, D, FEW>()), true;
    }
  }
  return false;
}

// Consecutive tokens of a row, for the query heads that share one key head.
struct Tile {
  int64_t row, first, tokens, kv_head;
};

template <typename T, int D> void attend_tile(const Call<T>& call, Scratch& s, const Tile& tile) {
  const auto [number, first, tokens, kv_head] = tile;
  const int64_t *row = call.rows + ROW * number, *table = call.tables + row[3];
  const int64_t group = call.heads / call.kv_heads, count = tokens * group;
  const int64_t context = row[2] + first + tokens, padded = (context + TILE_OUTPUTS - 1) / TILE_OUTPUTS * TILE_OUTPUTS;
  const T* keys = call.kv + kv_head * D;
  s.lines.resize(padded + AHEAD);
  int64_t* lines = s.lines.data();
  for (int64_t position = 0, block = 0; position < context; ++block)
    for (int64_t slot = 0; slot < call.block_size && position < context; ++slot)
      lines[position++] = table[block] * call.block_stride + slot * call.kv_heads * D;
  std::fill(lines + context, lines + padded + AHEAD, lines[context - 1]);
  for (int64_t position = 0; position < std::min(context, AHEAD); ++position) {
    prefetch<T, D>(keys + lines[position]);
    prefetch<T, D>(keys + lines[position] + call.page);
  }
  using N = Number<T>;
  N* queries = s.queries.of<N>(count * D);
  for (int64_t token = 0; token < tokens; ++token)
    std::memcpy(
        queries + token * group * D, call.query + (row[0] + first + token) * call.query_stride + kv_head * group * D,
        group * D * sizeof(N));
  float* scores = s.scores.of<float>(count * padded);
  if (!with_few<T, D>(count, [&](auto few) { few.score(keys, call.page, lines, queries, padded, call.scaling, scores); }))
    score<T, D>(keys, call.page, lines, queries, count, padded, call.scaling, scores);
  float* factors = s.factors.of<float>(count);
  for (int64_t q = 0; q < count; ++q)
    factors[q] = softmax<N>(scores + q * padded, context - tokens + 1 + q / group, padded);
  constexpr int64_t TILES = (D + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
  float* sums = s.sums.of<float>(TILES * count * TILE_OUTPUTS);
  const T* values = keys + call.page;
  const N* weights = reinterpret_cast<const N*>(scores);
  const int64_t stride = padded * APART<N>;
  if (!with_few<T, D>(count, [&](auto few) { few.gather(values, lines, weights, stride, padded, sums); }))
    gather<T, D>(values, lines, weights, stride, count, padded, sums);
  for (int64_t q = 0; q < count; ++q) {
    N* out = call.out + ((row[0] + first + q / group) * call.heads + kv_head * group + q % group) * D;
    for (int d = 0; d < D; d += 8)
      store<8>(out + d, load<8>(sums + (d / TILE_OUTPUTS * count + q) * TILE_OUTPUTS + d % TILE_OUTPUTS) * factors[q]);
  }
}

// Returns all tiles of a step, longest first, so that they end at about the same time.
template <typename T> std::vector<Tile> tiles_of(const Call<T>& call, int64_t rows) {
  std::vector<Tile> tiles;
  for (int64_t row = rows - 1; row >= 0; --row) {
    const int64_t tokens = call.rows[ROW * row + 1], context = call.rows[ROW * row + 2] + tokens;
    const int64_t most = std::clamp(TILE_SCORES / (context * (call.heads / call.kv_heads)), int64_t(1), TILE_TOKENS);
    for (int64_t end = tokens; end > 0; end -= most)
      for (int64_t head = 0; head < call.kv_heads; ++head)
        tiles.push_back({row, std::max<int64_t>(0, end - most), std::min(most, end), head});
  }
  return tiles;
}

template <typename T> using AttendTile = void (*)(const Call<T>&, Scratch&, const Tile&);

// Returns the kernel of a head size, or null if it is not compiled.
template <typename T> AttendTile<T> attend_tile_of(int64_t head_dim) {
  switch (head_dim) {
    case 8: return attend_tile<T, 8>;
    case 16: return attend_tile<T, 16>;
    case 32: return attend_tile<T, 32>;
    case 64: return attend_tile<T, 64>;
    case 96: return attend_tile<T, 96>;
    case 128: return attend_tile<T, 128>;
  }
  return nullptr;
}

}  // namespace
