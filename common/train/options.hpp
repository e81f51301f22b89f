// SPDX-License-Identifier: MIT
// The options of a run, and the choices made for options that are left open.
#pragma once
#include <optional>
#include <utility>
#include <variant>

#include "memory/device.hpp"
#include "memory/dtype.hpp"
#include "train/card.hpp"

namespace zero {
/// What is trained. text: an MLP predicts the next byte of a text. llama: a Llama, the next token.
/// The others are MLPs that learn a random teacher's answers. toy: 128 -> 512 -> 10, no bias, no
/// ReLU. mlp: `layers` layers of equal `width`. tiny: the pages' small model, layers of 2 -> 2.
enum class Task { text, toy, mlp, llama, tiny };
template <> inline constexpr std::array names_of<Task>{"text", "toy", "mlp", "llama", "tiny"};

enum class Comm { mpi, nccl };
template <> inline constexpr std::array names_of<Comm>{"mpi", "nccl"};

/// What adds gradients over ranks: our own code in rank order, or NCCL in its own order.
enum class Reduce { ordered, native };
template <> inline constexpr std::array names_of<Reduce>{"ordered", "native"};

/// The state of a run besides its tensors.
struct Progress {
  std::int64_t steps = 0, updates = 0;  // updates: steps that were not skipped
  float loss_scale = 0;  // fp16's loss scale; 0: a new run's, see LossScale
  int good_steps = 0;  // steps without a skip since the loss scale was changed
};

/// One training run. The command line changes some defaults by chapter and task (command_line.cpp).
struct Options {
  Task task = Task::text;
  std::string data{};  // file for tasks text and llama
  int steps = 200;
  int batch = 32;  // samples per rank and micro-batch
  int accumulate = 1;  // micro-batches per step
  int width = 256;
  int layers = 8;
  int align = 8;  // each rank's part of a layer is a multiple of so many elements
  int heads = 8;  // a llama's heads of queries
  int kv_heads = 0;  // heads of keys and values, a divisor of heads; 0: heads / 2; if odd, heads
  int hidden = 0;  // width of a llama's SwiGLU; 0: 8/3 of the width, rounded up to a multiple of 16
  int sequence = 128;  // a llama's tokens per sample
  std::string tokens{};  // a file of 16-bit tokens; empty: the bytes of `data` are the tokens
  int vocab = 256;  // number of a llama's different tokens
  double lr = 2e-3;  // the command line has a smaller default for widths above 1024
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip = 0;  // largest norm of the whole gradient; 0: no clipping
  std::uint64_t seed = 1;
  std::string log{};  // file for JSON lines; empty: none
  bool quiet = false;  // print nothing but errors
  bool plan = false;  // print predicted bytes and traffic, and train nothing
  int ranks = 1;  // for --plan
  int timeout = 60;  // seconds without progress after which the job is ended
  int check_every = 0;  // steps between comparisons of the ranks' copies; 0: only at the end
  Dtype dtype = Dtype::fp32;
  double loss_scale = 0;  // 0: dynamic; used only in fp16
  bool recompute = false;  // a llama's blocks keep only their inputs; backward recomputes the rest
  int prefetch = 1;  // layers gathered ahead of their use
  std::optional<DeviceType> device{};  // empty: a GPU if there is one
  std::optional<Comm> comm{};  // empty: chosen by device and ranks
  Reduce reduce = Reduce::ordered;
  double link = 0;  // Gbit/s of a modelled network, slower than the real one; 0: no model
  double latency = 0;  // of the modelled network, in microseconds
  double bus = 0;  // GB/s of a modelled bus between device and host; 0: no model
  bool pageable = false;  // stage in ordinary host memory instead of pinned memory
  Place state = Place::disk;  // where 08 keeps the optimizer state: disk or host
  std::string offload_dir = "/var/tmp";  // folder of the files of state on disk
  double disk = 0;  // GB/s each way of a modelled disk; 0: no model
  std::int64_t piece = 1 << 20;  // most elements of a tensor on disk to read, update, write at once
  std::int64_t device_memory = 0;  // bytes of device memory that a rank may take; 0: what there is
  std::string save{};  // folder of the run's checkpoints; empty: none are made
  int save_every = 0;  // steps between checkpoints; 0: only one at the end
  int keep = 2;  // number of checkpoints that stay, the newest ones
  std::string resume{};  // folder of checkpoints, or of one checkpoint, with which to begin
  std::string init{};  // file of weights with which to begin
  Progress begin{};  // progress of the checkpoint that is resumed
  std::string trace{};  // file for a trace of the first steps, written at the end; empty: none
};

/// Returns the memory that a host's buffers for copies to and from a GPU should have.
inline Memory for_copies(const Options& options) {
  return options.pageable ? Memory::ordinary : Memory::pinned;
}

/// The choices made for a rank where the options leave them open.
struct Choice {
  DeviceType device = DeviceType::cpu;
  Comm comm = Comm::mpi;
  int gpu = 0;  // number of this rank's GPU
  int sharing = 1;  // ranks that share this device's memory, this one included
  int sharing_host = 1;  // ranks on this machine
  int cores = 1;  // this rank's share of the machine's cores
  int host_threads = 1;  // threads of this rank for Adam on the host
  std::string why{};  // the choice and its reasons, in one line
};

using OptionValue = std::variant<bool, int, std::int64_t, std::uint64_t, double, std::string>;
using OptionValues = std::vector<std::pair<std::string, OptionValue>>;
}  // namespace zero
