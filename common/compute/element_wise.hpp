// SPDX-License-Identifier: MIT
// Element-wise operations, written once. `each` and `add_sum`, which CPU and GPU define, call a
// body for each element. Two operands are separate or the same elements: no overlap has a shift.
#pragma once
#include "compute/adam_element.hpp"
#include "compute/kernels.hpp"

namespace zero {
/// An operand; whether a body reads it, writes it or both, so that no load or save is in vain.
template <class T, bool is_read, bool is_written> struct Elements {
  using Element = T;
  static constexpr bool read = is_read, written = is_written;
  std::conditional_t<is_written, T, const T>* at;
};
template <class T> using In = Elements<T, true, false>;
template <class T> using Out = Elements<T, false, true>;
template <class T> using InOut = Elements<T, true, true>;

// ---- Bodies: operator()(number of the element, the element of each operand ...) ----

struct Initialise {
  Generator random;
  std::uint64_t number;  // index of element 0's random number
  float scale, offset;
  template <class T> HOST_DEVICE void operator()(std::int64_t i, T& x) const {
    x = narrow<T>(random.uniform(number + i) * scale + offset);
  }
};

struct Divide {
  float divisor;
  template <class T> HOST_DEVICE void operator()(std::int64_t, T& x) const {
    x = narrow<T>(widen(x) / divisor);
  }
};

/// store() (dtype.hpp), a body for each Write: a vector loop that tests `write` would compute both.
struct Round {
  template <class X, class T> HOST_DEVICE void operator()(std::int64_t, X x, T& place) const {
    store(place, widen(x), Write::overwrite);
  }
};
struct Add {
  template <class X, class T> HOST_DEVICE void operator()(std::int64_t, X x, T& place) const {
    store(place, widen(x), Write::add);
  }
};

/// y = sum + bias (if any), through a ReLU if `relu`. For CPUs; GPUs leave this to cuBLAS.
struct BiasRelu {
  bool relu;
  template <class X, class T, class... Bias>
  HOST_DEVICE void operator()(std::int64_t, X sum, T& y, Bias... bias) const {
    float value = widen(sum);
    ((value += widen(bias)), ...);
    if (relu) value = value < 0 ? 0 : value;  // keeps NaN
    y = narrow<T>(value);
  }
};

/// dy = 0 where y, the output of a ReLU, is 0.
struct Mask {
  template <class T> HOST_DEVICE void operator()(std::int64_t, T y, T& dy) const {
    dy = narrow<T>(widen(y) > 0 ? widen(dy) : 0.0f);
  }
};

/// Updates the weight, and writes it, rounded, to the copy, if there is one.
struct AdamBody {
  AdamScalars scalars;
  template <class T, class... Copy>
  HOST_DEVICE void operator()(std::int64_t, T grad, float& weight, float& momentum, float& variance,
                              Copy&... copy) const {
    adam_element(scalars, widen(grad), weight, momentum, variance);
    ((copy = narrow<Copy>(weight)), ...);
  }
};

// The body of a sum returns a term. To fix the order, a CPU adds term i to partial sum i mod lanes.

struct Square {
  static constexpr int lanes = 8;
  template <class T> HOST_DEVICE double operator()(std::int64_t, T x) const {
    const double wide = widen(x);
    return wide * wide;
  }
};

struct SquaredError {
  static constexpr int lanes = 1;
  float factor;  // multiplies the gradient: scale / number of elements
  template <class T> HOST_DEVICE double operator()(std::int64_t, T y, float target, T& dy) const {
    const float difference = widen(y) - target;
    dy = narrow<T>(2 * difference * factor);
    return static_cast<double>(difference) * difference;
  }
};

/// Implements the five Kernels functions below. Base: Kernels, or a class derived from it. Backend
/// derives from this class and has elements<T>(view), a pointer; each(count, body, operands ...);
/// add_sum(sums, total, divisor, count, body, operands ...): total += the terms' sum / divisor.
template <class Backend, class Base = Kernels> class ElementWise : public Base {
 public:
  using Base::Base;

  void initialise(View part, const Generator& random, std::uint64_t number, float scale,
                  float offset) final {
    with_type(part.dtype, [&]<class T>(T) {
      on().each(part.size, Initialise{random, number, scale, offset}, Out<T>{of<T>(part)});
    });
  }

  void squared_error(ConstView outputs, ConstView targets, float scale, View grad_output,
                     Sums& sums) final {
    with_type(outputs.dtype, [&]<class T>(T) {
      const auto count = static_cast<double>(outputs.size);
      const SquaredError body{static_cast<float>(scale / count)};
      on().add_sum(sums, &Totals::loss, count, outputs.size, body, In<T>{of<T>(outputs)},
                   In<float>{of<float>(targets)}, Out<T>{of<T>(grad_output)});
    });
  }

  void divide(View values, int divisor) final {
    with_type(values.dtype, [&]<class T>(T) {
      on().each(values.size, Divide{static_cast<float>(divisor)}, InOut<T>{of<T>(values)});
    });
  }

  void squared_norm(ConstView values, Sums& sums) final {
    with_type(values.dtype, [&]<class T>(T) {
      on().add_sum(sums, &Totals::squares, 1, values.size, Square(), In<T>{of<T>(values)});
    });
  }

  void adam(const AdamScalars& scalars, const AdamState& state, ConstView grads) final {
    with_type(grads.dtype, [&]<class T>(T) {
      const auto update = [&](auto... copy) {
        on().each(state.weights.size, AdamBody{scalars}, In<T>{of<T>(grads)},
                  InOut<float>{of<float>(state.weights)}, InOut<float>{of<float>(state.momentum)},
                  InOut<float>{of<float>(state.variance)}, copy...);
      };
      const View copy = state.params;
      const bool separate = copy.size > 0 && copy.data != state.weights.data;
      if (separate) return update(Out<T>{of<T>(copy)});
      update();
    });
  }

 private:
  Backend& on() { return static_cast<Backend&>(*this); }
  template <class T> static auto* of(auto view) { return Backend::template elements<T>(view); }
};
}  // namespace zero
