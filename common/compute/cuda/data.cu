// SPDX-License-Identifier: MIT
// Samples made where they are used: the same numbers as the CPU's, in the same order of addition.
#include "compute/cuda/launch.cuh"

namespace zero::cuda {
namespace {
/// A block a sample.
template <class T>
__global__ void text_kernel(TextSource source, std::int64_t first, T* inputs, float* targets) {
  const auto* text = reinterpret_cast<const unsigned char*>(source.text);
  const auto* codes = reinterpret_cast<const float*>(source.codes.data);
  const std::int64_t row = blockIdx.x;
  const auto positions = static_cast<std::uint64_t>(source.length - source.context);
  const std::uint64_t position = source.positions.bits(first + row) % positions;
  const std::int64_t width = source.context * source.code_size;
  for (std::int64_t i = threadIdx.x; i < width; i += threads) {
    const float* code = codes + text[position + i / source.code_size] * source.code_size;
    inputs[row * width + i] = narrow<T>(code[i % source.code_size]);
  }
  if (threadIdx.x == 0) targets[row] = text[position + source.context];
}

/// A block takes `samples` samples; thread (s, h) forms hidden number h of sample s.
constexpr int hidden_size = static_cast<int>(TeacherSource::hidden);
constexpr int samples = threads / hidden_size;
constexpr int tile = 128;  // inputs at a time

template <class T>
__global__ void teacher_kernel(TeacherSource source, std::int64_t first, std::int64_t rows,
                               T* inputs, float* targets) {
  __shared__ float input[samples][tile + 1];  // one more, so that a column lies in many banks
  __shared__ float weights[tile][hidden_size];
  __shared__ float hidden[samples][hidden_size];
  const auto* to_hidden = reinterpret_cast<const float*>(source.first.data);
  const auto* to_outputs = reinterpret_cast<const float*>(source.second.data);
  const int s = threadIdx.x / hidden_size;
  const int h = threadIdx.x % hidden_size;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * samples;
  float sum = 0;
  for (std::int64_t start = 0; start < source.inputs; start += tile) {
    const std::int64_t rest = source.inputs - start;
    const int count = rest < tile ? static_cast<int>(rest) : tile;
    for (int i = threadIdx.x; i < samples * tile; i += threads) {
      const int of = i / tile, at = i % tile;
      if (at >= count || row + of >= rows) continue;
      const std::int64_t element = (row + of) * source.inputs + start + at;
      input[of][at] = source.random_inputs.uniform(first * source.inputs + element);
      inputs[element] = narrow<T>(input[of][at]);
    }
    for (int i = threadIdx.x; i < count * hidden_size; i += threads) {
      weights[i / hidden_size][i % hidden_size] = to_hidden[start * hidden_size + i];
    }
    __syncthreads();
    if (row + s < rows) {
      for (int i = 0; i < count; ++i) sum += input[s][i] * weights[i][h];
    }
    __syncthreads();  // the next tile is written there
  }
  hidden[s][h] = sum;
  __syncthreads();
  for (std::int64_t o = threadIdx.x; o < source.outputs; o += threads) {
    for (int of = 0; of < samples && row + of < rows; ++of) {
      float target = 0;
      for (int k = 0; k < hidden_size; ++k) {
        target += hidden[of][k] * to_outputs[k * source.outputs + o];
      }
      targets[(row + of) * source.outputs + o] = target;
    }
  }
}
}  // namespace

void CudaKernels::text_samples(const TextSource& source, std::int64_t first, View inputs,
                               View targets) {
  with_type(inputs.dtype, [&]<class T>(T) {
    launch(dim3(static_cast<unsigned>(targets.size)), text_kernel<T>, source, first,
           elements<T>(inputs), elements<float>(targets));
  });
}

void CudaKernels::teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                                  View targets) {
  const std::int64_t rows = targets.size / source.outputs;
  with_type(inputs.dtype, [&]<class T>(T) {
    launch(dim3(static_cast<unsigned>((rows + samples - 1) / samples)), teacher_kernel<T>, source,
           first, rows, elements<T>(inputs), elements<float>(targets));
  });
}
}  // namespace zero::cuda
