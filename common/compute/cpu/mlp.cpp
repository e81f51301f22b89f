// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "compute/cpu/cpu_kernels.hpp"
#include "compute/cpu/matmul.hpp"

namespace zero {

namespace {

/// Softmax cross-entropy of one row of `count` outputs; writes scale * its gradient / batch.
template <class T>
double cross_entropy_of_row(
    const T* outputs, std::int64_t count, int target, float factor, T* delta) {
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

void CpuKernels::initialise(
    View part, const Generator& random, std::uint64_t number, std::int64_t weights, float scale) {
  with_type(part.dtype, [&]<class T>(T) {
    T* elements = part.as<T>().data();
    for (std::int64_t i = 0; i < part.size; ++i) {
      elements[i] = narrow<T>(i < weights ? random.uniform(number + i) * scale : 0.0f);
    }
  });
}

/// y = relu(x W^T + b), formed in fp32 and rounded once.
void CpuKernels::linear_forward(
    const LinearShape& shape, View x, View params, View y, bool relu, View panel) {
  with_type(params.dtype, [&]<class T>(T) {
    const T* bias = params.as<T>().data() + shape.weights();
    T* out = y.as<T>().data();
    const View weight = params.part(0, shape.weights());
    matmul({x, shape.inputs},
           {weight, shape.inputs, true},
           shape.batch,
           shape.inputs,
           shape.outputs,
           panel.as<float>(),
           [&](const Block& block) {
             for (std::int64_t i = 0; i < block.rows; ++i) {
               for (std::int64_t j = 0; j < block.columns; ++j) {
                 const std::int64_t column = block.column + j;
                 float value = block.values[i * block.columns + j];
                 if (shape.bias) value += widen(bias[column]);
                 if (relu) value = value < 0 ? 0 : value;  // keeps NaN
                 out[(block.row + i) * shape.outputs + column] = narrow<T>(value);
               }
             }
           });
  });
}

/// The gradient of the weight, dy^T x, of the bias, the column sums of dy, and zero padding.
void CpuKernels::linear_backward_params(
    const LinearShape& shape, View dy, View x, View grads, Write write, View panel) {
  with_type(grads.dtype, [&]<class T>(T) {
    T* grad = grads.as<T>().data();
    matmul({dy, shape.outputs, true},
           {x, shape.inputs},
           shape.outputs,
           shape.batch,
           shape.inputs,
           panel.as<float>(),
           [&](const Block& block) {
             for (std::int64_t i = 0; i < block.rows; ++i) {
               T* row = grad + (block.row + i) * shape.inputs + block.column;
               const float* values = block.values + i * block.columns;
               for (std::int64_t j = 0; j < block.columns; ++j) store(row[j], values[j], write);
             }
           });
    if (shape.bias) {
      const T* delta = dy.as<T>().data();
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
void CpuKernels::linear_backward_input(
    const LinearShape& shape, View dy, View params, View x, View dx, bool relu, View panel) {
  with_type(params.dtype, [&]<class T>(T) {
    const T* input = x.as<T>().data();
    T* delta = dx.as<T>().data();
    const View weight = params.part(0, shape.weights());
    matmul({dy, shape.outputs},
           {weight, shape.inputs},
           shape.batch,
           shape.outputs,
           shape.inputs,
           panel.as<float>(),
           [&](const Block& block) {
             for (std::int64_t i = 0; i < block.rows; ++i) {
               for (std::int64_t j = 0; j < block.columns; ++j) {
                 const std::int64_t at = (block.row + i) * shape.inputs + block.column + j;
                 const bool passes = !relu || widen(input[at]) > 0;
                 delta[at] = narrow<T>(passes ? block.values[i * block.columns + j] : 0.0f);
               }
             }
           });
  });
}

void CpuKernels::cross_entropy(
    View outputs, View targets, std::int64_t rows, float scale, View delta, Sums& sums) {
  with_type(outputs.dtype, [&]<class T>(T) {
    const T* y = outputs.as<T>().data();
    T* dy = delta.as<T>().data();
    const std::int64_t count = outputs.size / rows;
    const float factor = static_cast<float>(scale / static_cast<double>(rows));
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row, y += count, dy += count) {
      sum += cross_entropy_of_row(y, count, static_cast<int>(targets.as<float>()[row]), factor, dy);
    }
    sums.totals.loss += sum / static_cast<double>(rows);
  });
}

void CpuKernels::squared_error(View outputs, View targets, float scale, View delta, Sums& sums) {
  with_type(outputs.dtype, [&]<class T>(T) {
    const T* y = outputs.as<T>().data();
    const float* target = targets.as<float>().data();
    T* dy = delta.as<T>().data();
    const auto count = static_cast<double>(outputs.size);
    const auto factor = static_cast<float>(scale / count);
    double sum = 0;
    for (std::int64_t i = 0; i < outputs.size; ++i) {
      const float difference = widen(y[i]) - target[i];
      sum += static_cast<double>(difference) * difference;
      dy[i] = narrow<T>(2 * difference * factor);
    }
    sums.totals.loss += sum / count;
  });
}

}  // namespace zero
