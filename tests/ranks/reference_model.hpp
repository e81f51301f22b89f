// SPDX-License-Identifier: MIT
// The model once more, as the note on the generator says it: explicit loops in double, no matrix
// product, no stream, no storage type. Nothing is shared with the real one but the numbers.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compute/generator.hpp"
#include "tests/unit/elements.hpp"
#include "train/mlp.hpp"

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

/// The weights that a run with this seed starts with. Their products are rounded to fp32, as the
/// note wants it.
inline Layers initial_params(const Architecture& architecture, std::uint64_t seed) {
  const Generator random(seed, RandomStream::weights);
  Layers params;
  std::uint64_t number = 0;
  for (int l = 0; l < architecture.layers(); ++l) {
    const auto inputs = static_cast<double>(architecture.widths[l]);
    float scale = static_cast<float>(std::sqrt(6 / inputs));
    if (l + 1 == architecture.layers()) scale *= architecture.last_scale;
    const std::int64_t weights = architecture.widths[l] * architecture.widths[l + 1];
    Numbers layer(architecture.size(l));
    for (std::int64_t i = 0; i < architecture.size(l); ++i, ++number) {
      layer[i] = i < weights ? random.uniform(number) * scale : 0;
    }
    params.push_back(layer);
  }
  return params;
}

struct ReferenceModel {
  Architecture architecture;
  Layers params;  // of each layer: the weight, outputs x inputs, row-major; then the bias

  struct Result {
    double loss;
    Layers gradients;  // like params
  };

  std::int64_t batch_of(const Samples& samples) const {
    return std::ssize(samples.inputs) / architecture.widths.front();
  }

  /// Layer l before the ReLU. x: batch x inputs.
  Numbers linear(int l, const Numbers& x) const {
    const std::int64_t inputs = architecture.widths[l];
    const std::int64_t outputs = architecture.widths[l + 1];
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
    for (const double output : outputs) sum += std::exp(output - outputs[0]);
    Numbers probabilities;
    for (const double output : outputs) {
      probabilities.push_back(std::exp(output - outputs[0]) / sum);
    }
    return probabilities;
  }

  /// Mean cross-entropy, or mean squared difference.
  double loss(const Numbers& outputs, const Numbers& targets) const {
    const auto count = static_cast<std::size_t>(architecture.widths.back());
    double sum = 0;
    if (!architecture.classifier) {
      for (std::size_t i = 0; i < outputs.size(); ++i) sum += std::pow(outputs[i] - targets[i], 2);
      return sum / static_cast<double>(outputs.size());
    }
    for (std::size_t s = 0; s < targets.size(); ++s) {
      const auto probabilities = softmax(std::span(outputs).subspan(s * count, count));
      sum -= std::log(probabilities[static_cast<std::size_t>(targets[s])]);
    }
    return sum / static_cast<double>(targets.size());
  }

  /// d loss / d outputs.
  Numbers loss_gradient(const Numbers& outputs, const Numbers& targets) const {
    const auto count = static_cast<std::size_t>(architecture.widths.back());
    Numbers delta;
    if (!architecture.classifier) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        delta.push_back(2 * (outputs[i] - targets[i]) / static_cast<double>(outputs.size()));
      }
      return delta;
    }
    for (std::size_t s = 0; s < targets.size(); ++s) {
      auto probabilities = softmax(std::span(outputs).subspan(s * count, count));
      probabilities[static_cast<std::size_t>(targets[s])] -= 1;
      for (const double p : probabilities) delta.push_back(p / static_cast<double>(targets.size()));
    }
    return delta;
  }

  /// d loss / d params, from what forward() returned and d loss / d outputs.
  Layers backward(const Layers& activations, Numbers delta) const {
    Layers gradients(architecture.layers());
    for (int l = architecture.layers(); l-- > 0;) {
      gradients[l] = layer_gradient(l, activations[l], delta);
      if (l > 0) delta = input_gradient(l, activations[l], delta);
    }
    return gradients;
  }

  Result loss_and_gradients(const Samples& samples) const {
    const Layers activations = forward(samples.inputs);
    const Numbers& outputs = activations.back();
    return {loss(outputs, samples.targets),
            backward(activations, loss_gradient(outputs, samples.targets))};
  }

 private:
  Numbers layer_gradient(int l, const Numbers& x, const Numbers& delta) const {
    const std::int64_t inputs = architecture.widths[l];
    const std::int64_t outputs = architecture.widths[l + 1];
    Numbers gradient(architecture.size(l));
    for (std::int64_t s = 0; s < std::ssize(delta) / outputs; ++s) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        const double d = delta[s * outputs + o];
        for (std::int64_t i = 0; i < inputs; ++i) {
          gradient[o * inputs + i] += d * x[s * inputs + i];
        }
        if (architecture.bias) gradient[outputs * inputs + o] += d;
      }
    }
    return gradient;
  }

  /// d loss / d inputs of layer l before the ReLU that made them.
  Numbers input_gradient(int l, const Numbers& x, const Numbers& delta) const {
    const std::int64_t inputs = architecture.widths[l];
    const std::int64_t outputs = architecture.widths[l + 1];
    Numbers before(x.size());
    for (std::int64_t s = 0; s < std::ssize(delta) / outputs; ++s) {
      for (std::int64_t i = 0; i < inputs; ++i) {
        double sum = 0;
        for (std::int64_t o = 0; o < outputs; ++o) {
          sum += delta[s * outputs + o] * params[l][o * inputs + i];
        }
        const bool cut_off = architecture.relu && x[s * inputs + i] <= 0;
        before[s * inputs + i] = cut_off ? 0 : sum;
      }
    }
    return before;
  }
};
}  // namespace zero::test
