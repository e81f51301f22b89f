// SPDX-License-Identifier: MIT
// Runs the blocks of a grid one after another. The threads of a block are fibers, since a barrier
// in the middle of a function can be waited at only by what has a stack of its own.
#include <setjmp.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_runtime.h"

constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simulated {
namespace {
constexpr std::size_t stack_bytes = std::size_t{64} << 10;

struct Fiber {
  jmp_buf registers;
  std::unique_ptr<std::byte[]> stack;  // null: not yet started
  bool waiting = false;  // at a barrier
};

/// What one thread of the operating system needs to run blocks; kept from one block to the next.
struct Block {
  jmp_buf scheduler;
  std::deque<Fiber> fibers;
  const std::function<void()>* thread = nullptr;
  Fiber* running = nullptr;  // null: no kernel runs, or one without barriers, thread by thread
  std::minstd_rand random;  // the same orders in every run
  std::vector<unsigned> order;

  /// 0 .. count - 1 upwards, downwards or shuffled: code that relies on an order fails.
  const std::vector<unsigned>& any_order(unsigned count) {
    order.resize(count);
    std::iota(order.begin(), order.end(), 0u);
    const auto which = random() % 3;
    if (which == 1) std::reverse(order.begin(), order.end());
    if (which == 2) std::shuffle(order.begin(), order.end(), random);
    return order;
  }
};
thread_local Block block;

/// Switches from the running fiber to the scheduler, until the scheduler resumes that fiber.
void rest(bool waiting) {
  block.running->waiting = waiting;
  if (_setjmp(block.running->registers) == 0) _longjmp(block.scheduler, 1);
}

/// Fiber i runs thread i of each block, one block after another; between two, the scheduler runs.
void fiber_main() {
  while (true) {
    (*block.thread)();
    rest(false);
  }
}

/// Switches from the scheduler to the running fiber, until the fiber rests.
void resume() {
  if (_setjmp(block.scheduler) != 0) return;
  Fiber& fiber = *block.running;
  if (fiber.stack) _longjmp(fiber.registers, 1);
  // Contexts only start a fiber: switching by them would cost a system call each time.
  fiber.stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
  ucontext_t origin;
  getcontext(&origin);
  origin.uc_stack.ss_sp = fiber.stack.get();
  origin.uc_stack.ss_size = stack_bytes;
  origin.uc_link = nullptr;
  makecontext(&origin, fiber_main, 0);
  setcontext(&origin);
}

/// Runs a block's threads from barrier to barrier, each time in an order of any_order(). Returns
/// whether there was a barrier. Without fibers a barrier ends the process.
bool run_block(bool with_fibers) {
  for (bool met_barrier = false;; met_barrier = true) {
    unsigned waiting = 0;
    for (const unsigned thread : block.any_order(blockDim.x)) {
      threadIdx.x = thread;
      if (!with_fibers) {
        (*block.thread)();
        continue;
      }
      block.running = &block.fibers[threadIdx.x];
      resume();
      waiting += block.running->waiting;
    }
    block.running = nullptr;
    if (waiting == 0) return met_barrier;
    if (waiting != blockDim.x) {
      die("__syncthreads: %u of the %u threads of block (%u, %u) wait at it, the others ended",
          waiting, blockDim.x, blockIdx.x, blockIdx.y);
    }
  }
}

/// Runs a whole grid on the calling thread, its blocks upwards or downwards. Dies if one of many
/// blocks does most of the work, because on a GPU the other multiprocessors would be idle. Grids of
/// up to 20 ms are not judged: an interruption, which a thread's clock may count, would decide.
void run_grid(dim3 grid, dim3 size, const std::function<void()>& thread) {
  block.thread = &thread;
  if (block.fibers.size() < size.x) block.fibers.resize(size.x);
  gridDim = grid;
  blockDim = size;
  bool barriers = true;  // the first block tells; without barriers, loops are faster than fibers
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y;
  const bool backwards = block.random() % 2;
  double all = 0, most = 0;  // milliseconds of the thread: of all blocks, of the longest
  timespec before{}, now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t number = backwards ? blocks - 1 - i : i;
    blockIdx = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x)};
    barriers = run_block(barriers);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    const double ms = 1e3 * (now.tv_sec - before.tv_sec) + 1e-6 * (now.tv_nsec - before.tv_nsec);
    most = std::max(most, ms), all += ms, before = now;
  }
  if (blocks > 64 && all > 20 && most > all / 2) die("a block takes %.1f of %.1f ms", most, all);
}
}  // namespace

void launch(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  const auto [grid, block, stream] = config;
  if (grid.x - 1 >= 0x7fffffff || grid.y - 1 >= 65535 || block.x - 1 >= 1024 || block.y != 1) {
    die("(%u, %u) blocks of (%u, %u) threads are too many, none, or in more dimensions than are "
        "simulated",
        grid.x, grid.y, block.x, block.y);
  }
  enqueue(stream, [=] { run_grid(grid, block, thread); });
}
}  // namespace simulated

void __syncthreads() {
  if (!simulated::block.running) {
    simulated::die("__syncthreads: block (%u, %u) calls it, the grid's first block did not",
                   blockIdx.x, blockIdx.y);
  }
  simulated::rest(true);
}
