// SPDX-License-Identifier: MIT
#include <algorithm>

#include "compute/cpu/cpu_kernels.hpp"

namespace zero {
void CpuKernels::text_samples(const TextSource& source, std::int64_t first, View inputs,
                              View targets) {
  with_type(inputs.dtype, [&]<class T>(T) {
    const auto* text = reinterpret_cast<const unsigned char*>(source.text);
    const float* codes = source.codes.as<float>().data();
    const auto positions = static_cast<std::uint64_t>(source.length - source.context);
    T* input = inputs.as<T>().data();
    for (std::int64_t row = 0; row < targets.size; ++row) {
      const std::uint64_t position = source.positions.bits(first + row) % positions;
      for (std::int64_t i = 0; i < source.context; ++i) {
        const float* code = codes + text[position + i] * source.code_size;
        input = std::transform(code, code + source.code_size, input, narrow<T>);
      }
      targets.as<float>()[row] = text[position + source.context];
    }
  });
}

void CpuKernels::teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                                 View targets) {
  with_type(inputs.dtype, [&]<class T>(T) {
    constexpr std::int64_t hidden_size = TeacherSource::hidden;
    const float* to_hidden = source.first.as<float>().data();
    const float* to_outputs = source.second.as<float>().data();
    T* input = inputs.as<T>().data();
    float* target = targets.as<float>().data();
    std::fill(target, target + targets.size, 0.0f);
    const std::int64_t rows = targets.size / source.outputs;
    for (std::int64_t row = 0; row < rows; ++row, target += source.outputs) {
      float hidden[hidden_size] = {};
      for (std::int64_t i = 0; i < source.inputs; ++i) {
        const float x = source.random_inputs.uniform((first + row) * source.inputs + i);
        *input++ = narrow<T>(x);
        for (std::int64_t h = 0; h < hidden_size; ++h) {
          hidden[h] += x * to_hidden[i * hidden_size + h];
        }
      }
      for (std::int64_t h = 0; h < hidden_size; ++h) {
        const float* weights = to_outputs + h * source.outputs;
        for (std::int64_t o = 0; o < source.outputs; ++o) target[o] += hidden[h] * weights[o];
      }
    }
  });
}
}  // namespace zero
