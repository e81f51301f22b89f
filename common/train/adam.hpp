// SPDX-License-Identifier: MIT
// Adam on any slice of the parameters, in one pass over memory.
#pragma once
#include <cstdint>

#include "compute/adam_element.hpp"
#include "compute/stream.hpp"
#include "memory/tensor.hpp"
#include "train/options.hpp"

namespace zero {

/// Elements of the separate master copy of `size` parameters: none in fp32.
constexpr std::int64_t master_size(Dtype dtype, std::int64_t size) {
  return dtype == Dtype::fp32 ? 0 : size;
}

/// Counts the steps and folds learning rate and bias corrections into scalars.
class Adam {
 public:
  /// The stream must outlive the object's use.
  Adam(const Options& options, Stream& stream);

  /// Begins a step that is not skipped; every gradient is multiplied by grad_factor.
  void begin(float grad_factor);
  /// Updates the slice with `grads` (same size) and writes the new weights, rounded, to `params`
  /// unless that is where they are. 28 bytes a parameter pass through memory, in 16 bit as in fp32.
  void update(const AdamSlice& slice, View grads, View params);

 private:
  double lr_, beta1_, beta2_, eps_, weight_decay_;
  Stream& stream_;
  int steps_ = 0;
  AdamScalars scalars_{};
};

}  // namespace zero
