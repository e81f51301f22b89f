// SPDX-License-Identifier: MIT
// To save a run and to go on with it. A checkpoint is a folder step_N of two files in which nothing
// says who held what: each rank writes its part of each layer at that part's place, and reads what
// it holds, in any chapter, on any number of ranks. Both headers say the same of the run.
#pragma once
#include "comm/communicator.hpp"
#include "memory/layout.hpp"
#include "train/step.hpp"

namespace zero {
/// A run's. All ranks call the same functions in the same order, with their streams idle.
class Checkpoints {
 public:
  virtual ~Checkpoints() = default;

  /// Fills what a trainer holds, on the device and its host; returns from where, empty when the run
  /// begins by itself. Throws Error (data) when a digest is not the file's.
  virtual std::string load() = 0;
  /// A step was made. True when its state is to be saved.
  virtual bool passed(const StepResult& step) = 0;
  /// Makes a checkpoint beside those that there are, then removes old ones. Returns why not
  /// all of it was done; empty: it was. The run can go on.
  virtual std::string save() = 0;
  /// Where save() puts the state of this step.
  virtual std::string path() const = 0;
};

/// What is saved, among whom, and how. Refers to what outlives it.
struct Saved {
  Options& options;
  const Layout& layout;
  Device& device;
  Communicator& comm;
  std::string data;  // its description
  int threads;  // of this rank; one alone writes
  /// Runs a task on every rank; throws an Error on all of them when it throws one on any.
  std::function<void(const std::function<void()>& task)> together;
};

/// Sets options.begin as the run is resumed, and takes the folder that it saves into, so that no
/// other run does. Throws Error: usage, when the options contradict what is there; data, when that
/// is no beginning of this run; resources, when the folder cannot be had.
std::unique_ptr<Checkpoints> make_checkpoints(const Saved& run);
}  // namespace zero
