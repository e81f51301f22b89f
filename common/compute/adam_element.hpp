// SPDX-License-Identifier: MIT
// Adam's update of one parameter, written once for every loop and kernel that applies it.
#pragma once
#include <cmath>

#include "memory/tensor.hpp"

namespace zero {
/// The numbers that update t (from 1) uses for every parameter: Adam's (Kingma and Ba, 2015,
/// Algorithm 1) and those of decoupled weight decay (Loshchilov and Hutter, 2019).
struct AdamScalars {
  float grad_factor;  // multiplies each gradient: removes the loss scale and clips
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float decay;  // 1 - lr * weight_decay
  float step_size;  // lr / (1 - beta1^t)
  float inverse_correction;  // multiplies the variance's root: 1 / sqrt(1 - beta2^t)
  float eps;
};

/// What Adam updates for a layer or a part of one: views of equal size; all but params are fp32.
struct AdamState {
  View weights;  // the master weights; with --dtype fp32 the parameters themselves
  View momentum;
  View variance;
  View params{};  // gets the weights, rounded; no copy is made if it is empty or in their memory
};

/// Updates weight, momentum and variance. grad: the stored gradient (with the loss scale), in fp32.
HOST_DEVICE inline void adam_element(const AdamScalars& s, float grad, float& weight,
                                     float& momentum, float& variance) {
  const float g = grad * s.grad_factor;
  momentum = s.beta1 * momentum + s.one_minus_beta1 * g;
  variance = s.beta2 * variance + s.one_minus_beta2 * (g * g);
  const float denominator = std::sqrt(variance) * s.inverse_correction + s.eps;
  weight = weight * s.decay - s.step_size * momentum / denominator;
}
}  // namespace zero
