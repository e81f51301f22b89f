// SPDX-License-Identifier: MIT
// To save a run and to go on with it. A checkpoint is a folder step_N of two files in which nothing
// says who held what: each rank writes its part of each layer at that part's place, and reads what
// it holds, in any chapter, on any number of ranks.
#pragma once
#include "checkpoint/parts.hpp"
#include "comm/communicator.hpp"
#include "train/verdict.hpp"

namespace zero {
/// A run's. All ranks call the same functions in the same order, with their streams idle.
class Checkpoints {
 public:
  /// Runs a task on every rank; throws an Error on all of them when it throws one on any.
  using Together = std::function<void(const std::function<void()>& task)>;

  /// Finds where the run begins, and takes the folder that it saves into, so that no other run
  /// does. data: its description. threads: of this rank, that read and write. Throws Error: usage,
  /// when the options contradict what is there; data, when that is no beginning of this run;
  /// resources, when the folder cannot be had.
  Checkpoints(const Options& options, const Layout& layout, Device& device, Communicator& comm,
              const std::string& data, int threads, Together together);

  /// After the steps so far, those before the run was resumed among them.
  const Progress& progress() const { return progress_; }
  /// Fills what a trainer holds, on the device and its host; returns from where, empty when the run
  /// begins by itself. Throws Error (data) when a digest is not the file's.
  std::string load();

  /// A step was made. True when its state is to be saved.
  bool passed(const Verdict& step);
  /// Makes a checkpoint beside those that there are, then removes old ones. Returns why the system
  /// did not let it; empty: it did. The run can go on.
  std::string save();
  /// Where save() puts the state of this step.
  std::string path() const;
  bool has_failed() const { return failed_; }

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  using Files = std::vector<std::pair<std::string, File>>;  // with their paths

  static Files open(const std::vector<std::string>& paths, const char* mode);
  void find_beginning();
  Progress read_headers();
  void take_folder();
  /// Moves what this rank has to do with; sets the tensors' digests, over all ranks.
  void move(Move how, const Files& files);
  void add_digests(std::span<const std::uint64_t> mine);

  const Options& options_;
  const Layout& layout_;
  Device& device_;
  Communicator& comm_;
  const Together together_;
  Metadata says_;  // what every header says: which run it is of, and how far it has come
  Team team_;
  std::vector<std::vector<StoredTensor>> tensors_;  // of each file
  Progress progress_;
  LossScale loss_scale_;  // as the trainer's own
  std::string source_;  // what is loaded
  Files sources_;
  File lock_{nullptr, std::fclose};
  bool failed_ = false;
};
}  // namespace zero
