// Vectors of floats, read from and written to float32 and bfloat16. They are GCC's and clang's own, so that one source
// serves any instruction set.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

struct Bfloat16 {
  uint16_t bits;
};

template <int W> struct Of {
  typedef float Vec __attribute__((vector_size(4 * W)));
  typedef int32_t Int __attribute__((vector_size(4 * W)));
  typedef uint32_t Bits __attribute__((vector_size(4 * W)));
  typedef uint16_t Half __attribute__((vector_size(2 * W)));
};

inline float widened(float value) { return value; }
inline float widened(Bfloat16 value) {
  const uint32_t bits = uint32_t(value.bits) << 16;
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

using Vec16 = Of<16>::Vec;

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

}  // namespace
