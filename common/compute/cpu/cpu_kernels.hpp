// SPDX-License-Identifier: MIT
// The CPU's kernels: each call does its work before it returns. Their definitions lie beside this
// file, by what they are for.
#pragma once
#include "compute/kernels.hpp"

namespace zero {

class CpuKernels : public Kernels {
 public:
  void bind_thread() override {}
  Mark record() override { return nullptr; }
  void wait(const Mark&) override {}
  void finish() override {}
  void* queue() override { return nullptr; }

  void copy(View from, View to) override;
  void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) override;

  void text_samples(const TextSource& source,
                    std::int64_t first,
                    View inputs,
                    View targets) override;
  void teacher_samples(const TeacherSource& source,
                       std::int64_t first,
                       View inputs,
                       View targets) override;

  void initialise(View part,
                  const Generator& random,
                  std::uint64_t number,
                  std::int64_t weights,
                  float scale) override;
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
  void squared_error(View outputs, View targets, float scale, View delta, Sums& sums) override;

  void clear(Sums& sums) override;
  void fetch(Sums&) override {}
  void divide(View values, int divisor) override;
  void squared_norm(View values, Sums& sums) override;
  void ordered_mean(View own, int rank, View received, View shard, Write write) override;

  void adam(const AdamScalars& scalars, const AdamSlice& slice, View grads, View params) override;
};

}  // namespace zero
