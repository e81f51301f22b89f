// SPDX-License-Identifier: MIT
// Adam in plain double, as the papers write it: Kingma and Ba (2015), Algorithm 1, with the
// decoupled weight decay of Loshchilov and Hutter (2019).
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

#include "train/options.hpp"

namespace zero::test {

/// The state of a vector of parameters; a model has one for each layer.
struct ReferenceAdam {
  double lr, beta1, beta2, eps, weight_decay;
  int steps = 0;
  std::vector<double> momentum, variance;

  ReferenceAdam(const Options& options, std::size_t size)
      : lr(options.lr),
        beta1(options.beta1),
        beta2(options.beta2),
        eps(options.eps),
        weight_decay(options.weight_decay),
        momentum(size),
        variance(size) {}

  /// A skipped step is one that is not asked for.
  void update(std::vector<double>& weights, const std::vector<double>& grads) {
    ++steps;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      momentum[i] = beta1 * momentum[i] + (1 - beta1) * grads[i];
      variance[i] = beta2 * variance[i] + (1 - beta2) * grads[i] * grads[i];
      const double unbiased_momentum = momentum[i] / (1 - std::pow(beta1, steps));
      const double unbiased_variance = variance[i] / (1 - std::pow(beta2, steps));
      weights[i] -= lr * weight_decay * weights[i];
      weights[i] -= lr * unbiased_momentum / (std::sqrt(unbiased_variance) + eps);
    }
  }
};

}  // namespace zero::test
