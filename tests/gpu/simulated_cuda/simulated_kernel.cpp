// SPDX-License-Identifier: MIT
// Runs the blocks of a grid one after another. The threads of a block are fibers, since a barrier
// in the middle of a function can be waited at only by what has a stack of its own.
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "simulated_cuda.hpp"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace simulated {
namespace {
constexpr std::size_t stack_bytes = std::size_t{64} << 10;

/// A thread of control; the one that was there before has no stack of its own here.
struct Fiber {
  ucontext_t origin;
  jmp_buf registers;
  std::unique_ptr<std::byte[]> own_stack;
  bool started = false;
  bool waiting = false;  // at a barrier
};

/// What one thread of the operating system needs to run blocks; kept from one block to the next.
struct Block {
  Block() { scheduler.started = true; }

  Fiber scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  const std::function<void()>* thread = nullptr;
  Fiber* running = nullptr;  // null: no kernel runs, or one without barriers, thread by thread
};

thread_local Block block_of_thread;

void switch_fiber(Fiber& from, Fiber& to);

/// A fiber runs one thread of every block, and rests between two blocks.
void fiber_main() {
  Block& block = block_of_thread;
  Fiber& self = *block.running;
  while (true) {
    (*block.thread)();
    self.waiting = false;
    switch_fiber(self, block.scheduler);
  }
}

void start(Fiber& fiber) {
  getcontext(&fiber.origin);
  fiber.origin.uc_stack.ss_sp = fiber.own_stack.get();
  fiber.origin.uc_stack.ss_size = stack_bytes;
  fiber.origin.uc_link = nullptr;
  makecontext(&fiber.origin, fiber_main, 0);
  fiber.started = true;
  setcontext(&fiber.origin);
}

/// Contexts only start a fiber: switching by them would cost a system call each time.
void switch_fiber(Fiber& from, Fiber& to) {
  if (_setjmp(from.registers) == 0) {
    if (to.started) _longjmp(to.registers, 1);
    start(to);
  }
}

void add_fibers(Block& block, unsigned int threads) {
  while (block.fibers.size() < threads) {
    auto fiber = std::make_unique<Fiber>();
    fiber->own_stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    block.fibers.push_back(std::move(fiber));
  }
}

uint3 index_of(unsigned int thread) {
  const unsigned int row = thread / blockDim.x;
  return {thread % blockDim.x, row % blockDim.y, row / blockDim.y};
}

/// Runs the threads from barrier to barrier, forwards and backwards in turn, so that code which
/// relies on an order fails. Returns whether there was a barrier.
bool run_with_barriers(Block& block, unsigned int threads, bool backwards) {
  add_fibers(block, threads);
  for (bool met_barrier = false;; met_barrier = true, backwards = !backwards) {
    unsigned int waiting = 0;
    for (unsigned int i = 0; i < threads; ++i) {
      const unsigned int thread = backwards ? threads - 1 - i : i;
      threadIdx = index_of(thread);
      block.running = block.fibers[thread].get();
      switch_fiber(block.scheduler, *block.running);
      waiting += block.running->waiting;
    }
    block.running = nullptr;
    if (waiting == 0) return met_barrier;
    if (waiting != threads) {
      die("__syncthreads: %u of the %u threads of block (%u, %u, %u) wait at it, the others ended",
          waiting,
          threads,
          blockIdx.x,
          blockIdx.y,
          blockIdx.z);
    }
  }
}

void run_without_barriers(const Block& block, unsigned int threads, bool backwards) {
  for (unsigned int i = 0; i < threads; ++i) {
    threadIdx = index_of(backwards ? threads - 1 - i : i);
    (*block.thread)();
  }
}
}  // namespace

void run_grid(dim3 grid, dim3 size, const std::function<void()>& thread) {
  Block& block = block_of_thread;
  block.thread = &thread;
  gridDim = grid;
  blockDim = size;
  const unsigned int threads = size.x * size.y * size.z;
  bool barriers = true;  // the grid's first block tells: few kernels have one, and loops are faster
  bool backwards = false;
  for (unsigned int z = 0; z < grid.z; ++z) {
    for (unsigned int y = 0; y < grid.y; ++y) {
      for (unsigned int x = 0; x < grid.x; ++x, backwards = !backwards) {
        blockIdx = {x, y, z};
        if (barriers) {
          barriers = run_with_barriers(block, threads, backwards);
        } else {
          run_without_barriers(block, threads, backwards);
        }
      }
    }
  }
  block.thread = nullptr;
}
}  // namespace simulated

void __syncthreads() {
  simulated::Block& block = simulated::block_of_thread;
  if (!block.running) {
    simulated::die("__syncthreads: block (%u, %u, %u) calls it, the grid's first block did not",
                   blockIdx.x,
                   blockIdx.y,
                   blockIdx.z);
  }
  block.running->waiting = true;
  simulated::switch_fiber(*block.running, block.scheduler);
}
