// What translated kernels and the executor agree on. Kernels call the `air_` functions; the executor calls `air_entry`.
#pragma once
#include <cstdint>

// Operations of the lanes of a simdgroup. Quad operations have QUAD added.
enum Operation {
  OP_BARRIER, OP_SUM, OP_PRODUCT, OP_MAX, OP_MIN, OP_AND, OP_OR, OP_XOR,  // reductions: every lane gets the result
  OP_PREFIX_SUM, OP_PREFIX_SUM_EXCLUSIVE, OP_PREFIX_PRODUCT, OP_PREFIX_PRODUCT_EXCLUSIVE,
  OP_SHUFFLE, OP_SHUFFLE_DOWN, OP_SHUFFLE_UP, OP_SHUFFLE_XOR, OP_BROADCAST, OP_BROADCAST_FIRST,
  OP_FILL_DOWN, OP_FILL_UP,  // shuffles whose missing values come from a second operand
  OP_ANY, OP_ALL, OP_BALLOT, OP_IS_FIRST,
  OP_MATRIX_8X8,       // D[8][8] = A[8][8] B[8][8] + C[8][8], two elements of each matrix in a lane
  OP_MATRIX_16X32X16,  // C[16][32] += A[16][16] B[16][32], the neural accelerators of an M5
};
enum { QUAD = 32 };

enum Element {
  FLOAT32, FLOAT16, BFLOAT16, INT32, UINT32, INT16, UINT16, INT8, UINT8, INT64, UINT64,
};

// The thread table: a row of four 32-bit numbers for each attribute of a thread.
enum ThreadAttribute {
  THREAD_IN_GRID, GROUP_IN_GRID, THREAD_IN_GROUP, THREADS_PER_GRID, THREADS_PER_GROUP, GROUPS_PER_GRID,
  INDEX_IN_GROUP, SIMDGROUP_IN_GROUP, LANE, SIMD_WIDTH, SIMDGROUPS_PER_GROUP, NUM_ATTRIBUTES,
};

enum { MAX_ARGUMENTS = 31 };  // Metal's limit of buffer indices

extern "C" {
// Waits until the lanes of the simdgroup that run the same operation have arrived, and writes this lane's result.
// input: `count` elements, and as many of a second operand for OP_FILL_*. argument: a distance, a lane, or for
// OP_MATRIX_16X32X16 the element of B, whose input is pointers to a descriptor and to the fragments of A, B and C.
void air_simd(int operation, int element, int count, void* input, void* output, int argument);
void air_threadgroup_barrier();
int air_lane();
}
