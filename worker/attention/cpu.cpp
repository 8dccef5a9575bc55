// Attention over the paged cache on a CPU: keys and values are read where they lie, once for all heads that share them.
//
// Two passes over a row's context for each tile of queries: all scores, then, after a softmax over them, the weighted
// sum of the values. Everything is summed in float32. Vectors are GCC's and clang's own, so that one source serves any
// instruction set; a vector is as wide as the head size allows, and as many positions are scored at a time.
//
// Nothing of torch is included: it compiles in seconds, and what was compiled serves any version. Threads are OpenMP's,
// which torch has loaded already, so that both compute on the same ones.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t TILE_TOKENS = 16;        // tokens of a row whose queries are computed together, at most
constexpr int64_t TILE_SCORES = 1 << 19;   // and fewer where their scores would not stay in a core's cache
constexpr int64_t AHEAD = 32;              // positions between what is computed and what is fetched from memory

struct Bfloat16 {
  uint16_t bits;
};

template <int W> struct Of {
  typedef float Vec __attribute__((vector_size(4 * W)));
  typedef int32_t Int __attribute__((vector_size(4 * W)));
  typedef uint32_t Bits __attribute__((vector_size(4 * W)));
  typedef uint16_t Half __attribute__((vector_size(2 * W)));
};

template <int W> inline typename Of<W>::Vec load(const float* from) {
  typename Of<W>::Vec found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

template <int W> inline typename Of<W>::Vec load(const Bfloat16* from) {
  typename Of<W>::Half half;
  std::memcpy(&half, from, sizeof half);
  return (typename Of<W>::Vec)(__builtin_convertvector(half, typename Of<W>::Bits) << 16);
}

#ifdef __AVX512F__  // GCC would widen in two halves
template <> inline Of<16>::Vec load<16>(const Bfloat16* from) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Of<16>::Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}
#endif

template <int W> inline void store(float* to, typename Of<W>::Vec from) { std::memcpy(to, &from, sizeof from); }

// Rounded to the nearest, ties to even.
template <int W> inline void store(Bfloat16* to, typename Of<W>::Vec from) {
  using Bits = typename Of<W>::Bits;
  const Bits bits = (Bits)from;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto half = __builtin_convertvector(from == from ? rounded : Bits{} + 0x7fc0, typename Of<W>::Half);
  std::memcpy(to, &half, sizeof half);
}

template <int W> inline typename Of<W>::Vec larger(typename Of<W>::Vec a, typename Of<W>::Vec b) { return a > b ? a : b; }

// e to the power of x <= 0, to two units in the last place: 2^n times a polynomial. A NaN stays one.
template <int W> inline typename Of<W>::Vec exponential(typename Of<W>::Vec x) {
  using Vec = typename Of<W>::Vec;
  using Int = typename Of<W>::Int;
  x = x < -87.0f ? Vec{} - 87.0f : x;
  const Int n = __builtin_convertvector(x * 1.44269504f - 0.5f, Int);  // rounds towards zero, so to the nearest
  const Vec whole = __builtin_convertvector(n, Vec);
  const Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vec sum = r * 1.9841270e-4f + 1.3888889e-3f;
  sum = sum * r + 8.3333333e-3f;
  sum = sum * r + 4.1666667e-2f;
  sum = sum * r + 1.6666667e-1f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  return sum * (Vec)((n + 127) << 23);
}

// The sums of neighbours: half of them from a, half from b.
inline Of<16>::Vec paired(Of<16>::Vec a, Of<16>::Vec b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
inline Of<8>::Vec paired(Of<8>::Vec a, Of<8>::Vec b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}

// Each of W vectors summed up: lane i is the sum of vector i.
template <int W> inline typename Of<W>::Vec sums(typename Of<W>::Vec* of) {
#pragma GCC unroll 4
  for (int left = W / 2; left > 0; left /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < left; ++i) of[i] = paired(of[2 * i], of[2 * i + 1]);
  return of[0];
}

// Ask for a key or value that will be read soon: the processor does not foresee the next block.
template <typename T, int D> inline void fetch(const T* line) {
  for (size_t byte = 0; byte < D * sizeof(T); byte += 64) __builtin_prefetch(reinterpret_cast<const char*>(line) + byte);
}

// What one call computes; strides in elements.
template <typename T> struct Call {
  const T* query;   // [tokens, heads, D]
  int64_t query_stride;
  T* kv;            // [blocks, 2, block_size, kv_heads, D]
  int64_t block_stride, page;
  T* out;           // [tokens, heads, D]
  const int64_t* rows;    // [rows, 3]: first token, tokens, position of the first token
  const int64_t* tables;  // [rows, widest]: blocks
  int64_t widest, block_size, heads, kv_heads;
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

template <typename T, int D>
void attend_tile(const Call<T>& call, Scratch& s, const int64_t* row, const int64_t* table, int64_t first, int64_t tokens, int64_t kv_head) {
  constexpr int W = D % 16 == 0 ? 16 : 8;
  constexpr int Q = D <= 64 ? 4 : 2;
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

struct Tile {
  int64_t row, first, tokens, kv_head;
};

template <typename T, int D> void attend_all(const Call<T>& call, int64_t rows, int threads) {
  std::vector<Tile> tiles;
  for (int64_t row = rows - 1; row >= 0; --row) {  // the longest come last; begun first they end together
    const int64_t tokens = call.rows[3 * row + 1], context = call.rows[3 * row + 2] + tokens;
    const int64_t most = std::clamp(TILE_SCORES / (context * (call.heads / call.kv_heads)), int64_t(1), TILE_TOKENS);
    for (int64_t end = tokens; end > 0; end -= most)
      for (int64_t head = 0; head < call.kv_heads; ++head)
        tiles.push_back({row, std::max<int64_t>(0, end - most), std::min(most, end), head});
  }
  std::atomic<size_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
    for (size_t i = next++; i < tiles.size(); i = next++) {
      const Tile& tile = tiles[i];
      attend_tile<T, D>(call, scratch, call.rows + 3 * tile.row, call.tables + tile.row * call.widest, tile.first, tile.tokens, tile.kv_head);
    }
  }
}

// Keys and values to their slots, which count lines of a layer's memory.
template <typename T>
void write(const Call<T>& call, const T* key, int64_t key_stride, const T* value, int64_t value_stride, const int64_t* slots, int64_t tokens, int64_t line) {
  for (int64_t token = 0; token < tokens; ++token) {
    T* place = call.kv + slots[token] * line;
    std::memcpy(place, key + token * key_stride, line * sizeof(T));
    std::memcpy(place + call.page, value + token * value_stride, line * sizeof(T));
  }
}

template <typename T> int attend_sized(const Call<T>& call, int64_t rows, int64_t head_dim, int threads) {
  switch (head_dim) {
    case 8: attend_all<T, 8>(call, rows, threads); return 0;
    case 16: attend_all<T, 16>(call, rows, threads); return 0;
    case 32: attend_all<T, 32>(call, rows, threads); return 0;
    case 64: attend_all<T, 64>(call, rows, threads); return 0;
    case 96: attend_all<T, 96>(call, rows, threads); return 0;
    case 128: attend_all<T, 128>(call, rows, threads); return 0;
  }
  return 1;
}

template <typename T>
int attend(
    const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* kv, int64_t block_stride,
    int64_t page, T* out, const int64_t* slots, int64_t tokens, const int64_t* rows, int64_t row_count, const int64_t* tables,
    int64_t widest, int64_t block_size, int64_t heads, int64_t kv_heads, int64_t head_dim, float scaling, int threads) {
  const Call<T> call{query, query_stride, kv, block_stride, page, out, rows, tables, widest, block_size, heads, kv_heads, scaling};
  write(call, key, key_stride, value, value_stride, slots, tokens, kv_heads * head_dim);
  return attend_sized(call, row_count, head_dim, threads);
}

}  // namespace

// `AttentionBackend.attend`, into `out`; 1 where the head size is not compiled. Strides in elements; within a token, heads
// lie one after another. Rows and tables: see `Call`.
#define DEFINE(name, T)                                                                                                   \
  extern "C" int name(                                                                                                    \
      const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value, int64_t value_stride,       \
      T* kv, int64_t block_stride, int64_t page, T* out, const int64_t* slots, int64_t tokens, const int64_t* rows,       \
      int64_t row_count, const int64_t* tables, int64_t widest, int64_t block_size, int64_t heads, int64_t kv_heads,      \
      int64_t head_dim, float scaling, int threads) {                                                                     \
    return attend(query, query_stride, key, key_stride, value, value_stride, kv, block_stride, page, out, slots, tokens,  \
                  rows, row_count, tables, widest, block_size, heads, kv_heads, head_dim, scaling, threads);              \
  }
DEFINE(attend_float32, float)
DEFINE(attend_bfloat16, Bfloat16)
