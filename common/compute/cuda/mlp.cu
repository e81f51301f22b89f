// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "compute/cuda/block_sum.cuh"
#include "memory/error.hpp"

namespace zero::cuda {
namespace {
/// An operand: the bias of an output's column, of rows of `outputs` elements.
template <class T> struct BiasOfColumn {
  using Element = T;
  static constexpr bool written = false;

  const T* bias;
  unsigned outputs;
};

template <int, class T> bool aligned(const BiasOfColumn<T>&) { return true; }

template <int width, class T>
__device__ Pack<T, width> load(const BiasOfColumn<T>& x, std::int64_t i) {
  Pack<T, width> values;
  // 32 bits are enough, and divide several times faster.
  unsigned column = static_cast<unsigned>(i) % x.outputs;
  for (int k = 0; k < width; ++k) {
    values.at[k] = x.bias[column];
    if (++column == x.outputs) column = 0;
  }
  return values;
}

/// A block of column_partial takes `groups` times `width` neighbouring columns, and its
/// threads / groups lanes take every so manieth row of a chunk of rows.
constexpr int groups = 8;
constexpr int lanes = threads / groups;
constexpr std::int64_t most_chunks = 32;

/// partial[chunk * columns + column] = sum over the rows of that chunk, a lane's rows first, then
/// the lanes, both upwards.
template <class T, int width>
__global__ void column_partial(const T* dy, std::int64_t rows, std::int64_t columns,
                               std::int64_t chunk_rows, float* partial) {
  __shared__ float sums[threads * width];
  const int lane = threadIdx.x / groups;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x % groups) * width;
  const std::int64_t start = blockIdx.y * chunk_rows;
  const std::int64_t end = start + chunk_rows < rows ? start + chunk_rows : rows;
  float mine[width] = {};
  if (column < columns) {
    for (std::int64_t row = start + lane; row < end; row += lanes) {
      const Pack<T, width> x = load_pack<width>(dy + row * columns + column);
      for (int k = 0; k < width; ++k) mine[k] += widen(x.at[k]);
    }
  }
  for (int k = 0; k < width; ++k) sums[threadIdx.x * width + k] = mine[k];
  __syncthreads();
  if (lane > 0 || column >= columns) return;
  for (int k = 0; k < width; ++k) {
    float sum = sums[threadIdx.x * width + k];
    for (int other = 1; other < lanes; ++other) {
      sum += sums[(other * groups + threadIdx.x) * width + k];
    }
    partial[blockIdx.y * columns + column + k] = sum;
  }
}

/// An operand: the sum of the chunks' partial sums of a column, upwards.
struct SumOfChunks {
  using Element = float;
  static constexpr bool written = false;

  const float* partial;
  std::int64_t columns;
  std::int64_t chunks;
};

template <int> bool aligned(const SumOfChunks&) { return false; }

template <int width> __device__ Pack<float, width> load(const SumOfChunks& x, std::int64_t column) {
  Pack<float, width> sum;
  for (int k = 0; k < width; ++k) {
    sum.at[k] = x.partial[column + k];
    for (std::int64_t chunk = 1; chunk < x.chunks; ++chunk) {
      sum.at[k] += x.partial[chunk * x.columns + column + k];
    }
  }
  return sum;
}

struct Largest {
  __device__ float operator()(float a, float b) const { return a < b ? b : a; }
};

/// A block a row, several rows one after the other where there are more rows than blocks.
template <class T>
__global__ void cross_entropy_kernel(const T* outputs, const float* targets, std::int64_t rows,
                                     std::int64_t count, float factor, T* delta, double* partial) {
  double loss = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* y = outputs + row * count;
    T* dy = delta + row * count;
    float largest = widen(y[0]);
    for (std::int64_t j = threadIdx.x; j < count; j += threads) {
      largest = Largest()(largest, widen(y[j]));
    }
    largest = combine_block(largest, Largest());
    float sum = 0;
    for (std::int64_t j = threadIdx.x; j < count; j += threads) {
      sum += std::exp(widen(y[j]) - largest);
    }
    sum = block_sum(sum);
    const auto target = static_cast<std::int64_t>(targets[row]);
    for (std::int64_t j = threadIdx.x; j < count; j += threads) {
      const float probability = std::exp(widen(y[j]) - largest) / sum;
      dy[j] = narrow<T>((probability - (j == target ? 1.0f : 0.0f)) * factor);
    }
    loss += std::log(sum) + largest - widen(y[target]);
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = loss;
}
}  // namespace

/// The product is rounded to the storage type, and once more after bias and ReLU.
void CudaKernels::linear_forward(const LinearShape& shape, View x, View params, View y, bool relu,
                                 View panel) {
  const Matrix weight{params.part(0, shape.weights()), shape.inputs, true};
  multiply({x, shape.inputs}, weight, shape.batch, shape.inputs, shape.outputs, y, panel);
  if (!shape.bias && !relu) return;
  const std::int64_t count = shape.batch * shape.outputs;
  expect(count <= std::int64_t{1} << 32, "outputs of a layer are counted in 32 bits");
  with_type(y.dtype, [&]<class T>(T) {
    const auto apply = [&](auto... bias) {
      each(count, BiasRelu{relu}, In<T>{elements<T>(y)}, Out<T>{elements<T>(y)}, bias...);
    };
    if (shape.bias) {
      const T* bias = elements<T>(params) + shape.weights();
      apply(BiasOfColumn<T>{bias, static_cast<unsigned>(shape.outputs)});
    } else {
      apply();
    }
  });
}

void CudaKernels::linear_backward_params(const LinearShape& shape, View dy, View x, View grads,
                                         Write write, View panel) {
  View block = product_block(panel);
  block.dtype = grads.dtype;
  block.size = block.used = panel.part(0, block.size).bytes() / bytes_of(grads.dtype);
  // What is added is rounded first, in the block: as many rows of the weight as it has room for.
  constexpr std::int64_t whole = 8;  // so many keep 16 bytes aligned
  const std::int64_t room = block.size / shape.inputs;
  std::int64_t step = shape.outputs;
  if (write == Write::add) step = room < whole ? room : room / whole * whole;
  for (std::int64_t row = 0; row < shape.outputs; row += step) {
    const std::int64_t rows = std::min(step, shape.outputs - row);
    const Matrix columns{dy.part(row, dy.size - row), shape.outputs, true};
    const View to = grads.part(row * shape.inputs, rows * shape.inputs);
    const View product = write == Write::over ? to : block.part(0, to.size);
    multiply(columns, {x, shape.inputs}, rows, shape.batch, shape.inputs, product, panel);
    if (write == Write::over) continue;
    with_type(grads.dtype, [&]<class T>(T) {
      store_each(to.size, In<T>{elements<T>(product)}, elements<T>(to), write);
    });
  }
  if (shape.bias) {
    column_sum(shape, dy, grads.part(shape.weights(), shape.outputs), write, product_block(panel));
  }
  if (grads.used == grads.size) return;
  const View padding = grads.part(grads.used, grads.size - grads.used);
  check_cuda(cudaMemsetAsync(padding.data, 0, padding.bytes(), stream()));
}

void CudaKernels::column_sum(const LinearShape& shape, View dy, View bias, Write write,
                             View partial) {
  const std::int64_t chunk_rows =
      std::max<std::int64_t>(threads, (shape.batch + most_chunks - 1) / most_chunks);
  const std::int64_t chunks = (shape.batch + chunk_rows - 1) / chunk_rows;
  with_type(bias.dtype, [&]<class T>(T) {
    const T* from = elements<T>(dy);
    auto* sums = elements<float>(partial);
    const auto start = [&](auto* kernel, std::int64_t columns_a_block) {
      const std::int64_t blocks = (shape.outputs + columns_a_block - 1) / columns_a_block;
      const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunks));
      launch(grid, kernel, from, shape.batch, shape.outputs, chunk_rows, sums);
    };
    constexpr int width = width_of<In<T>>;
    if (has_packs<width>(from) && shape.outputs % width == 0) {
      start(column_partial<T, width>, groups * width);
    } else {
      start(column_partial<T, 1>, groups);
    }
    const SumOfChunks all{sums, shape.outputs, chunks};
    store_each(shape.outputs, all, elements<T>(bias), write);
  });
}

void CudaKernels::linear_backward_input(const LinearShape& shape, View dy, View params, View x,
                                        View dx, bool relu, View panel) {
  const Matrix weight{params.part(0, shape.weights()), shape.inputs};
  multiply({dy, shape.outputs}, weight, shape.batch, shape.outputs, shape.inputs, dx, panel);
  if (!relu) return;
  with_type(dx.dtype, [&]<class T>(T) {
    T* delta = elements<T>(dx);
    each(shape.batch * shape.inputs, Mask(), In<T>{delta}, In<T>{elements<T>(x)}, Out<T>{delta});
  });
}

void CudaKernels::cross_entropy(View outputs, View targets, std::int64_t rows, float scale,
                                View delta, Sums& sums) {
  SumsOnGpu& to = SumsOnGpu::of(sums);
  const auto count = static_cast<double>(rows);
  const auto blocks = static_cast<unsigned>(std::min(rows, most_blocks));
  with_type(outputs.dtype, [&]<class T>(T) {
    launch(dim3(blocks), cross_entropy_kernel<T>, elements<T>(outputs), elements<float>(targets),
           rows, outputs.size / rows, static_cast<float>(scale / count), elements<T>(delta),
           to.partial);
  });
  launch(dim3(1), add_partial_sums, &to.totals.loss, to.partial, blocks, count);
}
}  // namespace zero::cuda
