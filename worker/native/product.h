// Products of rows with tiled weights: tiles of 32 outputs, ordered by input within a tile (bfloat16: by pairs, int8: by
// fours), so that a product reads them once, sequentially, whatever the number of rows.
#pragma once
#include <array>
#include <type_traits>
#include <utility>

#include "vectors.h"

namespace {

constexpr int64_t TILE_OUTPUTS = 32;
constexpr int64_t LINE = TILE_OUTPUTS * sizeof(float);  // bytes of a tile per word of inputs
constexpr int64_t MANY_ROWS = 128;  // from here on, reading weights takes negligible time
constexpr int64_t STREAM_ROWS = 8;  // computed about as fast as weights are read
constexpr int64_t STREAM_AHEAD = 8192;  // prefetch distance in bytes
constexpr int MOST_SUMS = LANES == 16 ? 24 : 12;  // vectors that fit into the registers, with the operands
constexpr int MOST_ROWS = LANES == 16 ? 12 : 5;  // multiplied together; the sixth would be slower with AVX2
constexpr int64_t GROUP = 64;  // inputs per scale, which limits the effect of one large number
constexpr int64_t RECORD = sizeof(float) + GROUP;  // bytes of a group with its scale

// Weights [outputs, inputs], with an optional bias.
template <typename T> struct Weights {
  const T* tiles;  // [tiles, inputs, 32] of float32, [tiles, inputs / 2, 32, 2] of bfloat16, [tiles, inputs / 4, 32, 4] of int8
  const float* bias;  // [tiles * 32] or null
  const float* scales;  // [tiles * 32]: the scale of each output's int8 weights
  int64_t inputs, outputs;

  int64_t count() const { return (outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS; }
  const T* tile(int64_t number) const { return tiles + number * TILE_OUTPUTS * inputs; }
};

// The other operand: rows of the weights' type, or quantised rows, see `as_bytes`. Processors without products of bfloat16
// multiply floats: weights are stored in 16 bits and widened in registers.
template <typename W> struct Rows {
#ifdef __AVX512BF16__
  using Number = W;
#else
  using Number = float;
#endif
  const Number* at;
  static int64_t stride(int64_t inputs) { return inputs; }
};
template <> struct Rows<Int8> {
  using Number = int8_t;
  const int8_t* at;
  static int64_t stride(int64_t inputs) { return (inputs + GROUP - 1) / GROUP * RECORD + sizeof(float); }
};
template <typename W> using Number = typename Rows<W>::Number;

// Inputs side by side, in a word of four bytes.
template <typename T> constexpr int64_t APART = sizeof(float) / sizeof(T);

// Returns the index of an input's weight for an output within a tile.
template <typename T> constexpr int64_t place(int64_t input, int64_t output) {
  return (input / APART<T> * TILE_OUTPUTS + output) * APART<T> + input % APART<T>;
}

// The additional work of a product: prefetch the same weights ahead, prefetch later ones, or add to existing sums.
enum class Extra { NOTHING, STREAM, FETCH, ADD };

// Initialises the sums of R rows with V vectors of outputs.
template <Extra EXTRA, int R, int V> inline void begin(Vec (&sums)[R][V], const float* out) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = EXTRA == Extra::ADD ? load<LANES>(out + r * TILE_OUTPUTS + v * LANES) : Vec{};
}

template <int R, int V> inline void finish(const Vec (&sums)[R][V], float* out) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store<LANES>(out + r * TILE_OUTPUTS + v * LANES, sums[r][v]);
}

// Factors that a word of weights contains: of bfloat16 that is widened two, else the word itself.
template <typename T> constexpr int FACTORS = std::is_same_v<T, Bfloat16> && std::is_same_v<Number<T>, float> ? 2 : 1;

// Returns a factor of each word: the even input's weight is in the low half, the odd one's in the high half.
template <typename T> inline Bits factor(Bits words, int number) {
  if constexpr (FACTORS<T> == 1) return words;
  else return number == 0 ? words << 16 : words & 0xffff0000u;
}

// Adds the products of one factor with the inputs at `row` to the sums of LANES outputs.
inline Vec added(Vec sums, const float* row, Bits weights) { return sums + (Vec)weights * *row; }
#ifdef __AVX512BF16__
inline Vec added(Vec sums, const Bfloat16* row, Bits weights) {
  int32_t pair;
  std::memcpy(&pair, row, sizeof pair);
  return (Vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(pair));
}
#endif
inline Of<LANES>::Int added(Of<LANES>::Int sums, const int8_t* row, Bits weights) {
#ifdef __AVX512VNNI__
  int32_t four;
  std::memcpy(&four, row, sizeof four);
  return (Of<16>::Int)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(four));
#else
  for (int input = 0; input < 4; ++input) sums += (Of<LANES>::Int)((weights >> 8 * input) & 255) * int32_t(row[input]);
  return sums;
#endif
}

// The prefetch position during a product; it advances by `step` bytes per word of inputs.
struct Prefetch {
  const char* at;
  int64_t step;
};

template <Extra EXTRA> inline void prefetch_weights(const void* tile, Prefetch& ahead) {
  if constexpr (EXTRA == Extra::STREAM) {  // bypasses the outer caches: it is read once
    const char* next = static_cast<const char*>(tile) + STREAM_AHEAD;
    __builtin_prefetch(next, 0, 0);
    __builtin_prefetch(next + LINE / 2, 0, 0);
  }
  if constexpr (EXTRA == Extra::FETCH) {
    __builtin_prefetch(ahead.at, 0, 2);
    __builtin_prefetch(ahead.at + ahead.step / 2, 0, 2);
    ahead.at += ahead.step;
  }
}

// Adds the products of inputs [first, end), which start at `rows`, to the sums of R rows with V vectors of a tile's outputs.
template <typename T, Extra EXTRA, typename Sums, int R, int V>
inline void add_inputs(Sums (&sums)[R][V], const Number<T>* rows, int64_t stride, const T* tile, int64_t first, int64_t end, Prefetch& ahead) {
  for (int64_t k = first; k < end; k += APART<T>) {
    const T* line = tile + k * TILE_OUTPUTS;
    prefetch_weights<EXTRA>(line, ahead);
#pragma GCC unroll 2
    for (int number = 0; number < FACTORS<T>; ++number) {
      Bits factors[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        std::memcpy(&factors[v], line + v * LANES * APART<T>, sizeof factors[v]);
        factors[v] = factor<T>(factors[v], number);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Number<T>* row = rows + r * stride + k - first + number;
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] = added(sums[r][v], row, factors[v]);
      }
    }
  }
}

// Computes the sums of R rows with V vectors of a tile's outputs.
template <typename T, int R, int V, Extra EXTRA>
inline void product_part(const Number<T>* rows, int64_t stride, const T* tile, int64_t inputs, float* out, Prefetch ahead) {
  Vec sums[R][V];
  begin<EXTRA>(sums, out);
  if constexpr (std::is_same_v<T, Int8>) {
    for (int64_t first = 0; first < inputs; first += GROUP, rows += RECORD) {
      Of<LANES>::Int steps[R][V] = {};
      add_inputs<T, EXTRA>(steps, rows + sizeof(float), stride, tile, first, std::min(first + GROUP, inputs), ahead);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        float scale;
        std::memcpy(&scale, rows + r * stride, sizeof scale);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] += __builtin_convertvector(steps[r][v], Vec) * scale;
      }
    }
  } else {
    add_inputs<T, EXTRA>(sums, rows, stride, tile, 0, inputs, ahead);
  }
  finish(sums, out);
}

// Computes sums [R, 32] of R rows with one tile, in halves if the registers do not hold all. With int8 weights the sums are
// in units of the weights' scales, and too large by 128 times the sum of the inputs.
template <typename T, int R, Extra EXTRA>
void product(const Number<T>* rows, int64_t stride, const T* tile, int64_t inputs, float* out, Prefetch ahead) {
  constexpr int ALL = TILE_OUTPUTS / LANES, V = R * ALL <= MOST_SUMS ? ALL : ALL / 2;
  product_part<T, R, V, EXTRA>(rows, stride, tile, inputs, out, ahead);
  if constexpr (V < ALL) {
    constexpr Extra REST = EXTRA == Extra::ADD ? EXTRA : Extra::NOTHING;
    product_part<T, R, V, REST>(rows, stride, tile + LINE / 2 / sizeof(T), inputs, out + TILE_OUTPUTS / 2, ahead);
  }
}

template <typename T> using Product = void (*)(const Number<T>*, int64_t, const T*, int64_t, float*, Prefetch);
template <typename T, Extra EXTRA, size_t... R> constexpr std::array<Product<T>, MOST_ROWS> products(std::index_sequence<R...>) {
  return {product<T, R + 1, EXTRA>...};
}
template <typename T, Extra EXTRA> constexpr auto PRODUCTS = products<T, EXTRA>(std::make_index_sequence<MOST_ROWS>());

// Splits rows into parts that are multiplied together, and calls `work(first, size)` for each.
template <typename Work> void in_parts(int64_t count, Work&& work) {
  const int64_t parts = (count + MOST_ROWS - 1) / MOST_ROWS;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * count / parts;
    work(first, (part + 1) * count / parts - first);
  }
}

// Converts a row's sums to results, in place.
template <typename T> inline void rescale(const Weights<T>&, int64_t, const Number<T>*, float*) {}
inline void rescale(const Weights<Int8>& weights, int64_t number, const int8_t* row, float* found) {
  float excess;
  std::memcpy(&excess, row + Rows<Int8>::stride(weights.inputs) - sizeof excess, sizeof excess);
  for (int64_t i = 0; i < TILE_OUTPUTS; i += LANES)
    store<LANES>(found + i, (load<LANES>(found + i) - excess) * load<LANES>(weights.scales + number * TILE_OUTPUTS + i));
}

// Computes one tile's outputs for all rows [count, inputs]; `take(row, sums)` receives 32 at a time, with the bias.
template <typename T, typename Take>
void multiply(const Weights<T>& weights, int64_t number, const Rows<T>& rows, int64_t count, Take&& take) {
  alignas(64) float sums[MOST_ROWS * TILE_OUTPUTS];
  const T* tile = weights.tile(number);
  const int64_t stride = Rows<T>::stride(weights.inputs);
  // The tile that this thread computes next, or the start of the following weights.
  Prefetch ahead{reinterpret_cast<const char*>(weights.tile(number + 1)), LINE * MOST_ROWS / std::max<int64_t>(count, MOST_ROWS)};
  const auto& products = count <= STREAM_ROWS ? PRODUCTS<T, Extra::STREAM>
                         : count <= MANY_ROWS ? PRODUCTS<T, Extra::FETCH>
                                              : PRODUCTS<T, Extra::NOTHING>;
  in_parts(count, [&](int64_t first, int64_t size) {
    products[size - 1](rows.at + first * stride, stride, tile, weights.inputs, sums, ahead);
    ahead.at += ahead.step * (weights.inputs / APART<T>);
    for (int64_t r = 0; r < size; ++r) {
      float* found = sums + r * TILE_OUTPUTS;
      rescale(weights, number, rows.at + (first + r) * stride, found);
      if (weights.bias)
        for (int i = 0; i < TILE_OUTPUTS; ++i) found[i] += weights.bias[number * TILE_OUTPUTS + i];
      take(first + r, found);
    }
  });
}

}  // namespace
