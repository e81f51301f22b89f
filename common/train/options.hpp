// SPDX-License-Identifier: MIT
// The options that all six programs share, and what a chapter may be asked for.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "memory/device.hpp"
#include "memory/dtype.hpp"

namespace zero {

enum class Task { text, toy, mlp };

/// What carries bytes between ranks.
enum class Transport { mpi, nccl };

/// Who adds gradients over ranks: our own code in rank order, or NCCL in an order of its own.
enum class Reduce { ordered, native };

/// What a chapter is called and which options it has beside the common ones.
struct Chapter {
  const char* name;
  bool ranks = true;  // runs on MPI ranks
  bool mixed_precision = false;  // --dtype and --loss-scale
  bool prefetch = false;  // --prefetch
};

/// One training run. Defaults are the programs' defaults.
struct Options {
  Task task = Task::text;
  std::string data;  // file for task text
  int steps = 200;
  int batch = 32;  // samples a rank and micro-batch
  int accumulate = 1;  // micro-batches a step
  int width = 256;
  int layers = 8;
  double lr = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip = 0;  // largest global gradient norm; 0: no clipping
  std::uint64_t seed = 1;
  std::string log;  // JSON lines; empty: none
  bool quiet = false;
  bool plan = false;
  int ranks = 1;  // for --plan
  Dtype dtype = Dtype::fp32;
  double loss_scale = 0;  // 0: dynamic; used in fp16 only
  int prefetch = 1;  // layers gathered ahead
  int timeout = 60;  // seconds without a sign of life that end a job
  std::optional<Device> wanted_device;  // none: what the machine has
  std::optional<Transport> wanted_comm;  // none: what suits device and ranks
  Reduce reduce = Reduce::ordered;
  Device device = Device::cpu;  // what was chosen (choice.hpp), and the line that says why
  Transport comm = Transport::mpi;
  std::string why;
};

using OptionValue = std::variant<bool, int, std::uint64_t, double, std::string>;

/// A command line as read: options to run with, or a text to print and leave with `status`.
struct Command {
  Options options;
  /// Every option of the chapter but those about planning, by name and as it will be used: for the
  /// log, and to compare ranks.
  std::vector<std::pair<std::string, OptionValue>> values;
  bool run = false;
  std::string text;  // help (status 0) or what is wrong with the command line (status 2)
  int status = 0;
};

/// Reads the command line; never throws for what a user can type, starts no MPI.
Command read_command(int argc, char** argv, const Chapter& chapter);

const char* name_of(Task task);
const char* name_of(Transport comm);
const char* name_of(Reduce reduce);

}  // namespace zero
