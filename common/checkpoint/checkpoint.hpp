// SPDX-License-Identifier: MIT
// Saves and resumes a run. A checkpoint is a folder step_N: two files of tensors, and a Llama's
// config.json. They do not depend on the chapter or the number of ranks: each rank writes its part
// of each layer at that part's position, and reads what it holds. Both headers describe the run.
#pragma once
#include "comm/communicator.hpp"
#include "memory/layout.hpp"
#include "train/step.hpp"

namespace zero {
/// The run that is saved. All that it refers to must outlive it.
struct Saved {
  Options& options;
  const Layout& layout;
  Device& device;
  Communicator& comm;
  std::string data;  // Data::description()
  /// Runs a task on every rank. If it throws an Error on any rank, throws an Error on all.
  std::function<void(const std::function<void()>& task)> on_all_ranks;
};

/// A run's checkpoints. All ranks call the same functions in the same order, with idle streams.
class Checkpoints {
 public:
  virtual ~Checkpoints() = default;
  /// Fills the trainer's tensors. Returns the path read; empty: none. Throws Error (data).
  virtual std::string load() = 0;
  /// Counts a step. Returns whether the state after it has to be saved.
  virtual bool count(const StepResult& step) = 0;
  /// Writes path(), keeps --keep folders. Returns what failed, or "". Throws Error (communication).
  virtual std::string save() = 0;
  virtual std::string path() const = 0;  // the folder of the present step's checkpoint

  std::vector<std::string> notes{};  // about what is loaded, to be printed before the first step
};

/// Reads the headers of what load() will read, sets options.begin, makes the folder to save into.
/// Throws Error if the checkpoint does not fit this run, or the folder cannot be used.
std::unique_ptr<Checkpoints> make_checkpoints(const Saved& run);
}  // namespace zero
