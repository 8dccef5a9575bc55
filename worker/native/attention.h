// Attention over the paged cache on a CPU: keys and values are read where they lie, once for all heads that share them.
//
// Two passes over a row's context for each tile of queries: all scores, then, after a softmax over them, the weighted
// sum of the values. Everything is summed in float32. A vector is as wide as the head size allows, and as many
// positions are scored at a time.
#pragma once
#include <atomic>

#include "vectors.h"

namespace {

constexpr int64_t ROW = 4;                 // numbers that describe a row
constexpr int64_t TILE_TOKENS = 16;        // tokens of a row whose queries are computed together, at most
constexpr int64_t TILE_SCORES = 1 << 19;   // and fewer where their scores would not stay in a core's cache
constexpr int64_t AHEAD = 32;              // positions between what is computed and what is fetched from memory

// What one call computes; strides in elements.
template <typename T> struct Call {
  const T* query;   // [tokens, heads, D]
  int64_t query_stride;
  T* kv;            // [blocks, 2, block_size, kv_heads, D]
  int64_t block_stride, page;
  T* out;           // [tokens, heads, D]
  const int64_t* rows;    // [rows, 4]: first token, tokens, position of the first token, start of its table
  const int64_t* tables;  // every row's blocks, one table after another
  int64_t block_size, heads, kv_heads;
  float scaling;
};

// Memory that vectors are read from, which takes twice as long across two lines of the cache.
class Floats {
 public:
  float* room_for(size_t count) {
    memory_.resize(count + LINE);
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) & ~uintptr_t(63));
  }

 private:
  static constexpr size_t LINE = 64 / sizeof(float);
  std::vector<float> memory_;
};

// A thread's memory between tiles.
struct Scratch {
  std::vector<int64_t> lines;  // where each position's key lies
  Floats queries, scores;
};

// Scores [count, padded] of `count` queries against the positions [0, context).
template <typename T, int D, int W>
void score(const T* keys, int64_t page, const int64_t* lines, const float* queries, int64_t count, int64_t context, int64_t padded, float* scores) {
  using Vec = typename Of<W>::Vec;
  alignas(64) float chunk[W * D] = {};
  for (int64_t start = 0; start < context; start += W) {
    const int64_t known = std::min<int64_t>(W, context - start);
    for (int64_t j = 0; j < known; ++j) {
      const T* key = keys + lines[start + j];
      const T* next = keys + lines[std::min(start + j + AHEAD, context - 1)];
      fetch<T, D>(next);
      fetch<T, D>(next + page);
      for (int d = 0; d < D; d += W) store<W>(chunk + j * D + d, load<W>(key + d));
    }
    for (int64_t q = 0; q < count; ++q) {
      const float* query = queries + q * D;
      Vec dots[W];
#pragma GCC unroll 16
      for (int j = 0; j < W; ++j) {
        dots[j] = load<W>(query) * load<W>(chunk + j * D);
#pragma GCC unroll 16
        for (int d = W; d < D; d += W) dots[j] += load<W>(query + d) * load<W>(chunk + j * D + d);
      }
      store<W>(scores + q * padded + start, sums<W>(dots));
    }
  }
}

// Scores [0, context) become weights, and 0 up to the next whole vector; returns one over their sum.
template <int W> float soften(float* scores, int64_t context, int64_t padded) {
  using Vec = typename Of<W>::Vec;
  for (int64_t j = context; j < padded; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  Vec highest = load<W>(scores);
  for (int64_t j = W; j < padded; j += W) highest = larger<W>(highest, load<W>(scores + j));
  float most = highest[0];
  for (int i = 1; i < W; ++i) most = std::max(most, highest[i]);
  Vec total = {};
  for (int64_t j = 0; j < padded; j += W) {
    const Vec weight = exponential<W>(load<W>(scores + j) - most);
    store<W>(scores + j, weight);
    total += weight;
  }
  float sum = 0;
  for (int i = 0; i < W; ++i) sum += total[i];
  for (int64_t j = context; j < padded; ++j) {
    sum -= scores[j];
    scores[j] = 0;
  }
  return 1 / sum;
}

// The weighted sum of the values for Q queries.
template <typename T, int D, int W, int Q>
void gather(const T* values, const int64_t* lines, const float* weights, int64_t padded, int64_t context, const float* factors, T** outs) {
  using Vec = typename Of<W>::Vec;
  Vec sum[Q][D / W] = {};
  for (int64_t j = 0; j < context; ++j) {
    const T* value = values + lines[j];
    fetch<T, D>(values + lines[std::min(j + AHEAD, context - 1)]);
#pragma GCC unroll 16
    for (int d = 0; d < D / W; ++d) {
      const Vec part = load<W>(value + d * W);
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) sum[q][d] += part * weights[q * padded + j];
    }
  }
  for (int q = 0; q < Q; ++q)
    for (int d = 0; d < D / W; ++d) store<W>(outs[q] + d * W, sum[q][d] * factors[q]);
}

// Some tokens of a row, and the query heads that share one key head.
struct Tile {
  int64_t row, first, tokens, kv_head;
};

template <typename T, int D> void attend_tile(const Call<T>& call, Scratch& s, const Tile& tile) {
  constexpr int W = D % 16 == 0 ? 16 : 8;
  constexpr int Q = D <= 64 ? 4 : 2;
  const auto [number, first, tokens, kv_head] = tile;
  const int64_t *row = call.rows + ROW * number, *table = call.tables + row[3];
  const int64_t group = call.heads / call.kv_heads, queries = tokens * group;
  const int64_t context = row[2] + first + tokens, padded = (context + W - 1) / W * W;
  const T* keys = call.kv + kv_head * D;
  s.lines.resize(context);
  int64_t* lines = s.lines.data();
  for (int64_t position = 0, block = 0; position < context; ++block)
    for (int64_t slot = 0; slot < call.block_size && position < context; ++slot)
      lines[position++] = table[block] * call.block_stride + slot * call.kv_heads * D;
  for (int64_t position = 0; position < std::min(context, AHEAD); ++position) {
    fetch<T, D>(keys + lines[position]);
    fetch<T, D>(keys + lines[position] + call.page);
  }
  float *scaled = s.queries.room_for(queries * D), *scores = s.scores.room_for(queries * padded);
  std::vector<float> factors(queries);
  std::vector<T*> outs(queries);
  for (int64_t q = 0; q < queries; ++q) {
    const int64_t token = row[0] + first + q / group, head = kv_head * group + q % group;
    const T* query = call.query + token * call.query_stride + head * D;
    for (int d = 0; d < D; d += W) store<W>(scaled + q * D + d, load<W>(query + d) * call.scaling);
    outs[q] = call.out + (token * call.heads + head) * D;
  }
  score<T, D, W>(keys, call.page, lines, scaled, queries, context, padded, scores);
  for (int64_t q = 0; q < queries; ++q)
    factors[q] = soften<W>(scores + q * padded, context - tokens + 1 + q / group, padded);
  const T* values = keys + call.page;
  int64_t q = 0;
  for (; q + Q <= queries; q += Q)
    gather<T, D, W, Q>(values, lines, scores + q * padded, padded, context, &factors[q], &outs[q]);
  for (; Q > 2 && q + 3 <= queries; q += 3)
    gather<T, D, W, 3>(values, lines, scores + q * padded, padded, context, &factors[q], &outs[q]);
  for (; q < queries; ++q)
    gather<T, D, W, 1>(values, lines, scores + q * padded, padded, context, &factors[q], &outs[q]);
}

// All tiles of a step, the longest first: begun first, they end together.
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

// The kernel of a head size; null where it is not compiled.
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
