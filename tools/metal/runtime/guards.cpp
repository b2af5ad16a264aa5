// Guard pages. An access of one is recorded, its page is opened for this instruction, and a single-step trap closes it
// again. So a kernel runs to its end, and every access behind or before an argument is seen.
#include "guards.h"

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#include "interface.h"

namespace {

constexpr uint64_t PAGE = 4096, GUARD = 8 << 20;
constexpr greg_t TRAP_FLAG = 0x100, WRITE_ERROR = 2;  // of EFLAGS; of the error code of a page fault

// One argument: guard pages, the pages of its copy, guard pages.
struct Region {
  char *base, *copy;
  void* original;  // null for threadgroup memory
  uint64_t size, mapped;
  Fault fault;
  std::vector<bool> is_filled;
};

// State of the signal handlers. Kernels run in one thread at a time.
std::vector<Region> regions;
std::vector<char*> open_pages;
sigjmp_buf after_function;
uint64_t stray_address;

void add_region(void*& entry, uint64_t size, int argument, bool is_threadgroup, Placement placement) {
  uint64_t middle = (size + PAGE - 1) / PAGE * PAGE, mapped = middle + 2 * GUARD;
  void* base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::runtime_error("no memory for guard pages");
  char* pages = static_cast<char*>(base) + GUARD;
  if (mprotect(pages, middle, PROT_READ | PROT_WRITE)) throw std::runtime_error("no memory for an argument");
  memset(pages, 0xff, middle);  // NaN in each floating-point type, as in the guard pages
  char* copy = placement == ENDS_AT_GUARD ? pages + middle - size : pages;
  void* original = is_threadgroup ? nullptr : entry;
  if (original) memcpy(copy, original, size);
  Fault fault{argument, is_threadgroup, 0, 0, 0, 0};
  regions.push_back({static_cast<char*>(base), copy, original, size, mapped, fault, std::vector<bool>(mapped / PAGE)});
  entry = copy;
}

void record(Region& region, char* address, bool is_write) {
  Fault& fault = region.fault;
  bool is_behind = address >= region.copy + region.size;
  uint64_t distance = is_behind ? address - region.copy - region.size + 1 : region.copy - address;
  uint64_t& farthest = is_write ? (is_behind ? fault.writes_behind : fault.writes_before)
                                : (is_behind ? fault.reads_behind : fault.reads_before);
  farthest = std::max(farthest, distance);
}

void on_page_fault(int, siginfo_t* info, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  char* address = static_cast<char*>(info->si_addr);
  for (auto& region : regions) {
    if (address < region.base || address >= region.base + region.mapped) continue;
    record(region, address, registers[REG_ERR] & WRITE_ERROR);
    uint64_t number = (address - region.base) / PAGE;
    char* page = region.base + number * PAGE;
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    if (!region.is_filled[number]) memset(page, 0xff, PAGE);
    region.is_filled[number] = true;
    open_pages.push_back(page);
    registers[REG_EFL] |= TRAP_FLAG;
    return;
  }
  stray_address = reinterpret_cast<uint64_t>(address);
  siglongjmp(after_function, 1);
}

void on_trap(int, siginfo_t*, void* context) {
  for (char* page : open_pages) mprotect(page, PAGE, PROT_NONE);
  open_pages.clear();
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

}  // namespace

void place_between_guards(void** buffers, const uint64_t* sizes, void** threadgroup, const uint64_t* threadgroup_sizes,
                          Placement placement) {
  regions.clear();
  open_pages.clear();
  open_pages.reserve(64);  // a signal handler must not allocate
  for (int i = 0; i < MAX_ARGUMENTS; i++) {
    if (sizes[i]) add_region(buffers[i], sizes[i], i, false, placement);
    if (threadgroup_sizes[i]) add_region(threadgroup[i], threadgroup_sizes[i], i, true, placement);
  }
}

void run_with_guards(void (*function)(void*), void* context) {
  struct sigaction on_segv = {}, on_step = {}, old_segv, old_step;
  on_segv.sa_sigaction = on_page_fault;
  on_step.sa_sigaction = on_trap;
  on_segv.sa_flags = on_step.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &on_segv, &old_segv);
  sigaction(SIGTRAP, &on_step, &old_step);
  bool is_stray = sigsetjmp(after_function, 1);
  if (!is_stray) function(context);
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGTRAP, &old_step, nullptr);
  if (is_stray)
    throw std::runtime_error("access of address " + std::to_string(stray_address) + ", outside of all arguments");
}

int remove_guards(Fault* faults, int limit) {
  int count = 0;
  for (auto& region : regions) {
    const Fault& fault = region.fault;
    if (fault.reads_before || fault.reads_behind || fault.writes_before || fault.writes_behind) {
      if (count < limit) faults[count] = fault;
      count++;
    }
    if (region.original) memcpy(region.original, region.copy, region.size);
    munmap(region.base, region.mapped);
  }
  regions.clear();
  return count;
}
