// SPDX-License-Identifier: MIT
// The CPU's kernels: each call does its work before it returns. Their definitions lie beside this
// file, by what they are for.
#pragma once
#include <algorithm>

#include "compute/element_wise.hpp"
#include "compute/wide_vectors.hpp"

namespace zero {
class CpuKernels : public ElementWise<CpuKernels> {
 public:
  void bind_thread() override {}
  Mark record() override { return nullptr; }
  void wait(const Mark&) override {}
  void finish() override {}
  void* queue() override { return nullptr; }

  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override;

  void text_samples(const TextSource& source, std::int64_t first, View inputs,
                    View targets) override;
  void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                       View targets) override;

  void linear_forward(const LinearShape& shape, View x, View params, View y, bool relu,
                      View panel) override;
  void linear_backward_params(const LinearShape& shape, View dy, View x, View grads, Write write,
                              View panel) override;
  void linear_backward_input(const LinearShape& shape, View dy, View params, View x, View dx,
                             bool relu, View panel) override;
  void cross_entropy(View outputs, View targets, std::int64_t rows, float scale, View delta,
                     Sums& sums) override;

  void clear(Sums& sums) override { sums.totals = {}; }
  void fetch(Sums&) override {}
  void ordered_mean(View own, int rank, View received, View shard, Write write) override;

  // ---- For ElementWise and the definitions of the above ----
  template <class T> static T* elements(View view) { return view.as<T>().data(); }

  template <class Body, class... Operands>
  static void each(std::int64_t count, Body body, Operands... operands) {
    // Nothing overlaps but element by element, so that the loop becomes vectors of whatever width.
    on_wide_vectors([=] {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) visit(i, body, operands...);
    });
  }

  /// Adam with a copy, which is rounded a block later, while the weights are still in the
  /// first-level cache: all in one loop would need more vector registers than there are.
  template <class T>
  static void each(std::int64_t count, AdamBody body, In<T> grads, InOut<float> weights,
                   InOut<float> momentum, InOut<float> variance, Out<T> copy) {
    constexpr std::int64_t block = 1024;
    for (std::int64_t at = 0; at < count; at += block) {
      const std::int64_t n = std::min(block, count - at);
      const InOut<float> w{weights.at + at}, m{momentum.at + at}, v{variance.at + at};
      each(n, body, In<T>{grads.at + at}, w, m, v);
      each(n, Store{Write::over}, In<float>{w.at}, Out<T>{copy.at + at});
    }
  }

  template <class Body, class... Operands>
  static void add_sum(Sums& sums, double Totals::*total, double divisor, std::int64_t count,
                      Body body, Operands... operands) {
    constexpr std::int64_t lanes = Body::lanes;
    double partial[lanes] = {};
    const auto add = [&](std::int64_t first, std::int64_t some) {
      for (std::int64_t k = 0; k < some; ++k) {
        const auto term = [&](auto i, auto&... x) { partial[k] += body(i, x...); };
        visit(first + k, term, operands...);
      }
    };
    const std::int64_t whole = count / lanes * lanes;
    for (std::int64_t i = 0; i < whole; i += lanes) add(i, lanes);
    add(whole, count - whole);
    for (const double lane : partial) sums.totals.*total += lane / divisor;
  }

 private:
  /// body(i, the elements number i), all read before and written back after it.
  template <class Body, class... Operands>
  static void visit(std::int64_t i, const Body& body, const Operands&... operands) {
    const auto between = [&](auto... x) {
      body(i, x...);
      (save(operands, i, x), ...);
    };
    between(load(operands, i)...);
  }
  template <class Operand> static auto load(const Operand& from, std::int64_t i) {
    if constexpr (Operand::read) {
      return from.at[i];
    } else {
      return typename Operand::Element();
    }
  }
  template <class Operand>
  static void save(const Operand& to, std::int64_t i, typename Operand::Element x) {
    if constexpr (Operand::written) to.at[i] = x;
  }
};

extern template class ElementWise<CpuKernels>;
}  // namespace zero
