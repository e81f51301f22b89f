// SPDX-License-Identifier: MIT
// What the parts of the simulated GPU share. A stream is a thread with an in-order queue: streams
// run side by side, and a wait that the program forgot is a real race. Misuse that real hardware
// answers with garbage ends the process with a message. The environment says:
//   SIMULATED_GPUS           how many devices there are (1)
//   SIMULATED_CUDA_DELAY_US  each copy, kernel, ... starts so much later; "0,500": the first stream
//                            created gets 0, the second 500, the third 0 again, and so on
//   NCCL_HOSTID              as for the real library: ranks that differ in it do not share devices
#pragma once
#include <cstddef>
#include <functional>

#include "cuda_runtime.h"

namespace simulated {
[[noreturn, gnu::format(printf, 1, 2)]] void die(const char* format, ...);

/// Runs `work` when all that the stream was given before is done; at once on the default stream.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Dies unless the bytes lie in one live allocation of cudaMalloc.
void require_device_memory(const void* memory, std::size_t bytes, const char* what);

/// Runs a whole grid on the calling thread.
void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread);
}  // namespace simulated
