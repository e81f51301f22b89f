// SPDX-License-Identifier: MIT
#include "train/adam.hpp"

#include <cmath>

#include "memory/error.hpp"

namespace zero {

Adam::Adam(const Options& options, Stream& stream)
    : lr_(options.lr),
      beta1_(options.beta1),
      beta2_(options.beta2),
      eps_(options.eps),
      weight_decay_(options.weight_decay),
      stream_(stream) {}

void Adam::begin(float grad_factor) {
  ++steps_;
  scalars_ = {grad_factor,
              static_cast<float>(beta1_),
              static_cast<float>(1 - beta1_),
              static_cast<float>(beta2_),
              static_cast<float>(1 - beta2_),
              static_cast<float>(1 - lr_ * weight_decay_),
              static_cast<float>(lr_ / (1 - std::pow(beta1_, steps_))),
              static_cast<float>(1 / std::sqrt(1 - std::pow(beta2_, steps_))),
              static_cast<float>(eps_)};
}

void Adam::update(const AdamSlice& slice, View grads, CastTo copy) {
  const View params = copy.params;
  const std::int64_t count = slice.weights.size;
  expect(slice.momentum.size == count && slice.variance.size == count && grads.size == count &&
             params.size == count,
         "Adam: the slice, its gradients and its parameters have the same size");
  expect(grads.dtype == params.dtype && slice.weights.dtype == Dtype::fp32,
         "Adam: gradients and parameters have one dtype, the state is fp32");
  stream_.run(
      [=, &on = stream_.kernels(), scalars = scalars_] { on.adam(scalars, slice, grads, params); });
}

}  // namespace zero
