// SPDX-License-Identifier: MIT
// The model once more, as the note on the generator says it: explicit loops, no matrix product, no
// stream. Nothing is shared with the real one but the numbers. Of doubles it is the truth, of
// intervals it is where the real one's numbers may lie.
#pragma once
#include <numeric>
#include <span>

#include "tests/unit/interval.hpp"

namespace zero::test {
using Numbers = std::vector<double>;
using Layers = std::vector<Numbers>;

template <class Number> struct ReferenceModel {
  using Vector = std::vector<Number>;
  using Vectors = std::vector<Vector>;

  Architecture architecture;
  Layers params;  // of each layer: the weight, outputs x inputs, row-major; then the bias
  Dtype dtype = Dtype::fp32;  // of the inputs; and in which intervals are stored
  double scale = 1;  // of the loss, in the gradients

  struct Result {
    Number loss;
    Vectors gradients;  // like params
  };

  Number store(Number x) const { return stored(x, dtype); }

  /// Layer l. x: batch x inputs.
  Vector linear(int l, const Vector& x, bool relu) const {
    const std::int64_t inputs = architecture.widths[l], outputs = architecture.widths[l + 1];
    Vector y;
    for (std::int64_t s = 0; s < std::ssize(x) / inputs; ++s) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        Sum<Number> sum;
        for (std::int64_t i = 0; i < inputs; ++i) {
          sum.add(params[l][o * inputs + i], x[s * inputs + i]);
        }
        Number value = sum.total(u);
        if (architecture.bias) value = value + params[l][outputs * inputs + o];
        y.push_back(store(relu ? max(value, Number(0)) : value));
      }
    }
    return y;
  }

  /// [l]: the inputs of layer l; last come the outputs of the model.
  Vectors forward(const std::vector<float>& inputs) const {
    Vectors activations(1);
    for (const float x : inputs) activations[0].push_back(rounded(dtype, x));
    for (int l = 0; l < architecture.layers(); ++l) {
      const bool relu = architecture.relu && l + 1 < architecture.layers();
      activations.push_back(linear(l, activations.back(), relu));
    }
    return activations;
  }

  /// Cross-entropy of one sample's outputs, and delta: d loss / d outputs.
  Number cross_entropy(std::span<const Number> outputs, std::size_t target, Number factor,
                       Vector& delta) const {
    const Number largest = std::accumulate(outputs.begin(), outputs.end(), outputs[0],
                                           [](Number a, Number b) { return max(a, b); });
    Sum<Number> sum;
    for (const Number y : outputs) sum.add(exp(y - largest), 1);
    const Number all = sum.total(u);
    for (std::size_t c = 0; c < outputs.size(); ++c) {
      const Number probability = exp(outputs[c] - largest) / all;
      delta.push_back(store((probability - (c == target ? 1 : 0)) * factor));
    }
    return log(all) + largest - outputs[target];
  }

  /// Mean cross-entropy, or mean squared difference. delta becomes its gradient.
  Number loss(const Vector& outputs, const std::vector<float>& targets, Vector& delta) const {
    const auto count = static_cast<double>(targets.size());
    const std::size_t classes = outputs.size() / targets.size();
    const Number factor = scale / count;
    Sum<Number> sum;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (architecture.classifier) {
        const auto sample = std::span(outputs).subspan(t * classes, classes);
        sum.add(cross_entropy(sample, static_cast<std::size_t>(targets[t]), factor, delta), 1);
      } else {
        const Number difference = outputs[t] - targets[t];
        sum.add(difference, difference);
        delta.push_back(store(2 * difference * factor));
      }
    }
    return sum.total(u) / count;
  }

  /// d loss / d params, from what forward() returned and d loss / d outputs.
  Vectors backward(const Vectors& activations, Vector delta) const {
    Vectors gradients(architecture.layers());
    for (int l = architecture.layers(); l-- > 0;) {
      const std::int64_t inputs = architecture.widths[l], outputs = architecture.widths[l + 1];
      const Vector& x = activations[l];
      std::vector<Sum<Number>> gradient(architecture.size(l));
      std::vector<Sum<Number>> before(x.size());  // d loss / d x
      for (std::int64_t s = 0; s < std::ssize(x) / inputs; ++s) {
        for (std::int64_t o = 0; o < outputs; ++o) {
          const Number d = delta[s * outputs + o];
          for (std::int64_t i = 0; i < inputs; ++i) {
            gradient[o * inputs + i].add(d, x[s * inputs + i]);
            before[s * inputs + i].add(d, params[l][o * inputs + i]);
          }
          if (architecture.bias) gradient[outputs * inputs + o].add(d, 1);
        }
      }
      for (const auto& sum : gradient) gradients[l].push_back(store(sum.total(u)));
      delta.clear();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Number d = before[i].total(u);
        delta.push_back(store(architecture.relu ? where_positive(x[i], d) : d));
      }
    }
    return gradients;
  }

  Result loss_and_gradients(const LoadedSamples& samples) const {
    const Vectors activations = forward(samples.inputs);
    Vector delta;
    const Number mean = loss(activations.back(), samples.targets, delta);
    return {mean, backward(activations, delta)};
  }
};

}  // namespace zero::test
