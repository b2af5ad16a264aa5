// Operations that combine values of the 32 lanes of a simdgroup. Inactive lanes count as the identity.
#include "simdgroup.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace {

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BFloat16(float value) {
    uint32_t u;
    memcpy(&u, &value, 4);
    bool is_nan = (u & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? (u >> 16) | 64 : (u + 0x7fff + (u >> 16 & 1)) >> 16;  // round to nearest, ties to even
  }
  operator float() const {
    uint32_t u = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &u, 4);
    return value;
  }
};

template <class T>
constexpr bool IS_INTEGER = std::is_integral_v<T>;

template <class T>
T apply(int operation, T a, T b) {
  switch (operation) {
    case OP_SUM: case OP_PREFIX_SUM: case OP_PREFIX_SUM_EXCLUSIVE: return T(a + b);
    case OP_PRODUCT: case OP_PREFIX_PRODUCT: case OP_PREFIX_PRODUCT_EXCLUSIVE: return T(a * b);
    case OP_MAX: return a > b || a != a ? a : b;
    case OP_MIN: return a < b || a != a ? a : b;
  }
  if constexpr (IS_INTEGER<T>) switch (operation) {
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
  }
  throw std::runtime_error("no simdgroup operation for this type");
}

template <class T>
T identity(int operation) {
  switch (operation) {
    case OP_PRODUCT: case OP_PREFIX_PRODUCT: case OP_PREFIX_PRODUCT_EXCLUSIVE: return T(1);
    case OP_AND: return T(-1);
    case OP_MAX:
      if constexpr (IS_INTEGER<T>) return std::numeric_limits<T>::min();
      return T(-INFINITY);
    case OP_MIN:
      if constexpr (IS_INTEGER<T>) return std::numeric_limits<T>::max();
      return T(INFINITY);
  }
  return T(0);
}

// Reduces groups of `width` lanes; every lane gets the result of its group.
template <class T>
void reduce(int operation, int width, T* values, uint32_t active, SumOrder order) {
  if (operation != OP_SUM && operation != OP_PRODUCT) order = SUM_NEAR;  // the order does not matter
  for (int base = 0; base < LANES; base += width) {
    T terms[LANES];
    for (int i = 0; i < width; i++)
      terms[i] = active >> (base + i) & 1 ? values[base + i] : identity<T>(operation);
    if (order == SUM_SEQUENTIAL) {
      T sum = terms[0];
      for (int i = 1; i < width; i++) sum = apply(operation, sum, terms[i]);
      for (int i = 0; i < width; i++) terms[i] = sum;
    } else {
      for (int step = 1; step < width; step *= 2) {
        int distance = order == SUM_NEAR ? step : width / 2 / step;
        T next[LANES];
        for (int i = 0; i < width; i++) next[i] = apply(operation, terms[i], terms[i ^ distance]);
        memcpy(terms, next, sizeof(T) * width);
      }
    }
    memcpy(values + base, terms, sizeof(T) * width);
  }
}

template <class T>
void prefix(int operation, T* values, uint32_t active) {
  bool is_inclusive = operation == OP_PREFIX_SUM || operation == OP_PREFIX_PRODUCT;
  T sum = identity<T>(operation);
  for (int i = 0; i < LANES; i++) {
    if (!(active >> i & 1)) continue;
    T next = apply(operation, sum, values[i]);
    values[i] = is_inclusive ? next : sum;
    sum = next;
  }
}

// Moves values between lanes. A lane keeps its value if its source is missing or inactive.
template <class T>
void shuffle(int operation, int width, T* values, const int* arguments, const T* fill, uint32_t active) {
  T moved[LANES];
  for (int i = 0; i < LANES; i++) {
    int in_group = i & (width - 1), base = i - in_group, source = i, distance = arguments[i];
    switch (operation) {
      case OP_SHUFFLE: case OP_BROADCAST: source = base + (distance & (width - 1)); break;
      case OP_SHUFFLE_DOWN: case OP_FILL_DOWN: if (in_group + distance < width) source = i + distance; break;
      case OP_SHUFFLE_UP: case OP_FILL_UP: if (in_group >= distance) source = i - distance; break;
      case OP_SHUFFLE_XOR: source = i ^ distance; break;
      case OP_BROADCAST_FIRST: {
        uint32_t group = active & (width == LANES ? ~0u : 15u << base);
        source = group ? __builtin_ctz(group) : i;
        break;
      }
    }
    moved[i] = source >= 0 && source < LANES && active >> source & 1 ? values[source] : values[i];
    if (operation == OP_FILL_DOWN && in_group + distance >= width) moved[i] = fill[base + in_group + distance - width];
    if (operation == OP_FILL_UP && in_group < distance) moved[i] = fill[base + in_group - distance + width];
  }
  memcpy(values, moved, sizeof moved);
}

// One operation on vectors of `count` elements.
template <class T>
void combine_typed(int operation, int width, LaneCall* const* lanes, uint32_t active, SumOrder order) {
  bool has_fill = operation == OP_FILL_DOWN || operation == OP_FILL_UP;
  int count = lanes[__builtin_ctz(active)]->count;
  for (int element = 0; element < count; element++) {
    T values[LANES], fill[LANES];
    int arguments[LANES] = {};
    memset(static_cast<void*>(values), 0, sizeof values);
    memset(static_cast<void*>(fill), 0, sizeof fill);
    for (int i = 0; i < LANES; i++) {
      if (!(active >> i & 1)) continue;
      const T* input = static_cast<const T*>(lanes[i]->input);
      values[i] = input[element];
      if (has_fill) fill[i] = input[count + element];
      arguments[i] = lanes[i]->argument;
    }
    if (operation <= OP_XOR) reduce(operation, width, values, active, order);
    else if (operation <= OP_PREFIX_PRODUCT_EXCLUSIVE) prefix(operation, values, active);
    else shuffle(operation, width, values, arguments, fill, active);
    for (int i = 0; i < LANES; i++)
      if (active >> i & 1) static_cast<T*>(lanes[i]->output)[element] = values[i];
  }
}

void vote(int operation, int width, LaneCall* const* lanes, uint32_t active) {
  for (int base = 0; base < LANES; base += width) {
    uint32_t group = width == LANES ? active : active & (15u << base), votes = 0;
    for (int i = base; i < base + width; i++)
      if (active >> i & 1 && *static_cast<uint8_t*>(lanes[i]->input) & 1) votes |= 1u << i;
    for (int i = base; i < base + width; i++) {
      if (!(active >> i & 1)) continue;
      void* output = lanes[i]->output;
      if (operation == OP_BALLOT) *static_cast<uint64_t*>(output) = votes;
      else *static_cast<uint8_t*>(output) = operation == OP_ANY ? votes != 0 : votes == group;
    }
  }
}

// Lane i holds elements (row, column) and (row, column + 1) of each 8x8 matrix.
void position_8x8(int lane, int& row, int& column) {
  int quad = lane / 4;
  row = (quad & 4) + lane / 2 % 4;
  column = (quad & 2) * 2 + lane % 2 * 2;
}

void matrix_8x8(LaneCall* const* lanes, ProductOrder order) {
  float a[8][8], b[8][8], d[8][8];
  for (int lane = 0; lane < LANES; lane++) {
    int row, column;
    position_8x8(lane, row, column);
    const float* input = static_cast<const float*>(lanes[lane]->input);
    for (int i = 0; i < 2; i++) {
      a[row][column + i] = input[i];
      b[row][column + i] = input[2 + i];
      d[row][column + i] = input[4 + i];
    }
  }
  for (int row = 0; row < 8; row++) {  // the inner loops over columns become vector instructions
    float* sum = d[row];
    if (order == PRODUCT_PAIRS) {
      for (int column = 0; column < 8; column++) {
        float t[8];
        for (int k = 0; k < 8; k++) t[k] = a[row][k] * b[k][column];
        sum[column] += ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]));
      }
    } else {
      for (int step = 0; step < 8; step++) {
        int k = order == PRODUCT_FMA ? step : 7 - step;
        for (int column = 0; column < 8; column++)
          sum[column] = __builtin_fmaf(a[row][k], b[k][column], sum[column]);
      }
    }
  }
  for (int lane = 0; lane < LANES; lane++) {
    int row, column;
    position_8x8(lane, row, column);
    memcpy(lanes[lane]->output, &d[row][column], 2 * sizeof(float));
  }
}

float element_at(const void* storage, int element, int index) {
  switch (element) {
    case FLOAT32: return static_cast<const float*>(storage)[index];
    case FLOAT16: return static_cast<const _Float16*>(storage)[index];
    default: return static_cast<const BFloat16*>(storage)[index];
  }
}

// Each lane holds 8 elements of A and 16 of B and of C, in 16x16 fragments.
void position_16x16(int lane, int index, int& row, int& column) {
  int quad = lane / 4;
  row = ((quad & 4) | (lane / 2 & 3)) + index / 4 * 8;
  column = ((quad & 2) | (lane & 1)) * 4 + index % 4;
}

void matrix_16x32x16(LaneCall* const* lanes, ProductOrder order) {
  float a[16][16], b[16][32], c[16][32];
  const char* descriptor = static_cast<char**>(lanes[0]->input)[0];
  int32_t shape[3];  // M, N, K
  memcpy(shape, descriptor, sizeof shape);
  bool is_a_transposed = descriptor[12], is_b_transposed = descriptor[13];
  if (shape[0] != 16 || shape[1] != 32 || shape[2] != 16)
    throw std::runtime_error("no tensor product of shape " + std::to_string(shape[0]) + "x" +
                             std::to_string(shape[1]) + "x" + std::to_string(shape[2]));
  auto for_each_element = [&](auto action) {
    for (int lane = 0; lane < LANES; lane++)
      for (int i = 0; i < 8; i++) {
        int row, column;
        position_16x16(lane, i, row, column);
        action(static_cast<char**>(lanes[lane]->input), i, row, column);
      }
  };
  int element_a = lanes[0]->element, element_b = lanes[0]->argument;
  for_each_element([&](char** storage, int i, int row, int column) {
    (is_a_transposed ? a[column][row] : a[row][column]) = element_at(storage[1], element_a, i);
    for (int half = 0; half < 2; half++) {
      float value = element_at(storage[2], element_b, 8 * half + i);
      (is_b_transposed ? b[column][16 * half + row] : b[row][16 * half + column]) = value;
      c[row][16 * half + column] = element_at(storage[3], FLOAT32, 8 * half + i);
    }
  });
  for (int row = 0; row < 16; row++) {
    if (order == PRODUCT_PAIRS) {
      for (int column = 0; column < 32; column++) {
        float t[16];
        for (int k = 0; k < 16; k++) t[k] = a[row][k] * b[k][column];
        for (int half = 8; half > 0; half /= 2)
          for (int k = 0; k < half; k++) t[k] += t[k + half];
        c[row][column] += t[0];
      }
      continue;
    }
    for (int step = 0; step < 16; step++) {
      int k = order == PRODUCT_FMA ? step : 15 - step;
      for (int column = 0; column < 32; column++)
        c[row][column] = __builtin_fmaf(a[row][k], b[k][column], c[row][column]);
    }
  }
  for_each_element([&](char** storage, int i, int row, int column) {
    for (int half = 0; half < 2; half++)
      reinterpret_cast<float*>(storage[3])[8 * half + i] = c[row][16 * half + column];
  });
}

}  // namespace

void combine(LaneCall* const* lanes, uint32_t active, SumOrder sums, ProductOrder products) {
  const LaneCall& first = *lanes[__builtin_ctz(active)];
  int width = first.operation >= QUAD ? 4 : LANES, operation = first.operation % QUAD;
  switch (operation) {
    case OP_BARRIER: return;
    case OP_MATRIX_8X8: case OP_MATRIX_16X32X16:
      if (active != ~0u) throw std::runtime_error("a matrix product that not all lanes reach");
      return operation == OP_MATRIX_8X8 ? matrix_8x8(lanes, products) : matrix_16x32x16(lanes, products);
    case OP_ANY: case OP_ALL: case OP_BALLOT: return vote(operation, width, lanes, active);
    case OP_IS_FIRST:
      for (int i = 0; i < LANES; i++)
        if (active >> i & 1) *static_cast<uint8_t*>(lanes[i]->output) = i == __builtin_ctz(active);
      return;
  }
  switch (first.element) {
    case FLOAT32: return combine_typed<float>(operation, width, lanes, active, sums);
    case FLOAT16: return combine_typed<_Float16>(operation, width, lanes, active, sums);
    case BFLOAT16: return combine_typed<BFloat16>(operation, width, lanes, active, sums);
    case INT32: return combine_typed<int32_t>(operation, width, lanes, active, sums);
    case UINT32: return combine_typed<uint32_t>(operation, width, lanes, active, sums);
    case INT16: return combine_typed<int16_t>(operation, width, lanes, active, sums);
    case UINT16: return combine_typed<uint16_t>(operation, width, lanes, active, sums);
    case INT8: return combine_typed<int8_t>(operation, width, lanes, active, sums);
    case UINT8: return combine_typed<uint8_t>(operation, width, lanes, active, sums);
    case INT64: return combine_typed<int64_t>(operation, width, lanes, active, sums);
    case UINT64: return combine_typed<uint64_t>(operation, width, lanes, active, sums);
  }
}
