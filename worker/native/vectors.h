// Vectors of floats, read from and written to float32 and bfloat16. They use the vector extensions of GCC and clang, so
// that one source serves any instruction set.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

struct Bfloat16 {
  uint16_t bits;
};

struct Int8 {
  uint8_t bits;  // the value plus 128
};

template <int W> struct Of {
  typedef float Vec __attribute__((vector_size(4 * W)));
  typedef int32_t Int __attribute__((vector_size(4 * W)));
  typedef uint32_t Bits __attribute__((vector_size(4 * W)));
  typedef uint16_t Half __attribute__((vector_size(2 * W)));
  typedef uint8_t Bytes __attribute__((vector_size(W)));
};

inline float widened(float value) { return value; }
inline float widened(Bfloat16 value) {
  const uint32_t bits = uint32_t(value.bits) << 16;
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

// Numbers per vector: as many as fit into a register.
#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
using Vec = Of<LANES>::Vec;
using Bits = Of<LANES>::Bits;

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

#ifdef __AVX2__  // GCC would widen in two halves
template <> inline Of<8>::Vec load<8>(const Bfloat16* from) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Of<8>::Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}
#endif

#ifdef __AVX512F__
template <> inline Of<16>::Vec load<16>(const Bfloat16* from) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Of<16>::Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}
#endif

template <int W> inline void store(float* to, typename Of<W>::Vec from) { std::memcpy(to, &from, sizeof from); }

// Rounds to nearest, ties to even.
template <int W> inline void store(Bfloat16* to, typename Of<W>::Vec from) {
  using Bits = typename Of<W>::Bits;
  const Bits bits = (Bits)from;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto half = __builtin_convertvector(from == from ? rounded : Bits{} + 0x7fc0, typename Of<W>::Half);
  std::memcpy(to, &half, sizeof half);
}

#ifdef __AVX512BF16__
template <> inline void store<16>(Bfloat16* to, Of<16>::Vec from) {
  const __m256bh half = _mm512_cvtneps_pbh((__m512)from);
  std::memcpy(to, &half, sizeof half);
}

template <> inline void store<8>(Bfloat16* to, Of<8>::Vec from) {
  const __m128bh half = _mm256_cvtneps_pbh((__m256)from);
  std::memcpy(to, &half, sizeof half);
}
#endif

template <int W> inline typename Of<W>::Vec larger(typename Of<W>::Vec a, typename Of<W>::Vec b) { return a > b ? a : b; }

// Returns e^x for x <= 0, to two units in the last place: 2^n times a polynomial. NaN stays NaN.
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

// Transposes a square: interleaves rows that are half a square apart until every number is in place.
inline void transpose(Bits (&square)[LANES]) {
#pragma GCC unroll 4
  for (int distance = 1; distance < LANES; distance *= 2) {
    Bits mixed[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; ++i) {
#ifdef __AVX512F__
      mixed[2 * i] = __builtin_shufflevector(
          square[i], square[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      mixed[2 * i + 1] = __builtin_shufflevector(
          square[i], square[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
      mixed[2 * i] = __builtin_shufflevector(square[i], square[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      mixed[2 * i + 1] = __builtin_shufflevector(square[i], square[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
#endif
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) square[i] = mixed[i];
  }
}

// Interleaves two lines of 32.
inline void zip(Bfloat16* to, const Bfloat16* even, const Bfloat16* odd) {
  typedef uint16_t Line __attribute__((vector_size(64)));
  Line a, b;
  std::memcpy(&a, even, sizeof a);
  std::memcpy(&b, odd, sizeof b);
  const Line first = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10,
                                             42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
  const Line second = __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56,
                                              25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + 32, &second, sizeof second);
}

// A buffer aligned to cache lines: a vector read across two lines takes twice as long.
class AlignedBuffer {
 public:
  template <typename T> T* of(size_t count) {
    memory_.resize(count * sizeof(T) + LINE);
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_.data()) + LINE - 1) & ~uintptr_t(LINE - 1));
  }

 private:
  static constexpr size_t LINE = 64;
  std::vector<char> memory_;
};

// Prefetches a key or value: the hardware cannot predict the next block.
template <typename T, int D> inline void prefetch(const T* line) {
  for (size_t byte = 0; byte < D * sizeof(T); byte += 64) __builtin_prefetch(reinterpret_cast<const char*>(line) + byte);
}

}  // namespace
