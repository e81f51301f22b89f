// SPDX-License-Identifier: MIT
// How far rounding may take a model's loss and gradients from the reference's.
#pragma once
#include <algorithm>

#include "tests/ranks/reference_model.hpp"

namespace zero::test {
inline Numbers magnitudes(Numbers numbers) {
  for (double& x : numbers) x = std::abs(x);
  return numbers;
}

/// Activations, and gradients for a given d loss / d outputs, are sums of products of inputs,
/// weights and that delta. If each product passes through at most `narrow` roundings to the storage
/// type (of roundoff U) and `wide` roundings to fp32 (u), whatever the order of the sums, the error
/// is at most (1 + U)^narrow (1 + u)^wide - 1, the growth, times the same sum of the products'
/// magnitudes: what the reference gives for magnitudes, without ReLU. (Underflow comes on top: not
/// for fp16.)
class RoundingBound {
 public:
  double loss = 0;
  Layers gradients;
  /// The smallest distance of a value before a ReLU from zero, over how far it may be off: above 1
  /// all values lie on the same side in both models, as the bounds assume.
  double safety_of_kinks = HUGE_VAL;

  RoundingBound(const ReferenceModel& model, const Samples& samples, Dtype dtype)
      : shape_(model.architecture), roundoff_(unit_roundoff(dtype)) {
    ReferenceModel absolute = model;
    absolute.architecture.relu = false;
    for (Numbers& layer : absolute.params) layer = magnitudes(layer);
    const Layers sums = absolute.forward(magnitudes(samples.inputs));
    const Layers real = model.forward(samples.inputs);
    Numbers off = off_before_loss(model, real, sums);
    Numbers error = shape_.classifier ? cross_entropy(real.back(), samples.targets.size(), off)
                                      : squared_error(real.back(), samples.targets, off);
    // The loss moves by the outputs' errors times the steepest delta on the way. Each delta is
    // rounded three times: in a difference, for its factor, and in their product.
    Numbers delta;
    model.loss(real.back(), samples.targets, delta);
    for (std::size_t i = 0; i < delta.size(); ++i) {
      delta[i] = std::abs(delta[i]) + error[i];
      loss += delta[i] * off[i];
      error[i] += 4 * u * delta[i];
      delta[i] += 4 * u * delta[i];
    }
    // Back come the delta, stored; sums of outputs terms, stored; the sum over the batch, stored.
    std::int64_t wide = std::ssize(samples.inputs) / shape_.widths.front();
    for (const std::int64_t width : shape_.widths) wide += 2 * width + 1;
    gradients = absolute.backward(sums, delta);
    const Layers propagated = absolute.backward(sums, error);
    for (std::size_t l = 0; l < gradients.size(); ++l) {
      for (std::size_t i = 0; i < gradients[l].size(); ++i) {
        gradients[l][i] *= growth(wide, 2 * shape_.layers() + 2);
        gradients[l][i] += propagated[l][i];
      }
    }
  }

 private:
  static constexpr double u = 0x1p-24;

  double growth(std::int64_t wide, int narrow) const {
    return std::expm1(static_cast<double>(wide) * std::log1p(u) + narrow * std::log1p(roundoff_));
  }

  /// Of the outputs: each layer forms sums of inputs + 1 terms and stores them once.
  Numbers off_before_loss(const ReferenceModel& model, const Layers& real, const Layers& sums) {
    Numbers off;
    std::int64_t wide = 0;
    for (int l = 0; l < shape_.layers(); ++l) {
      wide += shape_.widths[l] + 1;
      off = sums[l + 1];
      for (double& each : off) each *= growth(wide, l + 1);
      if (!shape_.relu || l + 1 == shape_.layers()) continue;
      const Numbers before = model.linear(l, real[l]);
      for (std::size_t i = 0; i < off.size(); ++i) {
        safety_of_kinks = std::min(safety_of_kinks, std::abs(before[i]) / off[i]);
      }
    }
    return off;
  }

  /// How far the delta may be off for that reason. y - t is rounded once, as if y were further off.
  static Numbers squared_error(const Numbers& outputs, const Numbers& targets, Numbers& off) {
    Numbers change;
    for (std::size_t i = 0; i < off.size(); ++i) {
      off[i] += u * (std::abs(outputs[i] - targets[i]) + off[i]);
      change.push_back(2 * off[i] / static_cast<double>(off.size()));
    }
    return change;
  }

  /// The same. exp(z - max) is rounded in the difference, of at most r, and by the library, by 4 u:
  /// as if z were further off. The sum over c classes is off by c u more, the quotient by u.
  Numbers cross_entropy(const Numbers& outputs, double samples, Numbers& off) {
    const std::int64_t classes = shape_.widths.back();
    Numbers change;
    for (std::int64_t at = 0; at < std::ssize(outputs); at += classes) {
      const auto row = std::span(outputs).subspan(at, classes);
      const auto row_off = std::span(off).subspan(at, classes);
      const auto [least, most] = std::ranges::minmax(row);
      const double e = std::ranges::max(row_off), range = most - least + 2 * e;
      std::ranges::fill(row_off, e + u * (range + 4));
      const double ratio = std::expm1(2 * row_off[0] + u * (classes + 2));
      for (const double p : ReferenceModel::softmax(row)) change.push_back(ratio * p / samples);
      // log(sum) + max - z: the sum, and 4 roundings of numbers no larger than these.
      const double numbers = std::log(classes) + range + std::abs(most) + e;
      loss += u * (classes + 4 * 2 * numbers) / samples;
    }
    return change;
  }

  const Architecture& shape_;
  const double roundoff_;
};
}  // namespace zero::test
