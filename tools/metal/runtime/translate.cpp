// Translates a kernel from AIR, the LLVM bitcode in a metallib, into an object file for x86-64.
//
// The object exports `air_entry(buffers, threadgroup memory, thread table)`, which runs one thread, and `air_flags`:
// whether threads wait for each other, and the kernel's limit of threads in a threadgroup (0: none).
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/IRReader/IRReader.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/SHA256.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "interface.h"
#include "library.h"

using namespace llvm;

namespace {

using Values = std::vector<Value*>;
constexpr char TARGET[] = "x86_64-pc-linux-gnu";

[[noreturn]] void fail(const std::string& problem) { throw std::runtime_error(problem); }

std::vector<std::string> split(StringRef name) {
  SmallVector<StringRef, 8> parts;
  name.split(parts, '.');
  return {parts.begin(), parts.end()};
}

// Replaces the calls of AIR's built-in functions by LLVM instructions and calls of the executor.
class Builtins {
 public:
  explicit Builtins(Module& module) : module(module), context(module.getContext()) {}
  bool waits = false;  // whether a thread waits for others

  void replace_all() {
    std::vector<CallInst*> calls;
    for (auto& function : module)
      for (auto& instruction : instructions(function))
        if (auto* call = dyn_cast<CallInst>(&instruction))
          if (auto* callee = call->getCalledFunction())
            if (callee->getName().starts_with("air.") || callee->getName().starts_with("__tensorops_impl_"))
              calls.push_back(call);
    for (auto* call : calls) {
      IRBuilder<> b(call);
      Value* result = replacement(b, call);
      if (result && !call->getType()->isVoidTy()) call->replaceAllUsesWith(result);
      call->eraseFromParent();
    }
  }

 private:
  Module& module;
  LLVMContext& context;

  Type* float32() { return Type::getFloatTy(context); }
  Value* to_float32(IRBuilder<>& b, Value* value) {
    return value->getType()->isFloatTy() ? value : b.CreateFPCast(value, float32());
  }

  // The value that replaces a call, or null if the call has none.
  Value* replacement(IRBuilder<>& b, CallInst* call) {
    StringRef name = call->getCalledFunction()->getName();
    if (name.starts_with("__tensorops_impl_")) return tensor_operation(b, call, name);
    auto parts = split(name);  // air.OPERATION[.SIGN].TYPE
    const std::string& operation = parts.at(1);
    char sign = parts.size() > 2 ? (parts[2].size() > 1 ? 'f' : parts[2][0]) : 0;
    Type* type = call->getType();
    if (operation == "get_thread_index_in_simdgroup")
      return b.CreateIntCast(b.CreateCall(module.getOrInsertFunction("air_lane", b.getInt32Ty())), type, false);
    if (operation == "get_simdgroup_size" || operation == "get_threads_per_simdgroup") return ConstantInt::get(type, 32);
    if (operation == "is_uniform") return b.getTrue();
    if (operation == "convert") return convert(b, call, parts);
    if (operation == "atomic") return atomic(b, call, parts);
    if (operation == "normalize_function_constant_predicate") {
      Value* value = call->getArgOperand(0);
      return b.CreateZExt(b.CreateICmpNE(value, Constant::getNullValue(value->getType())), type);
    }
    if (operation == "wg") {
      waits = true;
      b.CreateCall(module.getOrInsertFunction("air_threadgroup_barrier", b.getVoidTy()))->setConvergent();
      return nullptr;
    }
    if (operation == "simdgroup") {
      Value* none = ConstantPointerNull::get(b.getPtrTy());
      call_executor(b, OP_BARRIER, 0, 0, none, none, b.getInt32(0));
      return nullptr;
    }
    if (operation == "simdgroup_matrix_8x8_multiply_accumulate") return matrix_8x8(b, call);
    if (operation == "dot") return dot(b, call);
    if (operation.rfind("simd_", 0) == 0 || operation.rfind("quad_", 0) == 0)
      return lanes_operation(b, call, operation, sign);
    return elementwise(b, operation, sign, call);
  }

  void call_executor(IRBuilder<>& b, int operation, int element, int count, Value* in, Value* out, Value* argument) {
    waits = true;
    Type *i32 = b.getInt32Ty(), *pointer = b.getPtrTy();
    auto type = FunctionType::get(b.getVoidTy(), {i32, i32, i32, pointer, pointer, i32}, false);
    auto function = module.getOrInsertFunction("air_simd", type);
    auto* call = b.CreateCall(
        function, {b.getInt32(operation), b.getInt32(element), b.getInt32(count), in, out, argument});
    call->setConvergent();
  }

  Value* call_libm(IRBuilder<>& b, const std::string& name, const Values& arguments) {
    std::vector<Type*> types;
    for (auto* value : arguments) types.push_back(value->getType());
    auto callee = module.getOrInsertFunction("air_" + name, FunctionType::get(float32(), types, false));
    auto* function = cast<Function>(callee.getCallee());
    function->setDoesNotAccessMemory();
    function->setDoesNotThrow();
    return b.CreateCall(callee, arguments);
  }

  // Applies a scalar operation to each element of vectors.
  Value* elementwise(IRBuilder<>& b, const std::string& operation, char sign, CallInst* call) {
    Type* type = call->getType();
    Values arguments(call->arg_begin(), call->arg_end());
    auto* vector = dyn_cast<FixedVectorType>(type);
    if (!vector) return scalar(b, operation, sign, arguments, type);
    Value* result = PoisonValue::get(type);
    for (unsigned i = 0; i < vector->getNumElements(); i++) {
      Values elements;
      for (auto* value : arguments)
        elements.push_back(value->getType()->isVectorTy() ? b.CreateExtractElement(value, i) : value);
      result = b.CreateInsertElement(result, scalar(b, operation, sign, elements, vector->getElementType()), i);
    }
    return result;
  }

  // sign: 's', 'u' or 'f', the kind of number; 0 if the name does not tell.
  Value* scalar(IRBuilder<>& b, std::string name, char sign, Values a, Type* type) {
    for (const char* prefix : {"fast_", "precise_"})
      if (name.rfind(prefix, 0) == 0) name = name.substr(strlen(prefix));
    Type* operand = a[0]->getType();
    bool is_float = operand->isFloatingPointTy();
    if (name == "fmin" || name == "fmax" || (is_float && (name == "min" || name == "max")))
      return b.CreateBinaryIntrinsic(name.back() == 'n' ? Intrinsic::minnum : Intrinsic::maxnum, a[0], a[1]);
    if (name == "min") return b.CreateBinaryIntrinsic(sign == 's' ? Intrinsic::smin : Intrinsic::umin, a[0], a[1]);
    if (name == "max") return b.CreateBinaryIntrinsic(sign == 's' ? Intrinsic::smax : Intrinsic::umax, a[0], a[1]);
    if (name == "clamp") return scalar(b, "min", sign, {scalar(b, "max", sign, {a[0], a[1]}, type), a[2]}, type);
    if (name == "saturate") {
      Value *zero = ConstantFP::get(operand, 0.0), *one = ConstantFP::get(operand, 1.0);
      return scalar(b, "clamp", 'f', {a[0], zero, one}, type);
    }
    if (name == "abs" && !is_float) return b.CreateBinaryIntrinsic(Intrinsic::abs, a[0], b.getFalse());
    if (name == "abs" || name == "fabs") return b.CreateUnaryIntrinsic(Intrinsic::fabs, a[0]);
    if (name == "fma") {
      Value* sum = b.CreateIntrinsic(
          Intrinsic::fma, {float32()}, {to_float32(b, a[0]), to_float32(b, a[1]), to_float32(b, a[2])});
      return b.CreateFPCast(sum, operand);
    }
    if (name == "copysign") return b.CreateBinaryIntrinsic(Intrinsic::copysign, a[0], a[1]);
    if (name == "clz") return b.CreateBinaryIntrinsic(Intrinsic::ctlz, a[0], b.getFalse());
    if (name == "ctz") return b.CreateBinaryIntrinsic(Intrinsic::cttz, a[0], b.getFalse());
    if (name == "popcount") return b.CreateUnaryIntrinsic(Intrinsic::ctpop, a[0]);
    if (name == "reverse_bits") return b.CreateUnaryIntrinsic(Intrinsic::bitreverse, a[0]);
    if (name == "rotate") return b.CreateIntrinsic(Intrinsic::fshl, {operand}, {a[0], a[0], a[1]});
    if (name == "mul24") return b.CreateMul(a[0], a[1]);
    if (name == "mul_hi") {
      unsigned width = operand->getIntegerBitWidth();
      Type* wide = IntegerType::get(context, 2 * width);
      auto widened = [&](Value* value) { return b.CreateIntCast(value, wide, sign == 's'); };
      return b.CreateTrunc(b.CreateLShr(b.CreateMul(widened(a[0]), widened(a[1])), width), operand);
    }
    if (name == "sign") {
      Value *zero = ConstantFP::get(operand, 0.0), *one = ConstantFP::get(operand, 1.0);
      Value* negative = b.CreateSelect(b.CreateFCmpOLT(a[0], zero), ConstantFP::get(operand, -1.0), zero);
      return b.CreateSelect(b.CreateFCmpOGT(a[0], zero), one, negative);
    }
    if (name == "ldexp") return b.CreateFPCast(call_libm(b, name, {to_float32(b, a[0]), a[1]}), type);
    static const std::map<std::string, Intrinsic::ID> rounding = {
        {"sqrt", Intrinsic::sqrt},   {"floor", Intrinsic::floor}, {"ceil", Intrinsic::ceil},
        {"trunc", Intrinsic::trunc}, {"rint", Intrinsic::rint},   {"round", Intrinsic::round}};
    if (auto found = rounding.find(name); found != rounding.end())
      return b.CreateFPCast(b.CreateUnaryIntrinsic(found->second, to_float32(b, a[0])), type);
    if (is_libm(name)) {
      Values floats;
      for (auto* value : a) floats.push_back(to_float32(b, value));
      return b.CreateFPCast(call_libm(b, name, floats), type);
    }
    fail("no translation of air." + name);
  }

  static bool is_libm(const std::string& name) {
    static const std::set<std::string> names = {
        "exp",   "exp2",  "exp10", "log",   "log2",  "log10", "sin",   "cos",    "tan",   "sinh",
        "cosh",  "tanh",  "asin",  "acos",  "atan",  "asinh", "acosh", "atanh",  "rsqrt", "sinpi",
        "cospi", "atan2", "fmod",  "fdim",  "pow",   "powr",  "cbrt",  "nextafter"};
    return names.count(name);
  }

  Value* dot(IRBuilder<>& b, CallInst* call) {
    unsigned count = cast<FixedVectorType>(call->getArgOperand(0)->getType())->getNumElements();
    auto element = [&](int a, unsigned i) { return to_float32(b, b.CreateExtractElement(call->getArgOperand(a), i)); };
    Value* sum = b.CreateFMul(element(0, 0), element(1, 0));
    for (unsigned i = 1; i < count; i++)
      sum = b.CreateIntrinsic(Intrinsic::fma, {float32()}, {element(0, i), element(1, i), sum});
    return b.CreateFPCast(sum, call->getType());
  }

  int element_of(Type* type, char sign) {
    if (type->isFloatTy()) return FLOAT32;
    if (type->isHalfTy()) return FLOAT16;
    if (type->isBFloatTy()) return BFLOAT16;
    bool is_signed = sign == 's';
    switch (type->getIntegerBitWidth()) {
      case 1: return UINT8;
      case 8: return is_signed ? INT8 : UINT8;
      case 16: return is_signed ? INT16 : UINT16;
      case 32: return is_signed ? INT32 : UINT32;
      case 64: return is_signed ? INT64 : UINT64;
    }
    fail("no simdgroup operation for this type");
  }

  // Memory of a thread, through which it exchanges values with other lanes.
  AllocaInst* memory(Function* function, Type* type) {
    IRBuilder<> b(&function->getEntryBlock(), function->getEntryBlock().begin());
    auto* memory = b.CreateAlloca(type);
    memory->setAlignment(Align(16));
    return memory;
  }

  Value* lanes_operation(IRBuilder<>& b, CallInst* call, const std::string& full_name, char sign) {
    static const std::map<std::string, int> codes = {
        {"sum", OP_SUM}, {"product", OP_PRODUCT}, {"max", OP_MAX}, {"min", OP_MIN},
        {"and", OP_AND}, {"or", OP_OR}, {"xor", OP_XOR},
        {"prefix_inclusive_sum", OP_PREFIX_SUM}, {"prefix_exclusive_sum", OP_PREFIX_SUM_EXCLUSIVE},
        {"prefix_inclusive_product", OP_PREFIX_PRODUCT}, {"prefix_exclusive_product", OP_PREFIX_PRODUCT_EXCLUSIVE},
        {"shuffle", OP_SHUFFLE}, {"shuffle_down", OP_SHUFFLE_DOWN}, {"shuffle_up", OP_SHUFFLE_UP},
        {"shuffle_xor", OP_SHUFFLE_XOR}, {"broadcast", OP_BROADCAST}, {"broadcast_first", OP_BROADCAST_FIRST},
        {"shuffle_and_fill_down", OP_FILL_DOWN}, {"shuffle_and_fill_up", OP_FILL_UP},
        {"any", OP_ANY}, {"all", OP_ALL}, {"vote_any", OP_ANY}, {"vote_all", OP_ALL}, {"ballot", OP_BALLOT},
        {"is_first", OP_IS_FIRST}};
    auto found = codes.find(full_name.substr(5));
    if (found == codes.end()) fail("no translation of air." + full_name);
    int operation = found->second;
    Values data = {operation == OP_IS_FIRST ? b.getTrue() : call->getArgOperand(0)};
    Value* argument = b.getInt32(0);
    auto distance = [&](int index) { return b.CreateSExtOrTrunc(call->getArgOperand(index), b.getInt32Ty()); };
    if (operation == OP_FILL_DOWN || operation == OP_FILL_UP) {
      data.push_back(call->getArgOperand(1));
      argument = distance(2);
    } else if (operation >= OP_SHUFFLE && operation <= OP_BROADCAST) {
      argument = distance(1);
    }
    if (full_name[0] == 'q') operation += QUAD;
    return exchange(b, call, operation, sign, data, argument);
  }

  Value* exchange(IRBuilder<>& b, CallInst* call, int operation, char sign, const Values& data, Value* argument) {
    Type* byte = b.getInt8Ty();
    auto stored = [&](Type* type) { return type->isIntegerTy(1) ? byte : type; };
    Type *type = data[0]->getType(), *result = call->getType();
    auto* vector = dyn_cast<FixedVectorType>(type);
    int count = vector ? vector->getNumElements() : 1;
    Type* element = vector ? vector->getElementType() : type;
    Function* function = call->getFunction();
    auto* in = memory(function, ArrayType::get(stored(element), count * data.size()));
    auto* out = memory(function, stored(result));
    int slot = 0;
    for (auto* value : data)
      for (int i = 0; i < count; i++) {
        Value* each = vector ? b.CreateExtractElement(value, i) : value;
        if (element->isIntegerTy(1)) each = b.CreateZExt(each, byte);
        b.CreateStore(each, b.CreateConstGEP1_32(stored(element), in, slot++));
      }
    call_executor(b, operation, element_of(element, sign), count, in, out, argument);
    if (result->isIntegerTy(1)) return b.CreateTrunc(b.CreateLoad(byte, out), result);
    if (!vector) return b.CreateLoad(result, out);
    Value* joined = PoisonValue::get(result);
    for (int i = 0; i < count; i++)
      joined = b.CreateInsertElement(joined, b.CreateLoad(element, b.CreateConstGEP1_32(element, out, i)), i);
    return joined;
  }

  Value* matrix_8x8(IRBuilder<>& b, CallInst* call) {
    auto* in = memory(call->getFunction(), ArrayType::get(float32(), 6));
    auto* out = memory(call->getFunction(), ArrayType::get(float32(), 2));
    for (int operand = 0; operand < 3; operand++)
      for (int i = 0; i < 2; i++) {
        Value* element = to_float32(b, b.CreateExtractElement(call->getArgOperand(operand), i));
        b.CreateStore(element, b.CreateConstGEP1_32(float32(), in, operand * 2 + i));
      }
    call_executor(b, OP_MATRIX_8X8, FLOAT32, 1, in, out, b.getInt32(0));
    auto* vector = cast<FixedVectorType>(call->getType());
    Value* result = PoisonValue::get(vector);
    for (int i = 0; i < 2; i++) {
      Value* element = b.CreateLoad(float32(), b.CreateConstGEP1_32(float32(), out, i));
      result = b.CreateInsertElement(result, b.CreateFPCast(element, vector->getElementType()), i);
    }
    return result;
  }

  // Products of cooperative tensors (Metal 4, the neural accelerators of an M5). Only products of 16x16 and 16x32
  // matrices occur, whose fragments have 8 elements in each lane.
  Value* tensor_operation(IRBuilder<>& b, CallInst* call, StringRef name) {
    auto argument = [&](int i) { return call->getArgOperand(i); };
    if (name.ends_with("_data_size")) return ConstantInt::get(call->getType(), 256);
    if (name.ends_with("_init")) return nullptr;
    if (name.ends_with("_get_element_pointer")) {
      // Arguments: operand, M, N, K, two transpositions, relaxed, mode, storage, index, the types of the operands.
      // Index -1 is the storage itself.
      auto* operand = dyn_cast<ConstantInt>(argument(0));
      if (!operand) fail("tensor operand that is not constant");
      auto* type = dyn_cast<ConstantInt>(argument(10 + operand->getZExtValue()));
      if (!type) fail("tensor type that is not constant");
      Value *index = b.CreateSExt(argument(9), b.getInt64Ty()), *zero = b.getInt64(0);
      index = b.CreateSelect(b.CreateICmpSLT(index, zero), zero, index);
      uint64_t size = (type->getZExtValue() & 255) / 8;
      return b.CreateGEP(b.getInt8Ty(), argument(8), b.CreateMul(index, b.getInt64(size)));
    }
    auto at = name.find("run_cooperative_");
    if (at == StringRef::npos) fail("no translation of " + name.str());
    SmallVector<StringRef, 3> types;  // of A, B and C
    name.substr(at + strlen("run_cooperative_")).split(types, '_');
    if (types.size() != 3 || types[2] != "f32") fail("no translation of " + name.str());
    auto element = [&](StringRef type) {
      if (type == "f32") return FLOAT32;
      if (type == "f16") return FLOAT16;
      if (type == "b16") return BFLOAT16;
      fail("no translation of " + name.str());
    };
    Type* pointer = b.getPtrTy();
    auto* in = memory(call->getFunction(), ArrayType::get(pointer, 4));  // a descriptor, and storage of A, B, C
    for (int i = 0; i < 4; i++)
      b.CreateStore(b.CreateAddrSpaceCast(argument(i), pointer), b.CreateConstGEP1_32(pointer, in, i));
    call_executor(b, OP_MATRIX_16X32X16, element(types[0]), 1, in, in, b.getInt32(element(types[1])));
    return nullptr;
  }

  // air.atomic.SPACE.OPERATION[.SIGN].TYPE. Threads run one after the other, so a load and a store are atomic.
  Value* atomic(IRBuilder<>& b, CallInst* call, const std::vector<std::string>& parts) {
    const std::string& operation = parts.at(3);
    char sign = parts.size() > 4 ? parts[4][0] : 'u';
    auto argument = [&](int i) { return call->getArgOperand(i); };
    if (operation == "load") return b.CreateLoad(call->getType(), argument(0));
    if (operation == "store") {
      b.CreateStore(argument(1), argument(0));
      return nullptr;
    }
    Type* type = argument(operation == "cmpxchg" ? 2 : 1)->getType();
    Value* old = b.CreateLoad(type, argument(0));
    if (operation == "cmpxchg") {  // pointer, pointer to the expected value, desired value
      Type* bits = b.getIntNTy(type->getScalarSizeInBits());
      Value* expected = b.CreateBitCast(b.CreateLoad(type, argument(1)), bits);
      Value* is_equal = b.CreateICmpEQ(b.CreateBitCast(old, bits), expected);
      b.CreateStore(b.CreateSelect(is_equal, argument(2), old), argument(0));
      b.CreateStore(old, argument(1));
      if (call->getType()->isIntegerTy(1) || call->getType()->isIntegerTy(8))
        return b.CreateIntCast(is_equal, call->getType(), false);
      return old;
    }
    bool is_float = type->isFloatingPointTy();
    Value *value = argument(1), *result;
    if (operation == "add") result = is_float ? b.CreateFAdd(old, value) : b.CreateAdd(old, value);
    else if (operation == "sub") result = is_float ? b.CreateFSub(old, value) : b.CreateSub(old, value);
    else if (operation == "and") result = b.CreateAnd(old, value);
    else if (operation == "or") result = b.CreateOr(old, value);
    else if (operation == "xor") result = b.CreateXor(old, value);
    else if (operation == "xchg") result = value;
    else if (operation == "min" || operation == "max") result = scalar(b, operation, sign, {old, value}, type);
    else fail("no translation of an atomic " + operation);
    b.CreateStore(result, argument(0));
    return call->getType()->isVoidTy() ? nullptr : old;
  }

  // air.convert.KIND.TYPE.KIND.TYPE, the result first. Kinds: f (float), s, u (integers).
  Value* convert(IRBuilder<>& b, CallInst* call, const std::vector<std::string>& parts) {
    Value* value = call->getArgOperand(0);
    Type *to = call->getType(), *from = value->getType();
    char to_kind = parts.at(2)[0], from_kind = parts.at(4)[0];
    auto as_float32 = [&]() {
      auto* vector = dyn_cast<FixedVectorType>(from);
      return vector ? FixedVectorType::get(float32(), vector->getNumElements()) : float32();
    };
    if (to->getScalarType()->isIntegerTy(1)) {
      Value* zero = Constant::getNullValue(from);
      return from_kind == 'f' ? b.CreateFCmpUNE(value, zero) : b.CreateICmpNE(value, zero);
    }
    if (to_kind == 'f' && from_kind == 'f') {
      Type *a = from->getScalarType(), *c = to->getScalarType();
      bool between_16_bits = a != c && a->getScalarSizeInBits() == 16 && c->getScalarSizeInBits() == 16;
      return b.CreateFPCast(between_16_bits ? b.CreateFPExt(value, as_float32()) : value, to);
    }
    if (to_kind == 'f') return from_kind == 's' ? b.CreateSIToFP(value, to) : b.CreateUIToFP(value, to);
    if (from_kind == 'f') {  // Metal's conversions saturate
      if (!from->getScalarType()->isFloatTy()) value = b.CreateFPExt(value, as_float32());
      auto id = to_kind == 's' ? Intrinsic::fptosi_sat : Intrinsic::fptoui_sat;
      return b.CreateIntrinsic(id, {to, value->getType()}, {value});
    }
    return b.CreateIntCast(value, to, from_kind == 's');
  }
};

// Gives function constants their values, and threadgroup variables memory that all threads share.
void set_globals(Module& module, const Constants& constants) {
  for (auto& global : module.globals()) {
    StringRef name = global.getName();
    auto at = name.find("MTL_FC_INIT_");
    if (at != StringRef::npos && global.getSection() == "air.fc_initializer") {
      StringRef digits = name.substr(at + strlen("MTL_FC_INIT_"));
      uint64_t index = 0;
      digits.consumeInteger(10, index);
      Type* type = global.getValueType();
      uint64_t bits = 0;  // of a constant that is not given
      auto found = constants.find(index);
      if (found != constants.end()) memcpy(&bits, found->second.data(), std::min<size_t>(found->second.size(), 8));
      if (auto* integer = dyn_cast<IntegerType>(type))
        global.setInitializer(ConstantInt::get(integer->getContext(), APInt(64, bits).zextOrTrunc(integer->getBitWidth())));
      else if (type->isFloatTy())
        global.setInitializer(ConstantFP::get(type, APFloat(APFloat::IEEEsingle(), APInt(32, uint32_t(bits)))));
      else if (found == constants.end())
        global.setInitializer(Constant::getNullValue(type));
      else
        fail("type of function constant " + std::to_string(index));
      global.setExternallyInitialized(false);
      global.setSection("");
    } else if (global.getAddressSpace() == 3) {
      global.setLinkage(GlobalValue::ExternalLinkage);
      global.setVisibility(GlobalValue::HiddenVisibility);
      global.setInitializer(Constant::getNullValue(global.getValueType()));
      global.setAlignment(Align(64));
    } else if (global.hasSection() && global.getSection().starts_with("air")) {
      global.setSection("");
    }
    if (global.hasInternalLinkage() && global.getAddressSpace() == 2 && isa<UndefValue>(global.getInitializer()))
      global.setInitializer(Constant::getNullValue(global.getValueType()));
  }
}

// Apple's GPUs load vectors from the address of any element; x86 instructions for aligned vectors would fault.
void relax_alignment(Module& module) {
  auto element = [](Type* type) { return Align(std::max(1u, type->getScalarSizeInBits() / 8)); };
  for (auto& function : module)
    for (auto& instruction : instructions(function)) {
      if (auto* load = dyn_cast<LoadInst>(&instruction)) {
        if (load->getPointerAddressSpace() && load->getType()->isVectorTy()) load->setAlignment(element(load->getType()));
      } else if (auto* store = dyn_cast<StoreInst>(&instruction)) {
        Type* type = store->getValueOperand()->getType();
        if (store->getPointerAddressSpace() && type->isVectorTy()) store->setAlignment(element(type));
      } else if (auto* copy = dyn_cast<MemTransferInst>(&instruction)) {
        if (copy->getDestAddressSpace()) copy->setDestAlignment(Align(1));
        if (copy->getSourceAddressSpace()) copy->setSourceAlignment(Align(1));
      }
    }
}

// A kernel as its metadata describes it.
struct KernelInfo {
  Function* function = nullptr;
  MDNode* arguments = nullptr;
  uint64_t max_threads = 0;
};

KernelInfo find_kernel(Module& module) {
  KernelInfo info;
  auto* kernels = module.getNamedMetadata("air.kernel");
  if (!kernels || kernels->getNumOperands() == 0) fail("no kernel in this bitcode");
  MDNode* node = kernels->getOperand(0);
  info.function = mdconst::extract<Function>(node->getOperand(0));
  info.arguments = cast<MDNode>(node->getOperand(2));
  for (unsigned i = 3; i < node->getNumOperands(); i++)
    if (auto* pair = dyn_cast<MDNode>(node->getOperand(i)); pair && pair->getNumOperands() == 2)
      if (auto* key = dyn_cast<MDString>(pair->getOperand(0)); key && key->getString() == "air.max_work_group_size")
        info.max_threads = mdconst::extract<ConstantInt>(pair->getOperand(1))->getZExtValue();
  return info;
}

// One argument of a kernel: its kind, such as air.buffer, and the index of a buffer.
struct Argument {
  uint64_t position;
  std::string kind;
  uint64_t index = 0;
};

Argument describe(const MDNode* node) {
  Argument argument{mdconst::extract<ConstantInt>(node->getOperand(0))->getZExtValue(), ""};
  for (unsigned i = 1; i < node->getNumOperands(); i++)
    if (auto* text = dyn_cast<MDString>(node->getOperand(i))) {
      if (text->getString() == "air.location_index")
        argument.index = mdconst::extract<ConstantInt>(node->getOperand(i + 1))->getZExtValue();
      else if (argument.kind.empty() && text->getString() != "air.function_constant")
        argument.kind = text->getString().str();
    }
  return argument;
}

// Adds `air_entry`, which reads the kernel's arguments from the tables of the executor.
void add_entry(Module& module, const KernelInfo& kernel) {
  LLVMContext& context = module.getContext();
  Type* pointer = PointerType::get(context, 0);
  auto* type = FunctionType::get(Type::getVoidTy(context), {pointer, pointer, pointer}, false);
  auto* entry = Function::Create(type, GlobalValue::ExternalLinkage, "air_entry", module);
  IRBuilder<> b(BasicBlock::Create(context, "entry", entry));
  Value *buffers = entry->getArg(0), *threadgroup = entry->getArg(1), *thread = entry->getArg(2);
  auto attribute = [&](int row, int column, Type* as) {
    Type* i32 = b.getInt32Ty();
    return b.CreateIntCast(b.CreateLoad(i32, b.CreateConstGEP1_32(i32, thread, row * 4 + column)), as, false);
  };
  static const std::map<std::string, int> attributes = {
      {"air.thread_position_in_grid", THREAD_IN_GRID},
      {"air.threadgroup_position_in_grid", GROUP_IN_GRID},
      {"air.thread_position_in_threadgroup", THREAD_IN_GROUP},
      {"air.threads_per_grid", THREADS_PER_GRID},
      {"air.threads_per_threadgroup", THREADS_PER_GROUP},
      {"air.dispatch_threads_per_threadgroup", THREADS_PER_GROUP},
      {"air.threadgroups_per_grid", GROUPS_PER_GRID},
      {"air.thread_index_in_threadgroup", INDEX_IN_GROUP},
      {"air.simdgroup_index_in_threadgroup", SIMDGROUP_IN_GROUP},
      {"air.thread_index_in_simdgroup", LANE},
      {"air.threads_per_simdgroup", SIMD_WIDTH},
      {"air.thread_execution_width", SIMD_WIDTH},
      {"air.simdgroups_per_threadgroup", SIMDGROUPS_PER_GROUP}};
  Values values(kernel.function->arg_size());
  for (auto& operand : kernel.arguments->operands()) {
    Argument argument = describe(cast<MDNode>(operand));
    Type* type = kernel.function->getArg(argument.position)->getType();
    Value*& value = values[argument.position];
    if (argument.kind == "air.buffer" || argument.kind == "air.indirect_buffer") {
      if (argument.index >= MAX_ARGUMENTS) fail("buffer index " + std::to_string(argument.index));
      Value* table = type->getPointerAddressSpace() == 3 ? threadgroup : buffers;
      Value* address = b.CreateLoad(pointer, b.CreateConstGEP1_32(pointer, table, argument.index));
      value = b.CreateAddrSpaceCast(address, type);
    } else if (argument.kind == "air.thread_index_in_quadgroup") {
      value = b.CreateAnd(attribute(LANE, 0, type), 3);
    } else if (argument.kind == "air.quadgroup_index_in_threadgroup") {
      value = b.CreateLShr(attribute(INDEX_IN_GROUP, 0, type), 2);
    } else if (auto row = attributes.find(argument.kind); row == attributes.end()) {
      fail("no translation of an argument of kind " + argument.kind);
    } else if (auto* vector = dyn_cast<FixedVectorType>(type)) {
      value = PoisonValue::get(type);
      for (unsigned i = 0; i < vector->getNumElements(); i++)
        value = b.CreateInsertElement(value, attribute(row->second, i, vector->getElementType()), i);
    } else {
      value = attribute(row->second, 0, type);
    }
  }
  b.CreateCall(kernel.function, values);
  b.CreateRetVoid();
  kernel.function->setLinkage(GlobalValue::InternalLinkage);
  kernel.function->removeFnAttr(Attribute::NoInline);
  kernel.function->addFnAttr(Attribute::AlwaysInline);
}

void remove_metadata(Module& module) {
  std::vector<NamedMDNode*> nodes;
  for (auto& node : module.named_metadata()) nodes.push_back(&node);
  for (auto* node : nodes) node->eraseFromParent();
  for (auto* name : {"llvm.compiler.used", "llvm.used"})
    if (auto* global = module.getGlobalVariable(name)) global->eraseFromParent();
}

std::unique_ptr<TargetMachine> target_machine() {
  static bool initialized = !InitializeNativeTarget() && !InitializeNativeTargetAsmPrinter();
  if (!initialized) fail("LLVM has no code generator for this machine");
  std::string error;
  auto* target = TargetRegistry::lookupTarget(TARGET, error);
  if (!target) fail(error);
  TargetOptions options;
  options.AllowFPOpFusion = FPOpFusion::Standard;  // fuse only where AIR says so
  return std::unique_ptr<TargetMachine>(target->createTargetMachine(
      TARGET, "haswell", "+avx2,+fma,+f16c,+bmi,+bmi2", options, Reloc::PIC_, std::nullopt, CodeGenOptLevel::Default));
}

std::string object_file(Module& module, TargetMachine& machine) {
  LoopAnalysisManager loops;
  FunctionAnalysisManager functions;
  CGSCCAnalysisManager components;
  ModuleAnalysisManager modules;
  PassBuilder passes(&machine);
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(components);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, components, modules);
  passes.buildPerModuleDefaultPipeline(OptimizationLevel::O1).run(module, modules);
  SmallVector<char, 0> object;
  raw_svector_ostream stream(object);
  legacy::PassManager emission;
  machine.addPassesToEmitFile(emission, stream, nullptr, CodeGenFileType::ObjectFile);
  emission.run(module);
  return {object.begin(), object.end()};
}

std::unique_ptr<Module> parse(LLVMContext& context, StringRef bitcode) {
  SMDiagnostic problem;
  auto module = parseIR(MemoryBufferRef(bitcode, "kernel"), problem, context);
  if (!module) fail("bitcode: " + problem.getMessage().str());
  return module;
}

}  // namespace

std::string translate(const std::string& bitcode, const Constants& constants) {
  LLVMContext context;
  auto module = parse(context, bitcode);
  auto machine = target_machine();
  module->setTargetTriple(TARGET);
  module->setDataLayout(machine->createDataLayout());
  set_globals(*module, constants);
  relax_alignment(*module);
  Builtins builtins(*module);
  builtins.replace_all();
  for (auto& function : *module)
    for (auto* name : {"target-cpu", "target-features", "no-builtins", "frame-pointer", "min-legal-vector-width"})
      function.removeFnAttr(name);
  KernelInfo kernel = find_kernel(*module);
  add_entry(*module, kernel);
  remove_metadata(*module);
  Type* i32 = Type::getInt32Ty(context);
  auto* pair = ArrayType::get(i32, 2);
  auto* flags = ConstantArray::get(
      pair, {ConstantInt::get(i32, builtins.waits), ConstantInt::get(i32, kernel.max_threads)});
  new GlobalVariable(*module, pair, true, GlobalValue::ExternalLinkage, flags, "air_flags");
  for (auto& function : *module)
    if (!function.isDeclaration() && function.getName() != "air_entry") {
      function.setLinkage(GlobalValue::InternalLinkage);
      function.setComdat(nullptr);
    }
  std::string problem;
  raw_string_ostream stream(problem);
  if (verifyModule(*module, &stream)) fail("the translated kernel is invalid: " + problem);
  return object_file(*module, *machine);
}

std::string code_digest(const std::string& bitcode) {
  LLVMContext context;
  auto module = parse(context, bitcode);
  module->setTargetTriple("");  // differs between wheels for different versions of macOS
  module->setSourceFileName("");
  module->setModuleIdentifier("");
  for (auto* name : {"air.version", "air.language_version", "llvm.ident", "llvm.module.flags", "air.compile_options"})
    if (auto* node = module->getNamedMetadata(name)) node->eraseFromParent();
  std::string text;
  raw_string_ostream stream(text);
  module->print(stream, nullptr);
  auto digest = SHA256::hash({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return {digest.begin(), digest.end()};
}
