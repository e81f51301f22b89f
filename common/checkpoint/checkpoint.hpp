// SPDX-License-Identifier: MIT
// To save a run and to go on with it. A checkpoint is a folder step_N of two files in which nothing
// says who held what: each rank writes its part of each layer at that part's place, and reads what
// it holds, in any chapter, on any number of ranks. Both headers say the same of the run.
#pragma once
#include "checkpoint/safetensors.hpp"
#include "comm/communicator.hpp"
#include "train/verdict.hpp"

namespace zero {
/// A run's. All ranks call the same functions in the same order, with their streams idle.
class Checkpoints {
 public:
  /// Runs a task on every rank; throws an Error on all of them when it throws one on any.
  using Together = std::function<void(const std::function<void()>& task)>;

  /// Sets options.begin as the run is resumed, and takes the folder that it saves into, so that no
  /// other run does. data: its description. threads: of this rank; one alone writes. Throws
  /// Error: usage, when the options contradict what is there; data, when that is no beginning of
  /// this run; resources, when the folder cannot be had.
  Checkpoints(Options& options, const Layout& layout, Device& device, Communicator& comm,
              const std::string& data, int threads, Together together);

  /// Fills what a trainer holds, on the device and its host; returns from where, empty when the run
  /// begins by itself. Throws Error (data) when a digest is not the file's.
  std::string load();

  /// A step was made. True when its state is to be saved.
  bool passed(const Verdict& step);
  /// Makes a checkpoint beside those that there are, then removes old ones. Returns why not
  /// all of it was done; empty: it was. The run can go on.
  std::string save();
  /// Where save() puts the state of this step.
  std::string path() const;
  bool has_failed() const { return failed_; }

 private:
  struct TensorFile {
    std::string path;
    std::vector<StoredTensor> tensors{};
    std::shared_ptr<std::FILE> file{};
  };

  std::vector<TensorFile> files_in(const std::string& checkpoint) const;
  /// What every header says: which run it is of, and how far it has come.
  Metadata says() const;
  /// Throws Error (data) unless a header says the same; a run's first header sets progress.
  void check(const std::string& path, Metadata found);
  void find_beginning();
  void take_folder();
  /// What this rank moves of the tensor, in parts no larger than its own of the layer.
  std::vector<View> parts_of(const StoredTensor& tensor, Move how) const;
  /// Of all tensors; sets their digests, over all ranks, or throws Error (data) on all ranks when
  /// one is not what it should be.
  void move(Move how, TensorFile& file);

  Options& options_;
  const Layout& layout_;
  Device& device_;
  Communicator& comm_;
  const std::string data_;
  Team team_;
  const Together together_;
  LossScale loss_scale_;  // as the trainer's own
  Progress progress_;
  std::string source_;  // what is loaded
  std::vector<TensorFile> sources_;
  std::shared_ptr<std::FILE> lock_;
  bool failed_ = false;
};
}  // namespace zero
