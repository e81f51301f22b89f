// SPDX-License-Identifier: MIT
// Adam on any slice of the parameters, in one pass over memory.
#pragma once
#include <cstdint>

#include "compute/adam_element.hpp"
#include "compute/stream.hpp"
#include "memory/tensor.hpp"
#include "train/options.hpp"

namespace zero {

/// Mixed precision: parameters of that type are a rounded copy of fp32 master weights, which Adam
/// updates. Parameters in fp32 are their own master.
constexpr bool is_mixed(Dtype dtype) {
  return dtype != Dtype::fp32;
}

/// Bytes a parameter of what Adam keeps: momentum, variance and the master copy.
constexpr std::int64_t optimizer_bytes(Dtype dtype) {
  return is_mixed(dtype) ? 12 : 8;
}

/// Where the new weights also go, rounded to its dtype: the parameters to compute with.
struct CastTo {
  View params;
};

/// Counts the steps and folds learning rate and bias corrections into scalars.
class Adam {
 public:
  /// The stream must outlive the object's use.
  Adam(const Options& options, Stream& stream);

  /// Begins a step that is not skipped; every gradient is multiplied by grad_factor.
  void begin(float grad_factor);
  /// Updates the slice with `grads` (same size).
  void update(const AdamSlice& slice, View grads) { update(slice, grads, {slice.weights}); }
  /// And writes the new weights to `copy` (same size, the gradients' dtype), unless that is where
  /// they are. 28 bytes a parameter pass through memory, in 16 bit as in fp32.
  void update(const AdamSlice& slice, View grads, CastTo copy);

 private:
  double lr_, beta1_, beta2_, eps_, weight_decay_;
  Stream& stream_;
  int steps_ = 0;
  AdamScalars scalars_{};
};

}  // namespace zero
