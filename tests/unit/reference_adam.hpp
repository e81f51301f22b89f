// SPDX-License-Identifier: MIT
// Adam in plain double, as the papers write it: Kingma and Ba (2015), Algorithm 1, with the
// decoupled weight decay of Loshchilov and Hutter (2019).
#pragma once
#include <algorithm>
#include <cmath>

#include "train/options.hpp"

namespace zero::test {
/// The state of a vector of parameters; a model has one for each layer.
struct ReferenceAdam {
  ReferenceAdam(const Options& options, std::size_t size)
      : options(options), momentum(size), variance(size) {}

  /// A skipped step is one that is not asked for.
  void update(std::vector<double>& weights, const std::vector<double>& grads) {
    const double lr = options.lr, beta1 = options.beta1, beta2 = options.beta2;
    ++steps;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      momentum[i] = beta1 * momentum[i] + (1 - beta1) * grads[i];
      variance[i] = beta2 * variance[i] + (1 - beta2) * grads[i] * grads[i];
      const double unbiased_momentum = momentum[i] / (1 - std::pow(beta1, steps));
      const double unbiased_variance = variance[i] / (1 - std::pow(beta2, steps));
      weights[i] -= lr * options.weight_decay * weights[i];
      weights[i] -= lr * unbiased_momentum / (std::sqrt(unbiased_variance) + options.eps);
    }
  }

  const Options options;
  int steps = 0;
  std::vector<double> momentum, variance;
};

/// The reference, and how far an Adam of unit roundoff u may be from it.
///
/// After t steps each term of the momentum has passed at most 3 t + 1 roundings (the gradient, the
/// constant, the product, the sum; then a constant, a product and a sum a step), so it is off by at
/// most (3 t + 1) u times the sum of the terms' magnitudes. The variance has positive terms only:
/// off by a factor of 1 + (3 t + 3) u. Its root halves that; with the root itself, the correction
/// (constant and product) and eps (constant and sum) the denominator is off by (1.5 t + 6.5) u.
/// With the step size (constant and product) and the quotient, the update is off by
/// (4.5 t + 10.5) u times its magnitude; it is subtracted from the decayed weight (constant,
/// product, sum). 1 - beta^t is formed in double from a product of t factors, so it is off by
/// t 2^-53 / (1 - beta^t) of itself, halved by the root. 1.01 covers the products of these.
struct Bounded {
  Bounded(const Options& options, std::vector<double> initial, double u)
      : adam(options, initial.size()),
        weights(std::move(initial)),
        error(weights.size()),
        magnitude(weights.size()),
        u(u) {}

  void update(const std::vector<double>& grads) {
    const std::vector<double> before = weights;
    adam.update(weights, grads);
    const double t = adam.steps, beta1 = adam.options.beta1;
    const double left1 = 1 - std::pow(beta1, t), left2 = 1 - std::pow(adam.options.beta2, t);
    const double factor = (4.5 * t + 11) * u + 0x1p-53 * t * (1 / left1 + 0.5 / left2);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      magnitude[i] = beta1 * magnitude[i] + (1 - beta1) * std::abs(grads[i]);
      const double denominator = std::sqrt(adam.variance[i] / left2) + adam.options.eps;
      const double moved = adam.options.lr / left1 * magnitude[i] / denominator;
      error[i] += 1.01 * (3 * u * std::max(std::abs(before[i]), std::abs(weights[i])));
      error[i] += 1.01 * factor * moved;
    }
  }
  double momentum_error(std::size_t i) const {
    return 1.01 * (3 * adam.steps + 1) * u * magnitude[i];
  }
  double variance_error(std::size_t i) const {
    return 1.01 * (3 * adam.steps + 3) * u * adam.variance[i];
  }

  ReferenceAdam adam;
  std::vector<double> weights, error;
  std::vector<double> magnitude;  // the momentum of the gradients' magnitudes
  double u;
};
}  // namespace zero::test
