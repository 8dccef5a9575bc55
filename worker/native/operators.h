// What stands between a decoder's products: norms, the activation, the likeliest token.
#pragma once
#include <cmath>

#include "vectors.h"

namespace {

struct Norm {
  const float* weight;
  double epsilon;
};

constexpr float LEAST_SCALED = 1e-30f;  // what is smaller counts as nothing

// Whole vectors of 8 floats, rounded to T.
template <typename T> void narrow(T* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 8) store<8>(to + i, load<8>(from + i));
}

// Root mean square normalisation of a row of a multiple of 8 channels.
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

// A row of a multiple of 8 numbers as bytes, 128 more than so many steps of the scale that is returned, which is NaN where
// one of them is no number.
template <typename T> float as_bytes(uint8_t* to, const T* from, int64_t count) {
  using Vec = Of<8>::Vec;
  Vec most = {}, strange = {};
  for (int64_t i = 0; i < count; i += 8) {
    const Vec part = load<8>(from + i);
    most = larger<8>(most, part < 0 ? -part : part);
    strange += part - part;  // nothing, unless there is a NaN or an infinity
  }
  float highest = 0, odd = 0;
  for (int lane = 0; lane < 8; ++lane) {
    highest = std::max(highest, most[lane]);
    odd += strange[lane];
  }
  const bool is_whole = odd == 0;
  const float factor = is_whole && highest > LEAST_SCALED ? 127 / highest : 0;
  for (int64_t i = 0; i < count; i += 8) {
    const Vec steps = is_whole ? load<8>(from + i) * factor + 128.5f : Vec{};
    const auto bytes = __builtin_convertvector(__builtin_convertvector(steps, Of<8>::Int), Of<8>::Bytes);
    std::memcpy(to + i, &bytes, sizeof bytes);
  }
  return is_whole ? highest / 127 : std::numeric_limits<float>::quiet_NaN();
}

// x times its sigmoid, without an overflow on either side.
inline Vec16 silu(Vec16 x) {
  const Vec16 small = exponential<16>(x > 0 ? -x : x);
  return x * (x > 0 ? Vec16{} + 1.0f : small) / (1.0f + small);
}

// The likeliest token of a line of logits, the first of equals, and its logit: a NaN where any is one.
int64_t likeliest(const float* line, int64_t count, float* value) {
  constexpr int64_t WHOLE = 16;
  Vec16 highest = Vec16{} - std::numeric_limits<float>::infinity(), strange = {};
  int64_t i = 0;
  for (; i + WHOLE <= count; i += WHOLE) {
    const Vec16 part = load<16>(line + i);
    highest = larger<16>(part, highest);
    strange += part - part;  // nothing, unless there is a NaN or an infinity
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
  if (odd != 0)  // of those that are odd, minus infinity is a logit like others
    for (int64_t j = 0; j < count; ++j)
      if (line[j] != line[j]) most = line[j];
  *value = most;
  return std::find(line, line + count, most) - line;
}

}  // namespace
