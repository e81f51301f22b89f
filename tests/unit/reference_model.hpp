// SPDX-License-Identifier: MIT
// The model once more, as the note on the generator says it: explicit loops, no matrix product, no
// stream. Nothing is shared with the real one but the numbers. Of doubles it is the truth, of
// intervals it is where the real one's numbers may lie, which computes in fp32 and stores in the
// run's dtype.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "tests/unit/checks.hpp"

namespace zero::test {
using std::exp, std::log, std::max;
constexpr double u = 0x1p-24;  // what one rounding to fp32 moves a number by at most, of itself

/// From low to high, numbers of fp32. An operator is one operation of the program, rounded once:
/// rounding keeps order, so the rounded ends enclose the rounded result. A constant is rounded too.
struct Interval {
  Interval(double x = 0) : Interval(x, x) {}
  Interval(double low, double high)
      : low(static_cast<float>(low)), high(static_cast<float>(high)) {}
  double magnitude() const { return std::max(std::abs(low), std::abs(high)); }

  double low, high;
};

inline Interval operator+(Interval a, Interval b) { return {a.low + b.low, a.high + b.high}; }
inline Interval operator-(Interval a, Interval b) { return {a.low - b.high, a.high - b.low}; }
inline std::pair<double, double> exact_product(Interval a, Interval b) {
  return std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
}
inline Interval operator*(Interval a, Interval b) {
  const auto [low, high] = exact_product(a, b);
  return {low, high};
}
/// b is positive.
inline Interval operator/(Interval a, Interval b) {
  return {a.low / (a.low < 0 ? b.low : b.high), a.high / (a.high < 0 ? b.high : b.low)};
}
inline Interval max(Interval a, Interval b) {
  return {std::max(a.low, b.low), std::max(a.high, b.high)};
}
/// The program's are off by 2^-36 of themselves before they are rounded, the library's, of doubles,
/// by a ten thousandth of that.
constexpr double series_error = 0x1.001p-36;
inline Interval exp(Interval x) {
  return {std::exp(x.low) * (1 - series_error), std::exp(x.high) * (1 + series_error)};
}
inline Interval log(Interval x) {  // x: 1 or more
  return {std::log(x.low) * (1 - series_error), std::log(x.high) * (1 + series_error)};
}

/// x as it is stored; a double stays what it is.
inline double stored(double x, Dtype) { return x; }
inline Interval stored(Interval x, Dtype dtype) {
  return {rounded(dtype, static_cast<float>(x.low)), rounded(dtype, static_cast<float>(x.high))};
}

/// y where x is positive, else 0.
inline double where_positive(double x, double y) { return x > 0 ? y : 0; }
inline Interval where_positive(Interval x, Interval y) {
  if (x.high <= 0) return 0;
  return x.low > 0 ? y : Interval(std::min(y.low, 0.0), std::max(y.high, 0.0));
}

/// A sum of products: in double as exact as needed, in fp32 formed in whatever order. There a
/// product passes through at most as many roundings as there are products, so the sum is off by at
/// most so many u of the products' magnitudes; 1.01 covers the squares of u, and double.
template <class Number> struct Sum {
  void add(Number a, Number b) { sum += a * b; }
  Number total() const { return sum; }
  Number sum = 0;
};
template <> struct Sum<Interval> {
  void add(Interval a, Interval b) {
    const auto [least, most] = exact_product(a, b);
    low += least;
    high += most;
    magnitude += std::max(std::abs(least), std::abs(most));
    ++terms;
  }
  Interval total() const {
    if (magnitude == 0) return 0;
    const double off = terms * (1.01 * u * magnitude + 0x1p-126);  // may underflow
    return {low - off, high + off};
  }
  double low = 0, high = 0, magnitude = 0;
  int terms = 0;
};

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
        Number value = sum.total();
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
    const Number all = sum.total();
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
    return sum.total() / count;
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
      for (const auto& sum : gradient) gradients[l].push_back(store(sum.total()));
      delta.clear();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Number d = before[i].total();
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
