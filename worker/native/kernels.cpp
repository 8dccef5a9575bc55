// The functions that Python calls. Torch's headers are not included, so this compiles in seconds and works with any version.
#include "decoder.h"

namespace {

// Writes keys and values to their slots, which are line numbers of a layer's memory.
template <typename T>
void write(const Call<T>& call, const T* key, int64_t key_stride, const T* value, int64_t value_stride, const int64_t* slots, int64_t tokens, int64_t line) {
  for (int64_t token = 0; token < tokens; ++token) {
    T* place = call.kv + slots[token] * line;
    std::memcpy(place, key + token * key_stride, line * sizeof(T));
    std::memcpy(place + call.page, value + token * value_stride, line * sizeof(T));
  }
}

template <typename T>
int attend(
    const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* kv, int64_t block_stride,
    int64_t page, T* out, const int64_t* slots, int64_t tokens, const int64_t* rows, int64_t row_count, const int64_t* tables,
    int64_t block_size, int64_t heads, int64_t kv_heads, int64_t head_dim, float scaling, int threads) {
  const AttendTile<T> attend_one = attend_tile_of<T>(head_dim);
  if (!attend_one) return 1;
  constexpr bool IS_WIDENED = !std::is_same_v<T, Number<T>>;
  const int64_t width = heads * head_dim;
  std::vector<Number<T>> queries(IS_WIDENED ? tokens * width : 0), found(queries.size());
  Call<T> call{nullptr, query_stride, kv, block_stride, page, nullptr, rows, tables, block_size, heads, kv_heads, scaling};
  if constexpr (IS_WIDENED) {
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t i = 0; i < width; ++i) queries[token * width + i] = widened(query[token * query_stride + i]);
    call.query = queries.data(), call.query_stride = width, call.out = found.data();
  } else {
    call.query = query, call.out = out;
  }
  write(call, key, key_stride, value, value_stride, slots, tokens, kv_heads * head_dim);
  const std::vector<Tile> tiles = tiles_of(call, row_count);
  Tickets tickets(1, 1);
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch scratch;
    Phases(tickets).share(tiles.size(), [&](int64_t tile) { attend_one(call, scratch, tiles[tile]); });
  }
  if constexpr (IS_WIDENED) narrow(out, found.data(), tokens * width);
  return 0;
}

template <typename T, typename W> int decode(const Model<T, W>& model, const Step<T>& step) {
  if (!attend_tile_of<T>(model.head_dim)) return 1;
  static thread_local Workspace<T> space;
  Forward<T, W>(model, step, space).run();
  return 0;
}

}  // namespace

// `attend_…` implements `AttentionBackend.attend`, into `out`. Strides in elements; within a token, heads are contiguous.
// Rows and tables: see `Call`. `decode_…` computes a step's logits. Both return 1 if the head size is not compiled.
// `decode_int8` uses 8-bit weights, and bfloat16 for everything else.
#define DEFINE(name, T)                                                                                                   \
  extern "C" int attend_##name(                                                                                           \
      const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value, int64_t value_stride,       \
      T* kv, int64_t block_stride, int64_t page, T* out, const int64_t* slots, int64_t tokens, const int64_t* rows,       \
      int64_t row_count, const int64_t* tables, int64_t block_size, int64_t heads, int64_t kv_heads,              \
      int64_t head_dim, float scaling, int threads) {                                                                     \
    return attend(query, query_stride, key, key_stride, value, value_stride, kv, block_stride, page, out, slots, tokens,  \
                  rows, row_count, tables, block_size, heads, kv_heads, head_dim, scaling, threads);              \
  }                                                                                                                       \
  extern "C" int decode_##name(const Model<T, T>* model, const Step<T>* step) { return decode(*model, *step); }
DEFINE(float32, float)
DEFINE(bfloat16, Bfloat16)
extern "C" int decode_int8(const Model<Bfloat16, Int8>* model, const Step<Bfloat16>* step) { return decode(*model, *step); }
