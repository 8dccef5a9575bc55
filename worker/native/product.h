// Products of rows with weights that are laid out for them: tiles of 32 outputs, within a tile input by input (bfloat16:
// pair by pair), so that a product reads them once, from the first byte to the last, whatever the number of rows.
#pragma once
#include "vectors.h"

namespace {

constexpr int64_t TILE_OUTPUTS = 32;
constexpr int MOST_ROWS = 12;  // whose sums fit into the registers together

// Weights [outputs, inputs], and what is added to the outputs, if anything.
template <typename T> struct Weights {
  const T* tiles;  // [tiles, inputs, 32] of float32, [tiles, inputs / 2, 32, 2] of bfloat16
  const float* bias;  // [tiles * 32] or null
  int64_t inputs, outputs;

  int64_t count() const { return (outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS; }
  const T* tile(int64_t number) const { return tiles + number * TILE_OUTPUTS * inputs; }
};

// Sums [R, 32] of R rows with one tile.
template <int R> void product(const float* rows, int64_t stride, const float* tile, int64_t inputs, float* out) {
  Vec16 sums[R][2] = {};
  for (int64_t k = 0; k < inputs; ++k) {
    const Vec16 low = load<16>(tile + k * TILE_OUTPUTS), high = load<16>(tile + k * TILE_OUTPUTS + 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float value = rows[r * stride + k];
      sums[r][0] += low * value;
      sums[r][1] += high * value;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) store<16>(out + r * TILE_OUTPUTS + half * 16, sums[r][half]);
}

#ifdef __AVX512BF16__
template <int R> void product(const Bfloat16* rows, int64_t stride, const Bfloat16* tile, int64_t inputs, float* out) {
  __m512 sums[R][2] = {};
  for (int64_t k = 0; k < inputs; k += 2) {
    const __m512bh low = (__m512bh)_mm512_loadu_si512(tile + k * TILE_OUTPUTS);
    const __m512bh high = (__m512bh)_mm512_loadu_si512(tile + k * TILE_OUTPUTS + 32);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, rows + r * stride + k, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], low, both);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], high, both);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) _mm512_storeu_ps(out + r * TILE_OUTPUTS + half * 16, sums[r][half]);
}
#else
template <int R> void product(const Bfloat16* rows, int64_t stride, const Bfloat16* tile, int64_t inputs, float* out) {
  using Bits = Of<16>::Bits;
  Vec16 sums[R][2] = {};
  for (int64_t k = 0; k < inputs; k += 2) {
    Bits pairs[2];  // of each output: the even input's weight in the low half, the odd one's in the high half
    std::memcpy(pairs, tile + k * TILE_OUTPUTS, sizeof pairs);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float even = widened(rows[r * stride + k]), odd = widened(rows[r * stride + k + 1]);
      for (int half = 0; half < 2; ++half)
        sums[r][half] += (Vec16)(pairs[half] << 16) * even + (Vec16)(pairs[half] & 0xffff0000u) * odd;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) store<16>(out + r * TILE_OUTPUTS + half * 16, sums[r][half]);
}
#endif

template <typename T> using Product = void (*)(const T*, int64_t, const T*, int64_t, float*);
template <typename T> constexpr Product<T> PRODUCTS[MOST_ROWS] = {
    product<1>, product<2>, product<3>, product<4>, product<5>, product<6>,
    product<7>, product<8>, product<9>, product<10>, product<11>, product<12>};

// One tile's outputs for all rows [count, inputs]; `take(row, sums)` is given 32 at a time, what is added included.
template <typename T, typename Take>
void multiply(const Weights<T>& weights, int64_t number, const T* rows, int64_t count, Take&& take) {
  alignas(64) float sums[MOST_ROWS * TILE_OUTPUTS];
  const T* tile = weights.tile(number);
  const int64_t parts = (count + MOST_ROWS - 1) / MOST_ROWS;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * count / parts, size = (part + 1) * count / parts - first;
    PRODUCTS<T>[size - 1](rows + first * weights.inputs, weights.inputs, tile, weights.inputs, sums);
    for (int64_t r = 0; r < size; ++r) {
      float* found = sums + r * TILE_OUTPUTS;
      if (weights.bias)
        for (int i = 0; i < TILE_OUTPUTS; ++i) found[i] += weights.bias[number * TILE_OUTPUTS + i];
      take(first + r, found);
    }
  }
}

}  // namespace
