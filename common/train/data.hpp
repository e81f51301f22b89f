// SPDX-License-Identifier: MIT
// Training samples, from the generator or from a file, numbered over the whole run.
#pragma once
#include "compute/kernels.hpp"
#include "memory/tensor.hpp"
#include "train/options.hpp"

namespace zero {
class Data;

/// The samples of one rank's micro-batch: numbers [first, first + options.batch).
struct Batch {
  const Data* data;
  std::int64_t first;
};

/// A source of samples. Sample number s does not depend on the rank that loads it. Micro-batch
/// m = (step * accumulate + micro) * ranks + rank has samples [m * batch, (m + 1) * batch).
class Data {
 public:
  Data(const Options& options, int rank, int ranks)
      : batch_(options.batch), accumulate_(options.accumulate), rank_(rank), ranks_(ranks) {}
  virtual ~Data() = default;

  /// Returns this rank's micro-batch number `micro` of step `step`. `step` and `micro` begin at 0.
  Batch operator()(int step, int micro) const {
    const std::int64_t number = std::int64_t{step} * accumulate_ + micro;
    return {this, (number * ranks_ + rank_) * batch_};
  }

  /// Writes as many samples as fit, from number `first` on: rows of inputs, and rows of targets in
  /// fp32 (a number per output, or one class, or one class per token). Call it in a stream's task.
  virtual void load(Kernels& on, std::int64_t first, View inputs, View targets) const = 0;

  /// Describes the file that was read. Equal bytes have equal descriptions. Empty without a file.
  virtual std::string description() const { return ""; }

 private:
  std::int64_t batch_;
  int accumulate_;
  int rank_;
  int ranks_;
};

/// Returns 1234567 as "1 234 567".
inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > (number < 0); at -= 3) {
    text.insert(at, 1, ' ');
  }
  return text;
}

/// A number of bytes, and its formula with the run's numbers.
struct Figure {
  std::int64_t bytes = 0;
  std::string formula{};
};

/// Makes the data of options.task in the device's memory. Throws Error (data) if its file is
/// missing, too short or of another kind, or has a token that is not below options.vocab.
std::unique_ptr<Data> make_data(const Options& options, Device& device, int rank = 0,
                                int ranks = 1);

/// Returns the bytes of make_data()'s result. Throws like make_data(), but checks no token's value.
Figure source_bytes(const Options& options);
}  // namespace zero
