// SPDX-License-Identifier: MIT
// The CPU's kernels: each call does its work before it returns. Their definitions lie beside this
// file, by what they are for.
#pragma once
#include "compute/element_wise.hpp"

namespace zero {

class CpuKernels : public ElementWise<CpuKernels> {
 public:
  void bind_thread() override {}
  Mark record() override { return nullptr; }
  void wait(const Mark&) override {}
  void finish() override {}
  void* queue() override { return nullptr; }

  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override;

  void text_samples(const TextSource& source,
                    std::int64_t first,
                    View inputs,
                    View targets) override;
  void teacher_samples(const TeacherSource& source,
                       std::int64_t first,
                       View inputs,
                       View targets) override;

  void linear_forward(
      const LinearShape& shape, View x, View params, View y, bool relu, View panel) override;
  void linear_backward_params(
      const LinearShape& shape, View dy, View x, View grads, Write write, View panel) override;
  void linear_backward_input(const LinearShape& shape,
                             View dy,
                             View params,
                             View x,
                             View dx,
                             bool relu,
                             View panel) override;
  void cross_entropy(
      View outputs, View targets, std::int64_t rows, float scale, View delta, Sums& sums) override;

  void clear(Sums& sums) override { sums.totals = {}; }
  void fetch(Sums&) override {}
  void ordered_mean(View own, int rank, View received, View shard, Write write) override;

  // ---- For ElementWise and the definitions of the above ----
  template <class T>
  static T* elements(View view) {
    return view.as<T>().data();
  }

  template <class Body, class... Operands>
  static void each(std::int64_t count, Body body, Operands... operands) {
    // Nothing overlaps but element by element, so that the loop becomes vectors of whatever width.
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) body(i, operands.at[i]...);
  }

  template <class Body, class... Operands>
  static void add_sum(Sums& sums,
                      double Totals::*total,
                      double divisor,
                      std::int64_t count,
                      Body body,
                      Operands... operands) {
    double partial[Body::lanes] = {};
    const std::int64_t whole = count - count % Body::lanes;
    for (std::int64_t i = 0; i < whole; i += Body::lanes) {
      for (std::int64_t k = 0; k < Body::lanes; ++k) {
        partial[k] += body(i + k, operands.at[i + k]...);
      }
    }
    for (std::int64_t i = whole; i < count; ++i) partial[i - whole] += body(i, operands.at[i]...);
    for (const double lane : partial) sums.totals.*total += lane / divisor;
  }
};

extern template class ElementWise<CpuKernels>;

}  // namespace zero
