// Runs a kernel over a grid. Each thread of a threadgroup is a fiber with its own stack; a fiber runs until it waits
// for other lanes of its simdgroup or for its threadgroup. Threadgroups run one after the other.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>

#include "guards.h"
#include "interface.h"
#include "library.h"
#include "simdgroup.h"

namespace {

enum { MAX_THREADS = 1024, STACK_BYTES = 256 << 10, MAX_THREADGROUP_BYTES = 64 << 10 };
enum State { RUNNABLE, AT_BARRIER, IN_SIMD_CALL, FINISHED };
enum { FLUSH_SUBNORMALS = 0x8040 };  // of inputs and results, bits of MXCSR

struct Fiber {
  void* stack_pointer;
  char* stack;
  uint32_t thread[NUM_ATTRIBUTES][4];
  State state;
  int lane;
  LaneCall call;
};

// The dispatch that is being executed; one at a time.
Fiber fibers[MAX_THREADS];
Fiber *current = nullptr, *simdgroup = nullptr;  // simdgroup: the first fiber of the one that runs
int lanes_of_simdgroup = 0;
void* executor_stack_pointer;
const Kernel* kernel;
void **buffer_table, *threadgroup_table[MAX_ARGUMENTS];
alignas(256) char threadgroup_memory[MAX_THREADGROUP_BYTES];

}  // namespace

// air_switch stores the callee-saved registers and the stack pointer, and continues where another stack was left.
extern "C" void air_switch(void** save, void* load);
extern "C" void air_start();
extern "C" [[gnu::used, gnu::visibility("hidden")]] void air_run_fibers();
asm(R"(
.hidden air_switch
.globl air_switch
.type air_switch,@function
air_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
.hidden air_start
.globl air_start
.type air_start,@function
air_start:
  call air_run_fibers
  ud2
)");

namespace {

// Hands over to the next lane that can run, or to the executor after the last one.
void wait_as(State state) {
  Fiber* waiting = current;
  waiting->state = state;
  for (int i = waiting->lane + 1; i < lanes_of_simdgroup; i++)
    if (simdgroup[i].state == RUNNABLE) {
      current = &simdgroup[i];
      air_switch(&waiting->stack_pointer, current->stack_pointer);
      return;
    }
  air_switch(&waiting->stack_pointer, executor_stack_pointer);
}

void prepare(Fiber& fiber, int index) {
  if (!fiber.stack) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (stack == MAP_FAILED) throw std::runtime_error("no memory for the stack of a thread");
    fiber.stack = static_cast<char*>(stack);
  }
  void** top = reinterpret_cast<void**>(fiber.stack + STACK_BYTES);
  *--top = nullptr;
  *--top = nullptr;  // alignment of the stack in air_run_fibers
  *--top = reinterpret_cast<void*>(air_start);
  for (int i = 0; i < 6; i++) *--top = nullptr;  // the registers that air_switch restores
  fiber.stack_pointer = top;
  fiber.state = RUNNABLE;
  fiber.lane = index % LANES;
}

// Runs the lanes of a simdgroup until all have finished or wait for the threadgroup. Returns how many wait.
int run_simdgroup(Fiber* first, int count, SumOrder sums, ProductOrder products) {
  simdgroup = first;
  lanes_of_simdgroup = count;
  for (;;) {
    uint32_t active = 0;
    const LaneCall* operation = nullptr;
    int waiting = 0;
    LaneCall* calls[LANES];
    for (int i = 0; i < count; i++) {
      if (first[i].state == RUNNABLE) {
        current = &first[i];
        air_switch(&executor_stack_pointer, current->stack_pointer);
      }
      calls[i] = &first[i].call;
      waiting += first[i].state == AT_BARRIER;
      if (first[i].state != IN_SIMD_CALL) continue;
      if (!operation) operation = calls[i];
      bool is_same = calls[i]->operation == operation->operation && calls[i]->element == operation->element &&
                     calls[i]->count == operation->count;
      active |= uint32_t(is_same) << i;
    }
    if (!operation) return waiting;
    combine(calls, active, sums, products);
    for (int i = 0; i < count; i++)
      if (active >> i & 1) first[i].state = RUNNABLE;
  }
}

void set(uint32_t (&thread)[NUM_ATTRIBUTES][4], ThreadAttribute attribute, uint64_t x, uint64_t y = 0, uint64_t z = 0) {
  thread[attribute][0] = x;
  thread[attribute][1] = y;
  thread[attribute][2] = z;
  thread[attribute][3] = 0;
}

// The threads of one threadgroup, which is smaller at the end of a grid that counts threads.
struct Threadgroup {
  uint64_t size[3];
  uint32_t shared[NUM_ATTRIBUTES][4];  // attributes that all threads share
  int threads() const { return size[0] * size[1] * size[2]; }
};

template <class Action>
void for_each_thread(const Threadgroup& group, const Dispatch& dispatch, Action action) {
  int index = 0;
  const uint32_t* position = group.shared[GROUP_IN_GRID];
  for (uint64_t z = 0; z < group.size[2]; z++)
    for (uint64_t y = 0; y < group.size[1]; y++)
      for (uint64_t x = 0; x < group.size[0]; x++, index++) {
        auto& thread = fibers[index].thread;
        memcpy(thread, group.shared, sizeof thread);
        set(thread, THREAD_IN_GROUP, x, y, z);
        set(thread, THREAD_IN_GRID, position[0] * dispatch.group[0] + x, position[1] * dispatch.group[1] + y,
            position[2] * dispatch.group[2] + z);
        set(thread, INDEX_IN_GROUP, index);
        set(thread, SIMDGROUP_IN_GROUP, index / LANES);
        set(thread, LANE, index % LANES);
        action(fibers[index], index);
      }
}

void run_threadgroup(const Threadgroup& group, const Dispatch& dispatch) {
  bool waits = kernel->flags[0];
  if (!waits) {
    for_each_thread(group, dispatch, [](Fiber& fiber, int) {
      kernel->entry(buffer_table, threadgroup_table, fiber.thread[0]);
    });
    return;
  }
  for_each_thread(group, dispatch, prepare);
  int threads = group.threads(), waiting;
  do {
    waiting = 0;
    for (int i = 0; i < threads; i += LANES)
      waiting += run_simdgroup(fibers + i, std::min<int>(LANES, threads - i), SumOrder(dispatch.sum_order),
                               ProductOrder(dispatch.product_order));
    for (int i = 0; i < threads; i++)
      if (fibers[i].state == AT_BARRIER) fibers[i].state = RUNNABLE;
  } while (waiting);
}

void run_grid(const Dispatch& dispatch) {
  uint64_t groups[3], total[3];
  for (int i = 0; i < 3; i++) {
    uint64_t grid = dispatch.grid[i], group = dispatch.group[i];
    groups[i] = dispatch.grid_is_threads ? (grid + group - 1) / group : grid;
    total[i] = dispatch.grid_is_threads ? grid : grid * group;
  }
  Threadgroup group = {};
  set(group.shared, THREADS_PER_GRID, total[0], total[1], total[2]);
  set(group.shared, GROUPS_PER_GRID, groups[0], groups[1], groups[2]);
  set(group.shared, SIMD_WIDTH, LANES);
  for (int i = 0; i < 3; i++)
    if (dispatch.groups_to_run[i]) groups[i] = std::min(groups[i], dispatch.groups_to_run[i]);
  for (uint64_t z = 0; z < groups[2]; z++)
    for (uint64_t y = 0; y < groups[1]; y++)
      for (uint64_t x = 0; x < groups[0]; x++) {
        uint64_t position[3] = {x, y, z};
        for (int i = 0; i < 3; i++)
          group.size[i] = std::min(dispatch.group[i], total[i] - position[i] * dispatch.group[i]);
        set(group.shared, GROUP_IN_GRID, x, y, z);
        set(group.shared, THREADS_PER_GROUP, group.size[0], group.size[1], group.size[2]);
        set(group.shared, SIMDGROUPS_PER_GROUP, (group.threads() + LANES - 1) / LANES);
        run_threadgroup(group, dispatch);
      }
}

void check(const Kernel& kernel, const Dispatch& dispatch, const uint64_t* threadgroup_sizes) {
  uint64_t threads = 1, bytes = 0;
  for (int i = 0; i < 3; i++) {
    if (!dispatch.group[i]) throw std::runtime_error("an empty threadgroup");
    threads *= dispatch.group[i];
  }
  uint64_t limit = kernel.flags[1] ? kernel.flags[1] : MAX_THREADS;
  if (threads > limit)
    throw std::runtime_error("a threadgroup of " + std::to_string(threads) + " threads, more than the kernel's " +
                             std::to_string(limit));
  for (int i = 0; i < MAX_ARGUMENTS; i++) bytes += (threadgroup_sizes[i] + 255) / 256 * 256;
  if (bytes > MAX_THREADGROUP_BYTES)
    throw std::runtime_error(std::to_string(bytes) + " bytes of threadgroup memory");
}

}  // namespace

void air_run_fibers() {
  for (;;) {
    kernel->entry(buffer_table, threadgroup_table, current->thread[0]);
    wait_as(FINISHED);
  }
}

extern "C" void air_threadgroup_barrier() { wait_as(AT_BARRIER); }

extern "C" int air_lane() { return kernel->flags[0] ? current->lane : 0; }

extern "C" void air_simd(int operation, int element, int count, void* input, void* output, int argument) {
  current->call = {operation, element, count, argument, input, output};
  wait_as(IN_SIMD_CALL);
}

void execute(const Kernel& executed, void** buffers, const uint64_t* sizes, const uint64_t* threadgroup_sizes,
             const Dispatch& dispatch, Fault* faults, int max_faults, int& num_faults) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  check(executed, dispatch, threadgroup_sizes);
  kernel = &executed;
  buffer_table = buffers;
  uint64_t offset = 0;
  for (int i = 0; i < MAX_ARGUMENTS; i++) {
    threadgroup_table[i] = threadgroup_sizes[i] ? threadgroup_memory + offset : nullptr;
    offset += (threadgroup_sizes[i] + 255) / 256 * 256;
  }
  unsigned control = _mm_getcsr();
  std::exception_ptr error;
  num_faults = 0;
  auto run = [](void* context) {
    // Exceptions must not cross the stack frames of fibers; combine throws on the executor's stack only.
    _mm_setcsr(_mm_getcsr() | FLUSH_SUBNORMALS);
    run_grid(*static_cast<const Dispatch*>(context));
  };
  void* context = const_cast<Dispatch*>(&dispatch);
  auto placement = Placement(dispatch.placement);
  if (placement != UNGUARDED)
    place_between_guards(buffers, sizes, threadgroup_table, threadgroup_sizes, placement);
  try {
    run_with_guards(run, context);  // without guards, an invalid access is an error all the same
  } catch (...) {
    error = std::current_exception();
  }
  if (placement != UNGUARDED) num_faults = remove_guards(faults, max_faults);
  _mm_setcsr(control);
  if (error) std::rethrow_exception(error);
}
