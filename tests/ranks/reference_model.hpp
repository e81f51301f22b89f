// SPDX-License-Identifier: MIT
// The model once more, as the note on the generator says it: explicit loops in double, no matrix
// product, no stream, no storage type. Nothing is shared with the real one but the numbers.
#pragma once
#include <cmath>
#include <span>

#include "tests/unit/elements.hpp"

namespace zero::test {
using Numbers = std::vector<double>;
using Layers = std::vector<Numbers>;

/// Samples one after the other.
struct Samples {
  Numbers inputs;  // count x widths.front()
  Numbers targets;  // count x targets()
};

/// Samples [first, first + count).
inline Samples samples_of(const Data& data, const Architecture& architecture, std::int64_t first,
                          std::int64_t count) {
  const LoadedSamples as_made = load_samples(data, architecture, first, count);
  return {{as_made.inputs.begin(), as_made.inputs.end()},
          {as_made.targets.begin(), as_made.targets.end()}};
}

struct ReferenceModel {
  Architecture architecture;
  Layers params;  // of each layer: the weight, outputs x inputs, row-major; then the bias

  struct Result {
    double loss;
    Layers gradients;  // like params
  };

  /// Layer l before the ReLU. x: batch x inputs.
  Numbers linear(int l, const Numbers& x) const {
    const std::int64_t inputs = architecture.widths[l], outputs = architecture.widths[l + 1];
    Numbers y;
    for (std::int64_t s = 0; s < std::ssize(x) / inputs; ++s) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        double sum = architecture.bias ? params[l][outputs * inputs + o] : 0;
        for (std::int64_t i = 0; i < inputs; ++i) {
          sum += params[l][o * inputs + i] * x[s * inputs + i];
        }
        y.push_back(sum);
      }
    }
    return y;
  }

  /// [l]: the inputs of layer l; last come the outputs of the model.
  Layers forward(const Numbers& inputs) const {
    Layers activations{inputs};
    for (int l = 0; l < architecture.layers(); ++l) {
      Numbers y = linear(l, activations.back());
      const bool relu = architecture.relu && l + 1 < architecture.layers();
      for (double& value : y) value = relu && value < 0 ? 0 : value;
      activations.push_back(y);
    }
    return activations;
  }

  /// The probabilities of one sample's classes.
  static Numbers softmax(std::span<const double> outputs) {
    double sum = 0;
    Numbers probabilities;
    for (const double output : outputs) {
      probabilities.push_back(std::exp(output - outputs[0]));
      sum += probabilities.back();
    }
    for (double& p : probabilities) p /= sum;
    return probabilities;
  }

  /// Mean cross-entropy, or mean squared difference. delta becomes d loss / d outputs.
  double loss(const Numbers& outputs, const Numbers& targets, Numbers& delta) const {
    const auto count = static_cast<double>(targets.size());
    double sum = 0;
    delta.clear();
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (architecture.classifier) {
        const std::size_t classes = outputs.size() / targets.size();
        const auto target = static_cast<std::size_t>(targets[t]);
        const Numbers probabilities = softmax(std::span(outputs).subspan(t * classes, classes));
        sum -= std::log(probabilities[target]);
        for (std::size_t c = 0; c < classes; ++c) {
          delta.push_back((probabilities[c] - (c == target ? 1 : 0)) / count);
        }
      } else {
        sum += std::pow(outputs[t] - targets[t], 2);
        delta.push_back(2 * (outputs[t] - targets[t]) / count);
      }
    }
    return sum / count;
  }

  /// d loss / d params, from what forward() returned and d loss / d outputs.
  Layers backward(const Layers& activations, Numbers delta) const {
    Layers gradients(architecture.layers());
    for (int l = architecture.layers(); l-- > 0;) {
      const std::int64_t inputs = architecture.widths[l], outputs = architecture.widths[l + 1];
      const Numbers& x = activations[l];
      Numbers& gradient = gradients[l];
      gradient.resize(architecture.size(l));
      Numbers before(x.size());  // d loss / d x, and then before the ReLU that made x
      for (std::int64_t s = 0; s < std::ssize(x) / inputs; ++s) {
        for (std::int64_t o = 0; o < outputs; ++o) {
          const double d = delta[s * outputs + o];
          for (std::int64_t i = 0; i < inputs; ++i) {
            gradient[o * inputs + i] += d * x[s * inputs + i];
            before[s * inputs + i] += d * params[l][o * inputs + i];
          }
          if (architecture.bias) gradient[outputs * inputs + o] += d;
        }
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (architecture.relu && x[i] <= 0) before[i] = 0;
      }
      delta = before;
    }
    return gradients;
  }

  Result loss_and_gradients(const Samples& samples) const {
    const Layers activations = forward(samples.inputs);
    Numbers delta;
    const double mean = loss(activations.back(), samples.targets, delta);
    return {mean, backward(activations, delta)};
  }
};

/// With the weights that a run of these options starts with. Their products are rounded to fp32, as
/// the note wants it.
inline ReferenceModel initial_model(const Options& options) {
  ReferenceModel model{architecture(options), {}};
  const Architecture& shape = model.architecture;
  const Generator random(options.seed, RandomStream::weights);
  std::uint64_t number = 0;
  for (int l = 0; l < shape.layers(); ++l) {
    const std::int64_t inputs = shape.widths[l], weights = inputs * shape.widths[l + 1];
    float scale = std::sqrt(6.0 / static_cast<double>(inputs));
    if (l + 1 == shape.layers()) scale *= shape.last_scale;
    Numbers& layer = model.params.emplace_back(shape.size(l));
    for (std::int64_t i = 0; i < shape.size(l); ++i, ++number) {
      layer[i] = i < weights ? random.uniform(number) * scale : 0;
    }
  }
  return model;
}
}  // namespace zero::test
