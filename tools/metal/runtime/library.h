// The parts of the library. Errors are std::runtime_error; library.cpp reports them to Python.
#pragma once
#include <cstdint>
#include <map>
#include <string>

using Constants = std::map<uint64_t, std::string>;  // function constants: index -> bytes

// translate.cpp
std::string translate(const std::string& bitcode, const Constants& constants);  // -> an object file
std::string code_digest(const std::string& bitcode);  // a digest of a kernel's code without the compiler's version

// execute.cpp
struct Kernel {
  void (*entry)(void** buffers, void** threadgroup, uint32_t* thread);
  const int* flags;
};

// How threads combine values in an order that Metal does not specify.
enum SumOrder { SUM_NEAR, SUM_FAR, SUM_SEQUENTIAL };  // partners at distance 1, 2, 4, ...; 16, 8, ...; lane by lane
enum ProductOrder { PRODUCT_FMA, PRODUCT_REVERSE, PRODUCT_PAIRS };

// Where a buffer lies between pages that fault.
enum Placement { UNGUARDED, ENDS_AT_GUARD, BEGINS_AT_GUARD };

struct Dispatch {
  uint64_t grid[3], group[3];
  uint64_t groups_to_run[3];  // the first threadgroups along each axis; 0: all
  int32_t grid_is_threads;  // grid counts threads rather than threadgroups
  int32_t sum_order, product_order, placement;
};

// Accesses outside an argument, which the guard pages caught.
struct Fault {
  int32_t argument;  // -1: outside all guard pages; the kernel was stopped
  int32_t is_threadgroup;
  uint64_t reads_before, reads_behind, writes_before, writes_behind;  // the largest distance in bytes, 0 for none
};

void execute(const Kernel& kernel, void** buffers, const uint64_t* sizes, const uint64_t* threadgroup_sizes,
             const Dispatch& dispatch, Fault* faults, int max_faults, int& num_faults);
