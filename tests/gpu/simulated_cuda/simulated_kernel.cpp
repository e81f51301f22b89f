// SPDX-License-Identifier: MIT
// Runs the blocks of a grid one after another. The threads of a block are fibers, since a barrier
// in the middle of a function can be waited at only by what has a stack of its own.
#include <setjmp.h>
#include <ucontext.h>

#include <deque>
#include <memory>

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
};
thread_local Block block;

/// From the running fiber to the scheduler, until that resumes it.
void rest(bool waiting) {
  block.running->waiting = waiting;
  if (_setjmp(block.running->registers) == 0) _longjmp(block.scheduler, 1);
}

/// A fiber runs one thread of every block, and rests between two blocks.
void fiber_main() {
  while (true) {
    (*block.thread)();
    rest(false);
  }
}

/// From the scheduler to the running fiber, until that rests.
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

/// Runs the threads from barrier to barrier, forwards and backwards in turn, so that code which
/// relies on an order fails. Returns whether there was a barrier; without fibers there is none.
bool run_block(bool with_fibers, bool backwards) {
  for (bool met_barrier = false;; met_barrier = true, backwards = !backwards) {
    unsigned waiting = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) {
      threadIdx.x = backwards ? blockDim.x - 1 - i : i;
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

/// Runs a whole grid on the calling thread.
void run_grid(dim3 grid, dim3 size, const std::function<void()>& thread) {
  block.thread = &thread;
  if (block.fibers.size() < size.x) block.fibers.resize(size.x);
  gridDim = grid;
  blockDim = size;
  bool barriers = true;  // the grid's first block tells: few kernels have one, and loops are faster
  bool backwards = false;
  for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x, backwards = !backwards) {
      barriers = run_block(barriers, backwards);
    }
  }
}
}  // namespace

void launch(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  const auto [grid, block, stream] = config;
  if (grid.x - 1 >= 0x7fffffff || grid.y - 1 >= 65535 || block.x - 1 >= 1024 || grid.z != 1 ||
      block.y != 1 || block.z != 1) {
    die("(%u, %u, %u) blocks of (%u, %u, %u) threads are too many, none, or in more dimensions "
        "than are simulated",
        grid.x, grid.y, grid.z, block.x, block.y, block.z);
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
