// SPDX-License-Identifier: MIT
// What a run was asked for, and what was chosen for it.
#pragma once
#include <optional>
#include <utility>
#include <variant>

#include "memory/device.hpp"
#include "memory/dtype.hpp"
#include "train/card.hpp"

namespace zero {
enum class Task { text, toy, mlp, llama, tiny };
template <> inline constexpr std::array names_of<Task>{"text", "toy", "mlp", "llama", "tiny"};

/// What carries bytes between ranks.
enum class Comm { mpi, nccl };
template <> inline constexpr std::array names_of<Comm>{"mpi", "nccl"};

/// Who adds gradients over ranks: our own code in rank order, or NCCL in an order of its own.
enum class Reduce { ordered, native };
template <> inline constexpr std::array names_of<Reduce>{"ordered", "native"};

/// What a run is besides its tensors, after so many steps.
struct Progress {
  std::int64_t steps = 0, updates = 0;  // updates: those that were not skipped
  float loss_scale = 0;  // fp16's; 0: as a run begins
  int good_steps = 0;  // in a row, since it was changed
};

/// One training run. Defaults are the programs' defaults, but for a llama's layers and batch.
struct Options {
  Task task = Task::text;
  std::string data{};  // file for tasks text and llama
  int steps = 200;
  int batch = 32;  // samples per rank and micro-batch
  int accumulate = 1;  // micro-batches per step
  int width = 256;
  int layers = 8;
  int align = 8;  // elements, of which each part of a layer is a multiple
  int heads = 8;  // of a llama's attention: of queries
  int kv_heads = 0;  // of keys and values, a divisor of heads; 0: a half of them, or all if odd
  int hidden = 0;  // of its SwiGLU; 0: 8/3 of the width, rounded up to a multiple of 16
  int sequence = 128;  // its tokens in a sample
  std::string tokens{};  // a file of them, 16 bits each; empty: the bytes of `data`
  int vocab = 256;  // different tokens
  double lr = 2e-3;  // on the command line less above a width of 1024
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip = 0;  // largest global gradient norm; 0: no clipping
  std::uint64_t seed = 1;
  std::string log{};  // JSON lines; empty: none
  bool quiet = false;
  bool plan = false;
  int ranks = 1;  // for --plan
  int timeout = 60;  // seconds without progress that end the job
  int check_every = 0;  // steps between comparisons of what ranks hold alike; 0: at the end alone
  Dtype dtype = Dtype::fp32;
  double loss_scale = 0;  // 0: dynamic; used in fp16 only
  bool recompute = false;  // a llama's blocks keep their inputs, and backward forms the rest again
  int prefetch = 1;  // layers gathered ahead
  std::optional<DeviceType> device{};  // none: what the machine has
  std::optional<Comm> comm{};  // none: what suits device and ranks
  Reduce reduce = Reduce::ordered;
  double link = 0;  // Gbit/s of a slower network than the one that is there; 0: none
  double latency = 0;  // of that, in microseconds
  double bus = 0;  // GB/s of a slower bus between device and host than the one there is; 0: none
  bool pageable = false;  // stage in ordinary host memory, not in page-locked
  Place state = Place::disk;  // or host: what keeps the optimizer state where a disk may
  std::string offload_dir = "/var/tmp";  // folder of the disk
  double disk = 0;  // GB/s each way of a slower disk than the one there is; 0: none
  std::int64_t piece = 1 << 20;  // elements of the disk's state in memory at a time, at most
  std::int64_t device_memory = 0;  // bytes of it that a rank may take; 0: all there are
  std::string save{};  // folder of its checkpoints; empty: none
  int save_every = 0;  // steps; 0: at the end alone
  int keep = 2;  // the newest ones
  std::string resume{};  // such a folder, or one checkpoint in it
  std::string init{};  // file of weights to begin with
  Progress begin{};  // as resumed
  std::string trace{};  // of the first steps, written at the end; empty: none
};

/// Host memory that a GPU's copies begin and end in.
inline Memory for_copies(const Options& options) {
  return options.pageable ? Memory::own : Memory::page_locked;
}

/// What was chosen where the options leave it open.
struct Choice {
  DeviceType device = DeviceType::cpu;
  Comm comm = Comm::mpi;
  int gpu = 0;  // this rank's
  int sharing = 1;  // ranks whose tensors lie in the same memory
  int sharing_host = 1;  // ranks on the same machine
  int cores = 1;  // this rank's share of those here
  int host_threads = 1;  // of this rank, for Adam
  std::string why{};  // one line
};

using OptionValue = std::variant<bool, int, std::int64_t, std::uint64_t, double, std::string>;
/// A chapter's options as they will be used, by name.
using OptionValues = std::vector<std::pair<std::string, OptionValue>>;
}  // namespace zero
