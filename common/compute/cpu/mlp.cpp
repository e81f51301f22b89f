// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "compute/cpu/cpu_kernels.hpp"
#include "compute/cpu/matmul.hpp"

namespace zero {
namespace {
/// Softmax cross-entropy of one row of `count` outputs; writes scale * its gradient / batch.
template <class T>
double cross_entropy_of_row(const T* outputs, std::int64_t count, int target, float factor,
                            T* delta) {
  float largest = widen(outputs[0]);
  for (std::int64_t j = 1; j < count; ++j) largest = std::max(largest, widen(outputs[j]));
  float sum = 0;
  for (std::int64_t j = 0; j < count; ++j) sum += std::exp(widen(outputs[j]) - largest);
  for (std::int64_t j = 0; j < count; ++j) {
    const float probability = std::exp(widen(outputs[j]) - largest) / sum;
    delta[j] = narrow<T>((probability - (j == target ? 1.0f : 0.0f)) * factor);
  }
  return std::log(sum) + largest - widen(outputs[target]);
}
}  // namespace

/// y = relu(x W^T + b), formed in fp32 and rounded once.
void CpuKernels::linear_forward(const LinearShape& shape, View x, View params, View y, bool relu,
                                View panel) {
  with_type(params.dtype, [&]<class T>(T) {
    const T* bias = elements<T>(params) + shape.weights();
    const BiasRelu body{relu};
    matmul({x, shape.inputs}, {params.part(0, shape.weights()), shape.inputs, true}, shape.batch,
           shape.inputs, shape.outputs, panel.as<float>(),
           [&, out = elements<T>(y)](const RowPart& run) {
             const In<float> sums{run.values};
             if (shape.bias) {
               each(run.count, body, sums, Out<T>{out + run.at}, In<T>{bias + run.column});
             } else {
               each(run.count, body, sums, Out<T>{out + run.at});
             }
           });
  });
}

/// The gradient of the weight, dy^T x, of the bias, the column sums of dy, and zero padding.
void CpuKernels::linear_backward_params(const LinearShape& shape, View dy, View x, View grads,
                                        Write write, View panel) {
  with_type(grads.dtype, [&]<class T>(T) {
    T* grad = elements<T>(grads);
    matmul({dy, shape.outputs, true}, {x, shape.inputs}, shape.outputs, shape.batch, shape.inputs,
           panel.as<float>(), [&](const RowPart& run) {
             each(run.count, Store{write}, In<float>{run.values}, InOut<T>{grad + run.at});
           });
    if (shape.bias) {
      const T* delta = elements<T>(dy);
      T* bias = grad + shape.weights();
      for (std::int64_t j = 0; j < shape.outputs; ++j) {
        float sum = 0;
        for (std::int64_t i = 0; i < shape.batch; ++i) sum += widen(delta[i * shape.outputs + j]);
        store(bias[j], sum, write);
      }
    }
    std::fill(grad + grads.used, grad + grads.size, T{});
  });
}

/// dx = dy W, zero where the layer's input was cut off by the ReLU before it.
void CpuKernels::linear_backward_input(const LinearShape& shape, View dy, View params, View x,
                                       View dx, bool relu, View panel) {
  with_type(params.dtype, [&]<class T>(T) {
    matmul({dy, shape.outputs}, {params.part(0, shape.weights()), shape.inputs}, shape.batch,
           shape.outputs, shape.inputs, panel.as<float>(),
           [&, input = elements<T>(x), delta = elements<T>(dx)](const RowPart& run) {
             const In<float> sums{run.values};
             const Out<T> to{delta + run.at};
             if (relu) {
               each(run.count, Mask(), sums, In<T>{input + run.at}, to);
             } else {
               each(run.count, Store{Write::over}, sums, to);
             }
           });
  });
}

void CpuKernels::cross_entropy(View outputs, View targets, std::int64_t rows, float scale,
                               View delta, Sums& sums) {
  with_type(outputs.dtype, [&]<class T>(T) {
    const T* y = elements<T>(outputs);
    T* dy = elements<T>(delta);
    const std::int64_t count = outputs.size / rows;
    const float factor = static_cast<float>(scale / static_cast<double>(rows));
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row, y += count, dy += count) {
      sum += cross_entropy_of_row(y, count, static_cast<int>(targets.as<float>()[row]), factor, dy);
    }
    sums.totals.loss += sum / static_cast<double>(rows);
  });
}
}  // namespace zero
