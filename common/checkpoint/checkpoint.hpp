// SPDX-License-Identifier: MIT
// To save a run and to go on with it. A checkpoint is a folder step_N of two files in which nothing
// says who held what: each rank writes its part of each layer at that part's place, and reads what
// it holds, in any chapter, on any number of ranks. Both headers say the same of the run.
#pragma once
#include "comm/communicator.hpp"
#include "memory/layout.hpp"
#include "train/step.hpp"

namespace zero {
/// What is saved, among whom, and how. Refers to what outlives it.
struct Saved {
  Options& options;
  const Layout& layout;
  Device& device;
  Communicator& comm;
  std::string data;  // its description
  /// Runs a task on every rank; throws an Error on all of them when it throws one on any.
  std::function<void(const std::function<void()>& task)> together;
};

/// A run's. All ranks call the same functions in the same order, with their streams idle.
class Checkpoints {
 public:
  virtual ~Checkpoints() = default;
  /// Fills what a trainer holds; returns from where, empty when the run begins by itself.
  virtual std::string load() = 0;
  /// A step was made. True when its state is to be saved.
  virtual bool count(const StepResult& step) = 0;
  /// Makes path(), then removes old ones. Returns why not all was done, else nothing.
  virtual std::string save() = 0;
  virtual std::string path() const = 0;

  std::vector<std::string> notes{};  // on what is loaded, for the run's head
};

/// Sets options.begin as the run is resumed, and makes the folder that it saves into. Like load(),
/// throws Error when what is there is no beginning of this run.
std::unique_ptr<Checkpoints> make_checkpoints(const Saved& run);
}  // namespace zero
