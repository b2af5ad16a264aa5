// Copies of a dispatch's arguments between pages that fault, and a record of the accesses of these pages.
#pragma once
#include "library.h"

// Copies argument i (sizes[i] bytes, 0: none) and lets buffers[i] point to the copy. Likewise threadgroup memory.
void place_between_guards(void** buffers, const uint64_t* sizes, void** threadgroup, const uint64_t* threadgroup_sizes,
                          Placement placement);

// Runs a function. Throws std::runtime_error for an access of memory that is neither an argument nor a guard page.
void run_with_guards(void (*function)(void*), void* context);

// Copies the arguments back, removes all guards and returns the number of faults, of which `faults` holds up to `limit`.
int remove_guards(Fault* faults, int limit);
