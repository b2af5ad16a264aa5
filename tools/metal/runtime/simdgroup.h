// Operations that combine values of the 32 lanes of a simdgroup.
#pragma once
#include "interface.h"
#include "library.h"

enum { LANES = 32 };

// What a lane passed to air_simd.
struct LaneCall {
  int operation, element, count, argument;
  void *input, *output;
};

// Computes the results of the lanes whose bits are set in `active`. They all called the same operation.
void combine(LaneCall* const* lanes, uint32_t active, SumOrder sums, ProductOrder products);
