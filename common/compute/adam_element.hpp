// SPDX-License-Identifier: MIT
// Adam's update of one parameter, written once for every loop and kernel that applies it.
#pragma once
#include <cmath>

#include "memory/tensor.hpp"

namespace zero {
/// The factors of update t (from 1), the same for all parameters: of Adam (Kingma and Ba, 2015,
/// Algorithm 1) and of decoupled weight decay (Loshchilov and Hutter, 2019).
struct AdamScalars {
  float grad_factor;  // removes the loss scale and clips
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float decay;  // 1 - lr * weight_decay
  float step_size;  // lr / (1 - beta1^t)
  float inverse_correction;  // of the variance's root: 1 / sqrt(1 - beta2^t)
  float eps;
};

/// What Adam updates of a layer, or of a part of one: views of one size, in fp32 except params.
struct AdamState {
  View weights;  // the master weights; with --dtype fp32 the parameters themselves
  View momentum;
  View variance;
  View params{};  // gets the rounded weights; empty, or the weights' own memory: no copy is made
};

/// Updates weight, momentum and variance. grad: as stored (with the loss scale), widened to fp32.
HOST_DEVICE inline void adam_element(const AdamScalars& s, float grad, float& weight,
                                     float& momentum, float& variance) {
  const float g = grad * s.grad_factor;
  momentum = s.beta1 * momentum + s.one_minus_beta1 * g;
  variance = s.beta2 * variance + s.one_minus_beta2 * (g * g);
  const float denominator = std::sqrt(variance) * s.inverse_correction + s.eps;
  weight = weight * s.decay - s.step_size * momentum / denominator;
}
}  // namespace zero
