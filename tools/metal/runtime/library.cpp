// The functions that Python calls through ctypes, the loader of translated kernels, and the functions that these call.
#include "library.h"

#include <llvm/ExecutionEngine/Orc/ExecutionUtils.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/TargetSelect.h>

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "interface.h"

namespace {

using namespace llvm;
using namespace llvm::orc;

template <class T>
T value_of(Expected<T> expected) {
  if (!expected) throw std::runtime_error(toString(expected.takeError()));
  return static_cast<T>(std::move(*expected));
}

template <class T>
T& value_of(Expected<T&> expected) {
  if (!expected) throw std::runtime_error(toString(expected.takeError()));
  return *expected;
}

void check(Error error) {
  if (error) throw std::runtime_error(toString(std::move(error)));
}

uint16_t bfloat16_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return std::isnan(value) ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// The compiler's helpers for bfloat16 return the bits in a vector register.
__bf16 to_bfloat16(float value) {
  uint16_t bits = bfloat16_bits(value);
  __bf16 result;
  memcpy(&result, &bits, 2);
  return result;
}
__bf16 double_to_bfloat16(double value) { return to_bfloat16(float(value)); }

float rsqrt(float x) { return 1.0f / std::sqrt(x); }
float sinpi(float x) { return float(std::sin(M_PI * double(x))); }
float cospi(float x) { return float(std::cos(M_PI * double(x))); }
float exp10_(float x) { return ::exp10f(x); }

// What translated kernels call. The C library's functions stand for Metal's, whose results may differ in the last bit.
SymbolMap executor_symbols(ExecutionSession& session, const DataLayout& layout) {
  MangleAndInterner mangle(session, layout);
  SymbolMap symbols;
  auto add = [&](const char* name, auto* function) {
    symbols[mangle(name)] = {ExecutorAddr::fromPtr(function), JITSymbolFlags::Exported | JITSymbolFlags::Callable};
  };
  add("air_simd", &air_simd);
  add("air_threadgroup_barrier", &air_threadgroup_barrier);
  add("air_lane", &air_lane);
  add("__truncsfbf2", &to_bfloat16);
  add("__truncdfbf2", &double_to_bfloat16);
  add("air_exp", &::expf), add("air_exp2", &::exp2f), add("air_exp10", &exp10_);
  add("air_log", &::logf), add("air_log2", &::log2f), add("air_log10", &::log10f);
  add("air_sin", &::sinf), add("air_cos", &::cosf), add("air_tan", &::tanf);
  add("air_asin", &::asinf), add("air_acos", &::acosf), add("air_atan", &::atanf), add("air_atan2", &::atan2f);
  add("air_sinh", &::sinhf), add("air_cosh", &::coshf), add("air_tanh", &::tanhf);
  add("air_asinh", &::asinhf), add("air_acosh", &::acoshf), add("air_atanh", &::atanhf);
  add("air_pow", &::powf), add("air_powr", &::powf), add("air_cbrt", &::cbrtf), add("air_rsqrt", &rsqrt);
  add("air_sinpi", &sinpi), add("air_cospi", &cospi);
  add("air_fmod", &::fmodf), add("air_fdim", &::fdimf), add("air_ldexp", &::ldexpf);
  add("air_nextafter", &::nextafterf);
  return symbols;
}

LLJIT& jit() {
  static std::unique_ptr<LLJIT> instance = [] {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
    return value_of(LLJITBuilder().create());
  }();
  return *instance;
}

Kernel load(const std::string& object) {
  static int count = 0;
  LLJIT& loader = jit();
  auto& library = value_of(loader.createJITDylib("kernel" + std::to_string(count++)));
  check(library.define(absoluteSymbols(executor_symbols(loader.getExecutionSession(), loader.getDataLayout()))));
  char prefix = loader.getDataLayout().getGlobalPrefix();
  library.addGenerator(value_of(DynamicLibrarySearchGenerator::GetForCurrentProcess(prefix)));  // memcpy, memset
  check(loader.addObjectFile(library, MemoryBuffer::getMemBufferCopy(object)));
  Kernel kernel;
  kernel.entry = value_of(loader.lookup(library, "air_entry")).toPtr<decltype(kernel.entry)>();
  kernel.flags = value_of(loader.lookup(library, "air_flags")).toPtr<const int*>();
  return kernel;
}

enum { ERROR_BYTES = 1024 };
char error_text[ERROR_BYTES];

// Runs a function; an exception becomes the text that metal_error returns.
template <class Function>
int guarded(Function function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    snprintf(error_text, ERROR_BYTES, "%s", error.what());
    return -1;
  }
}

std::string result;  // of the last call that returns bytes

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* metal_error() { return error_text; }
EXPORTED const char* metal_result() { return result.data(); }
EXPORTED uint64_t metal_result_size() { return result.size(); }

// constants: index, size and bytes of each function constant, as in `PackedConstant`.
struct PackedConstant {
  uint32_t index, size;
  uint8_t bytes[8];
};

EXPORTED int metal_translate(const char* bitcode, uint64_t size, const PackedConstant* constants, int count) {
  return guarded([&] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
      throw std::runtime_error("translated kernels need a processor with AVX2, FMA and F16C");
    Constants values;
    for (int i = 0; i < count; i++)
      values[constants[i].index].assign(reinterpret_cast<const char*>(constants[i].bytes), constants[i].size);
    result = translate({bitcode, size}, values);
  });
}

EXPORTED int metal_digest(const char* bitcode, uint64_t size) {
  return guarded([&] { result = code_digest({bitcode, size}); });
}

// Returns a kernel, which stays loaded, or null.
EXPORTED const Kernel* metal_load(const char* object, uint64_t size) {
  const Kernel* kernel = nullptr;
  guarded([&] { kernel = new Kernel(load({object, size})); });
  return kernel;
}

EXPORTED int metal_execute(const Kernel* kernel, void** buffers, const uint64_t* sizes,
                           const uint64_t* threadgroup_sizes, const Dispatch* dispatch, Fault* faults,
                           int max_faults, int* num_faults) {
  return guarded([&] {
    execute(*kernel, buffers, sizes, threadgroup_sizes, *dispatch, faults, max_faults, *num_faults);
  });
}
