// SPDX-License-Identifier: MIT
// The work: samples made from the generator or read from a file, numbered over the whole run.
#pragma once
#include "compute/kernels.hpp"
#include "memory/tensor.hpp"
#include "train/options.hpp"

namespace zero {
class Data;

/// One rank's samples of one micro-batch: numbers [first, first + options.batch).
struct Batch {
  const Data* data;
  std::int64_t first;
};

/// A source of samples. Sample s is the same whoever asks for it: micro-batch
/// m = (step * accumulate + micro) * ranks + rank holds samples [m * batch, (m + 1) * batch).
class Data {
 public:
  Data(const Options& options, int rank, int ranks)
      : batch_(options.batch), accumulate_(options.accumulate), rank_(rank), ranks_(ranks) {}
  virtual ~Data() = default;

  /// step and micro count from 0.
  Batch operator()(int step, int micro) const {
    const std::int64_t number = std::int64_t{step} * accumulate_ + micro;
    return {this, (number * ranks_ + rank_) * batch_};
  }

  /// Writes samples [first, ...), as many as fit: rows of the model's inputs, and of their targets
  /// in fp32 (outputs numbers, or classes: one, or one a token). Part of a stream's task.
  virtual void load(Kernels& on, std::int64_t first, View inputs, View targets) const = 0;

  /// Of what was read, the same for the same bytes; empty when nothing was.
  virtual std::string description() const { return ""; }

 private:
  std::int64_t batch_;
  int accumulate_;
  int rank_;
  int ranks_;
};

/// 1234567 as "1 234 567".
inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > (number < 0); at -= 3) {
    text.insert(at, 1, ' ');
  }
  return text;
}

/// Bytes, and their formula with the run's numbers.
struct Figure {
  std::int64_t bytes = 0;
  std::string formula{};
};

/// The data of options.task. Throws Error (data) when its file is missing or too short, or has a
/// token that is none of options.vocab.
std::unique_ptr<Data> make_data(const Options& options, Device& device, int rank = 0,
                                int ranks = 1);

/// What make_data holds. Throws Error (data) when its file is missing or too short.
Figure source_bytes(const Options& options);
}  // namespace zero
