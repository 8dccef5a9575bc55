// A decoder of the Llama family: a step's rows in, logits out, in one parallel region with only a barrier between the
// operators of a layer. Hidden states are float32, weights have type W, operands of products the type that the processor
// multiplies with W, keys and values type T. Only weights, and what they are multiplied with, may have 8 bits.
#pragma once
#include <type_traits>

#include "attention.h"
#include "operators.h"
#include "product.h"
#include "team.h"

namespace {

template <typename W> struct Layer {
  Norm attention_norm;
  Weights<W> qkv;
  Norm head_norm;  // [heads + kv_heads, head_dim], or null
  Weights<W> output;
  Norm mlp_norm;
  Weights<W> gate_up;  // 16 of gate, then the same 16 of up
  Weights<W> down;
  double scaling;
};

template <typename T, typename W> struct Model {
  const Layer<W>* layers;
  int64_t layer_count, hidden, heads, kv_heads, head_dim;
  const T* embedding;  // [vocabulary, hidden], or null if shared with the head
  Norm norm;
  Weights<W> head;
};

// One step; KV strides in elements.
template <typename T> struct Step {
  const int64_t *token_ids, *positions, *slots;  // [tokens]
  int64_t tokens;
  const int64_t* rows;  // [row_count, 4], as in `Call`
  int64_t row_count;
  const int64_t* tables;
  const int64_t* logit_rows;  // [samples]: indexes of the tokens that sample
  int64_t samples;
  const float *cosines, *sines;  // [positions, head_dim / 2]
  T* kv;                         // [blocks, layers, 2, block_size, kv_heads, head_dim]
  int64_t block_size;
  float* logits;       // [samples, vocabulary]
  int64_t* likeliest;  // [samples]: the first of the likeliest tokens
  float* highest;      // [samples]: its logit
  int64_t threads;
};

// Buffers between a step's phases, kept between steps.
template <typename T> struct Workspace {
  std::vector<float> hidden, states;
  std::vector<Number<T>> normed, queries, attended, activated;
  std::vector<int8_t> bytes;  // quantised rows, for 8-bit weights
  Tickets tickets;
};

template <typename T, typename W> class Forward {
 public:
  Forward(const Model<T, W>& model, const Step<T>& step, Workspace<T>& space)
      : m(model), s(step), w(space), both(m.heads + m.kv_heads), inner(m.layers[0].down.inputs) {
    w.hidden.resize(s.tokens * m.hidden);
    w.states.resize(s.tokens * std::max((both + m.kv_heads) * m.head_dim, m.hidden));
    w.normed.resize(s.tokens * m.hidden);
    w.queries.resize(s.tokens * m.heads * m.head_dim);
    w.attended.resize(s.tokens * m.heads * m.head_dim);
    w.activated.resize(s.tokens * inner);
    if constexpr (!IS_OF_ONE_TYPE)
      w.bytes.resize(s.tokens * Rows<W>::stride(std::max({m.hidden, m.heads * m.head_dim, inner})));
    w.tickets = Tickets(m.layer_count * PHASES + 4, s.threads);
    tiles = tiles_of(call(0), s.row_count);
    attend_one = attend_tile_of<T>(m.head_dim);
  }

  void run() {
#pragma omp parallel num_threads(s.threads)
    {
      Phases phases(w.tickets);
      phases.share(s.tokens, [&](int64_t token) { embed(token); });
      for (int64_t index = 0; index < m.layer_count; ++index) layer(phases, index);
      if (s.samples) logits(phases);
    }
  }

 private:
  static constexpr bool IS_OF_ONE_TYPE = std::is_same_v<T, W>;
  static constexpr int64_t PHASES = IS_OF_ONE_TYPE ? 9 : 11;

  Call<T> call(int64_t index) const {
    const int64_t page = s.block_size * m.kv_heads * m.head_dim;
    return {w.queries.data(), m.heads * m.head_dim, s.kv + 2 * index * page, 2 * m.layer_count * page, page,
            w.attended.data(), s.rows, s.tables, s.block_size, m.heads, m.kv_heads, float(m.layers[index].scaling)};
  }

  void embed(int64_t token) {
    float* to = &w.hidden[token * m.hidden];
    const int64_t id = s.token_ids[token];
    if (m.embedding) {
      const T* from = m.embedding + id * m.hidden;
      for (int64_t i = 0; i < m.hidden; ++i) to[i] = widened(from[i]);
    } else if constexpr (IS_OF_ONE_TYPE) {
      const T* from = m.head.tile(id / TILE_OUTPUTS);
      for (int64_t i = 0; i < m.hidden; ++i) to[i] = widened(from[place<T>(i, id % TILE_OUTPUTS)]);
    }
  }

  // Quantises a row for 8-bit weights.
  void quantise(int64_t row, const Number<T>* from, int64_t inputs) {
    if constexpr (!IS_OF_ONE_TYPE) as_bytes(&w.bytes[row * Rows<W>::stride(inputs)], from + row * inputs, inputs);
  }

  void quantise_all(Phases& phases, const Number<T>* from, int64_t count, int64_t inputs) {
    if constexpr (!IS_OF_ONE_TYPE) phases.share(count, [&](int64_t row) { quantise(row, from, inputs); });
  }

  Rows<W> rows_of(const std::vector<Number<T>>& from) const {
    if constexpr (IS_OF_ONE_TYPE) return {from.data()};
    else return {w.bytes.data()};
  }

  void layer(Phases& phases, int64_t index) {
    const Layer<W>& l = m.layers[index];
    const Call<T> attention = call(index);
    static thread_local Scratch scratch;
    phases.share(s.tokens, [&](int64_t token) { norm(token, l.attention_norm); });
    const int64_t width = (both + m.kv_heads) * m.head_dim;
    phases.share_runs(l.qkv.count(), [&](int64_t tile) {
      multiply(l.qkv, tile, rows_of(w.normed), s.tokens, [&](int64_t row, const float* sums) {
        put(&w.states[row * width], tile, width, sums);
      });
    });
    phases.share(s.tokens, [&](int64_t token) { rotate(token, l, attention); });
    phases.share(tiles.size(), [&](int64_t tile) { attend_one(attention, scratch, tiles[tile]); });
    int64_t rows = s.tokens;
    if (index == m.layer_count - 1) {  // after the cache is written, only sampled tokens matter
      rows = s.samples;
      phases.share(1, [&](int64_t) { keep_sampling(); });
    }
    quantise_all(phases, w.attended.data(), rows, m.heads * m.head_dim);
    phases.share_runs(l.output.count(), [&](int64_t tile) { add(l.output, tile, rows_of(w.attended), rows); });
    phases.share(rows, [&](int64_t token) { norm(token, l.mlp_norm); });
    phases.share_runs(l.gate_up.count(), [&](int64_t tile) {
      multiply(l.gate_up, tile, rows_of(w.normed), rows, [&](int64_t row, const float* sums) {
        for (int64_t i = 0; i < TILE_OUTPUTS / 2; i += LANES)
          store<LANES>(&w.activated[row * inner + tile * 16 + i], silu(load<LANES>(sums + i)) * load<LANES>(sums + 16 + i));
      });
    });
    quantise_all(phases, w.activated.data(), rows, inner);
    phases.share_runs(l.down.count(), [&](int64_t tile) { add(l.down, tile, rows_of(w.activated), rows); });
  }

  void logits(Phases& phases) {
    phases.share(s.samples, [&](int64_t row) { norm(row, m.norm); });
    phases.share_runs(m.head.count(), [&](int64_t tile) {
      multiply(m.head, tile, rows_of(w.normed), s.samples, [&](int64_t row, const float* sums) {
        put(s.logits + row * m.head.outputs, tile, m.head.outputs, sums);
      });
    });
    phases.share(s.samples, [&](int64_t row) {
      s.likeliest[row] = likeliest(s.logits + row * m.head.outputs, m.head.outputs, s.highest + row);
    });
  }

  void norm(int64_t token, const Norm& by) {
    normalise(&w.normed[token * m.hidden], &w.hidden[token * m.hidden], by, m.hidden);
    quantise(token, w.normed.data(), m.hidden);
  }

  static void put(float* line, int64_t tile, int64_t width, const float* sums) {
    const int64_t first = tile * TILE_OUTPUTS;
    std::memcpy(line + first, sums, std::min(TILE_OUTPUTS, width - first) * sizeof(float));
  }

  void add(const Weights<W>& weights, int64_t tile, const Rows<W>& from, int64_t rows) {
    const int64_t first = tile * TILE_OUTPUTS, count = std::min(TILE_OUTPUTS, m.hidden - first);
    multiply(weights, tile, from, rows, [&](int64_t row, const float* sums) {
      float* to = &w.hidden[row * m.hidden + first];
      for (int64_t i = 0; i < count; ++i) to[i] += sums[i];
    });
  }

  // Rotates a token's queries and keys by its position, and writes keys and values to their slots.
  void rotate(int64_t token, const Layer<W>& l, const Call<T>& to) {
    const int64_t D = m.head_dim, half = D / 2, line = m.kv_heads * D;
    float* states = &w.states[token * (both + m.kv_heads) * D];
    const float *cosines = s.cosines + s.positions[token] * half, *sines = s.sines + s.positions[token] * half;
    for (int64_t head = 0; head < both; ++head) {
      float* x = states + head * D;
      if (l.head_norm.weight) normalise(x, x, {l.head_norm.weight + head * D, l.head_norm.epsilon}, D);
      for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
      }
    }
    T* place = to.kv + s.slots[token] * line;
    narrow(&w.queries[token * m.heads * D], states, m.heads * D);
    narrow(place, states + m.heads * D, line);
    narrow(place + to.page, states + both * D, line);
  }

  void keep_sampling() {
    const int64_t width = m.heads * m.head_dim;
    for (int64_t row = 0; row < s.samples; ++row) {  // rows only move towards the front, in order
      std::memmove(&w.hidden[row * m.hidden], &w.hidden[s.logit_rows[row] * m.hidden], m.hidden * sizeof(float));
      std::memmove(&w.attended[row * width], &w.attended[s.logit_rows[row] * width], width * sizeof(w.attended[0]));
    }
  }

  const Model<T, W>& m;
  const Step<T>& s;
  Workspace<T>& w;
  const int64_t both, inner;
  std::vector<Tile> tiles;
  AttendTile<T> attend_one;
};

}  // namespace
