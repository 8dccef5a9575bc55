// The operators between a decoder's products: norms, the activation, the likeliest token.
#pragma once
#include <cmath>

#include "product.h"

namespace {

struct Norm {
  const float* weight;
  double epsilon;
};

constexpr float LEAST_SCALED = 1e-30f;  // smaller maxima are treated as zero

// Rounds floats to T; `count` is a multiple of 8.
template <typename T> void narrow(T* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 8) store<8>(to + i, load<8>(from + i));
}

// Root mean square normalisation of a row; `channels` is a multiple of 8.
template <typename T> void normalise(T* to, const float* from, const Norm& norm, int64_t channels) {
  using Vec = Of<8>::Vec;
  Vec squares[2] = {};
  for (int64_t i = 0; i < channels; i += 8) {
    const Vec part = load<8>(from + i);
    squares[i / 8 % 2] += part * part;
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += squares[0][i] + squares[1][i];
  const float factor = 1 / std::sqrt(sum / channels + float(norm.epsilon));
  for (int64_t i = 0; i < channels; i += 8)
    store<8>(to + i, load<8>(from + i) * factor * load<8>(norm.weight + i));
}

// Quantises up to GROUP numbers, a multiple of 8, to multiples of a scale; returns 128 times their sum. A NaN or infinity
// makes the scale NaN.
template <typename T> float as_record(int8_t* record, const T* from, int64_t count) {
  using Vec = Of<8>::Vec;
  Vec most = {}, strange = {};
  for (int64_t i = 0; i < count; i += 8) {
    const Vec part = load<8>(from + i);
    most = larger<8>(most, part < 0 ? -part : part);
    strange += part - part;  // zero, unless there is a NaN or an infinity
  }
  float highest = 0, odd = 0;
  for (int lane = 0; lane < 8; ++lane) {
    highest = std::max(highest, most[lane]);
    odd += strange[lane];
  }
  const float scale = odd == 0 ? highest / 127 : std::numeric_limits<float>::quiet_NaN();
  const float factor = odd == 0 && highest > LEAST_SCALED ? 127 / highest : 0;
  Of<8>::Int sums = {};
  for (int64_t i = 0; i < count; i += 8) {
    const Vec steps = odd == 0 ? load<8>(from + i) * factor : Vec{};
    const auto whole = __builtin_convertvector(steps + (steps < 0 ? Vec{} - 0.5f : Vec{} + 0.5f), Of<8>::Int);
    sums += whole;
    const auto bytes = __builtin_convertvector(whole, Of<8>::Bytes);
    std::memcpy(record + sizeof scale + i, &bytes, sizeof bytes);
  }
  std::memcpy(record, &scale, sizeof scale);
  int32_t sum = 0;
  for (int lane = 0; lane < 8; ++lane) sum += sums[lane];
  return 128 * scale * sum;
}

// Quantises a row for 8-bit weights: groups of inputs, each after its scale, and at the end the excess of each output,
// since stored weights are 128 too large.
template <typename T> void as_bytes(int8_t* to, const T* from, int64_t count) {
  float excess = 0;
  for (int64_t first = 0; first < count; first += GROUP, to += RECORD)
    excess += as_record(to, from + first, std::min(GROUP, count - first));
  std::memcpy(to, &excess, sizeof excess);
}

// Returns x times its sigmoid, without overflow.
inline Vec silu(Vec x) {
  const Vec small = exponential<LANES>(x > 0 ? -x : x);
  return x * (x > 0 ? Vec{} + 1.0f : small) / (1.0f + small);
}

// Returns the first of the likeliest tokens, and stores its logit: NaN if any logit is NaN.
int64_t likeliest(const float* line, int64_t count, float* value) {
  constexpr int64_t WHOLE = LANES;
  Vec highest = Vec{} - std::numeric_limits<float>::infinity(), strange = {};
  int64_t i = 0;
  for (; i + WHOLE <= count; i += WHOLE) {
    const Vec part = load<LANES>(line + i);
    highest = larger<LANES>(part, highest);
    strange += part - part;  // zero, unless there is a NaN or an infinity
  }
  float most = -std::numeric_limits<float>::infinity(), odd = 0;
  for (int lane = 0; lane < WHOLE; ++lane) {
    most = std::max(most, highest[lane]);
    odd += strange[lane];
  }
  for (; i < count; ++i) {
    most = std::max(most, line[i]);
    odd += line[i] - line[i];
  }
  if (odd != 0)  // minus infinity is a valid logit
    for (int64_t j = 0; j < count; ++j)
      if (line[j] != line[j]) most = line[j];
  *value = most;
  return std::find(line, line + count, most) - line;
}

}  // namespace
