// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "compute/cuda/block_sum.cuh"
#include "compute/cuda/cuda_kernels.hpp"
#include "memory/error.hpp"

namespace zero::cuda {

namespace {

template <class T>
struct InitialiseBody {
  using Element = T;

  T* part;
  Generator random;
  std::uint64_t number;
  std::int64_t weights;
  float scale;

  template <int width>
  __device__ void at(std::int64_t i) const {
    Pack<T, width> values;
    for (int k = 0; k < width; ++k) {
      values.at[k] = narrow<T>(i + k < weights ? random.uniform(number + i + k) * scale : 0.0f);
    }
    save<width>(part, i, values);
  }
};

/// y = relu(y + b), of rows of `outputs` elements.
template <class T>
struct BiasReluBody {
  using Element = T;

  T* y;
  const T* bias;  // null: none
  unsigned outputs;
  bool relu;

  template <int width>
  __device__ void at(std::int64_t i) const {
    Pack<T, width> values = load<width>(y, i);
    // 32 bits are enough, and divide several times faster.
    unsigned column = static_cast<unsigned>(i) % outputs;
    for (int k = 0; k < width; ++k) {
      float value = widen(values.at[k]);
      if (bias) value += widen(bias[column]);
      if (relu) value = value < 0 ? 0 : value;  // keeps NaN
      values.at[k] = narrow<T>(value);
      if (++column == outputs) column = 0;
    }
    save<width>(y, i, values);
  }
};

/// dx = 0 where the ReLU before the layer cut its input off.
template <class T>
struct MaskBody {
  using Element = T;

  T* dx;
  const T* x;

  template <int width>
  __device__ void at(std::int64_t i) const {
    Pack<T, width> delta = load<width>(dx, i);
    const Pack<T, width> input = load<width>(x, i);
    for (int k = 0; k < width; ++k) {
      if (!(widen(input.at[k]) > 0)) delta.at[k] = narrow<T>(0);
    }
    save<width>(dx, i, delta);
  }
};

/// grads += rounded products, rounded again.
template <class T>
struct AddBody {
  using Element = T;

  T* grads;
  const T* products;

  template <int width>
  __device__ void at(std::int64_t i) const {
    Pack<T, width> to = load<width>(grads, i);
    const Pack<T, width> products_at = load<width>(products, i);
    for (int k = 0; k < width; ++k) store(to.at[k], widen(products_at.at[k]), Write::add);
    save<width>(grads, i, to);
  }
};

/// A block of column_partial takes `groups` times `width` neighbouring columns, and its
/// threads / groups lanes take every so manieth row of a chunk of rows.
constexpr int groups = 8;
constexpr int lanes = threads / groups;
constexpr std::int64_t most_chunks = 32;

/// partial[chunk * columns + column] = sum over the rows of that chunk, a lane's rows first, then
/// the lanes, both upwards.
template <class T, int width>
__global__ void column_partial(
    const T* dy, std::int64_t rows, std::int64_t columns, std::int64_t chunk_rows, float* partial) {
  __shared__ float sums[threads * width];
  const int lane = threadIdx.x / groups;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x % groups) * width;
  const std::int64_t start = blockIdx.y * chunk_rows;
  const std::int64_t end = start + chunk_rows < rows ? start + chunk_rows : rows;
  float mine[width] = {};
  if (column < columns) {
    for (std::int64_t row = start + lane; row < end; row += lanes) {
      const Pack<T, width> x = load<width>(dy, row * columns + column);
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

/// bias[column] = sum of the chunks' partial sums, upwards; stored or added.
template <class T>
struct ColumnSumBody {
  using Element = T;

  const float* partial;
  std::int64_t columns;
  std::int64_t chunks;
  T* bias;
  Write write;

  template <int>
  __device__ void at(std::int64_t column) const {
    float sum = partial[column];
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) sum += partial[chunk * columns + column];
    store(bias[column], sum, write);
  }
};

struct Largest {
  __device__ float operator()(float a, float b) const { return a < b ? b : a; }
};

/// A block a row, several rows one after the other where there are more rows than blocks.
template <class T>
__global__ void cross_entropy_kernel(const T* outputs,
                                     const float* targets,
                                     std::int64_t rows,
                                     std::int64_t count,
                                     float factor,
                                     T* delta,
                                     double* partial) {
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

template <class T>
struct SquaredErrorBody {
  using Element = T;

  const T* outputs;
  const float* targets;
  float factor;
  T* delta;

  template <int width>
  __device__ double at(std::int64_t i) const {
    const Pack<T, width> y = load<width>(outputs, i);
    const Pack<float, width> target = load<width>(targets, i);
    Pack<T, width> dy;
    double sum = 0;
    for (int k = 0; k < width; ++k) {
      const float difference = widen(y.at[k]) - target.at[k];
      sum += static_cast<double>(difference) * difference;
      dy.at[k] = narrow<T>(2 * difference * factor);
    }
    save<width>(delta, i, dy);
    return sum;
  }
};

}  // namespace

void CudaKernels::initialise(
    View part, const Generator& random, std::uint64_t number, std::int64_t weights, float scale) {
  with_type(part.dtype, [&]<class T>(T) {
    const InitialiseBody<T> body{elements<T>(part), random, number, weights, scale};
    each(stream(), part.size, aligned(body.part), body);
  });
}

/// The product is rounded to the storage type, and once more after bias and ReLU.
void CudaKernels::linear_forward(
    const LinearShape& shape, View x, View params, View y, bool relu, View panel) {
  const Matrix weight{params.part(0, shape.weights()), shape.inputs, true};
  multiply({x, shape.inputs}, weight, shape.batch, shape.inputs, shape.outputs, y, panel);
  if (!shape.bias && !relu) return;
  with_type(y.dtype, [&]<class T>(T) {
    const T* bias = shape.bias ? elements<T>(params) + shape.weights() : nullptr;
    const std::int64_t count = shape.batch * shape.outputs;
    expect(count <= std::int64_t{1} << 32, "outputs of a layer are counted in 32 bits");
    const BiasReluBody<T> body{elements<T>(y), bias, static_cast<unsigned>(shape.outputs), relu};
    each(stream(), count, aligned(body.y), body);
  });
}

void CudaKernels::linear_backward_params(
    const LinearShape& shape, View dy, View x, View grads, Write write, View panel) {
  View block = product_block(panel);
  block.dtype = grads.dtype;
  block.size = block.used = panel.part(0, block.size).bytes() / bytes_of(grads.dtype);
  if (write == Write::over) {
    multiply({dy, shape.outputs, true},
             {x, shape.inputs},
             shape.outputs,
             shape.batch,
             shape.inputs,
             grads.part(0, shape.weights()),
             panel);
  } else {
    // Rows of the weight, as many as the block has room for: rounded there, and then added.
    const std::int64_t room = block.size / shape.inputs;
    constexpr std::int64_t whole = 8;  // so many keep 16 bytes aligned
    const std::int64_t step = room < whole ? room : room / whole * whole;
    for (std::int64_t row = 0; row < shape.outputs; row += step) {
      const std::int64_t rows = std::min(step, shape.outputs - row);
      const View columns = dy.part(row, dy.size - row);
      const View product = block.part(0, rows * shape.inputs);
      multiply({columns, shape.outputs, true},
               {x, shape.inputs},
               rows,
               shape.batch,
               shape.inputs,
               product,
               panel);
      with_type(grads.dtype, [&]<class T>(T) {
        const AddBody<T> body{elements<T>(grads) + row * shape.inputs, elements<T>(product)};
        each(stream(), product.size, aligned(body.grads, body.products), body);
      });
    }
  }
  if (shape.bias) {
    column_sum(shape, dy, grads.part(shape.weights(), shape.outputs), write, product_block(panel));
  }
  if (grads.used == grads.size) return;
  const View padding = grads.part(grads.used, grads.size - grads.used);
  check_cuda(cudaMemsetAsync(padding.data, 0, padding.bytes(), stream()));
}

void CudaKernels::column_sum(
    const LinearShape& shape, View dy, View bias, Write write, View partial) {
  const std::int64_t chunk_rows =
      std::max<std::int64_t>(threads, (shape.batch + most_chunks - 1) / most_chunks);
  const std::int64_t chunks = (shape.batch + chunk_rows - 1) / chunk_rows;
  with_type(bias.dtype, [&]<class T>(T) {
    const T* from = elements<T>(dy);
    auto* sums = elements<float>(partial);
    const auto start = [&](auto* kernel, std::int64_t columns_a_block) {
      const std::int64_t blocks = (shape.outputs + columns_a_block - 1) / columns_a_block;
      const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunks));
      launch(stream(), grid, kernel, from, shape.batch, shape.outputs, chunk_rows, sums);
    };
    if (aligned(from) && shape.outputs % wide<T> == 0) {
      start(column_partial<T, wide<T>>, groups * wide<T>);
    } else {
      start(column_partial<T, 1>, groups);
    }
    const ColumnSumBody<T> body{sums, shape.outputs, chunks, elements<T>(bias), write};
    each(stream(), shape.outputs, false, body);
  });
}

void CudaKernels::linear_backward_input(
    const LinearShape& shape, View dy, View params, View x, View dx, bool relu, View panel) {
  const Matrix weight{params.part(0, shape.weights()), shape.inputs};
  multiply({dy, shape.outputs}, weight, shape.batch, shape.outputs, shape.inputs, dx, panel);
  if (!relu) return;
  with_type(dx.dtype, [&]<class T>(T) {
    const MaskBody<T> body{elements<T>(dx), elements<T>(x)};
    each(stream(), shape.batch * shape.inputs, aligned(body.dx, body.x), body);
  });
}

void CudaKernels::cross_entropy(
    View outputs, View targets, std::int64_t rows, float scale, View delta, Sums& sums) {
  SumsOnGpu* to = on_gpu(sums);
  const auto count = static_cast<double>(rows);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows, most_blocks));
  with_type(outputs.dtype, [&]<class T>(T) {
    launch(stream(),
           dim3(blocks),
           cross_entropy_kernel<T>,
           elements<T>(outputs),
           elements<float>(targets),
           rows,
           outputs.size / rows,
           static_cast<float>(scale / count),
           elements<T>(delta),
           to->partial);
  });
  launch(stream(), dim3(1), add_partial_sums, &to->loss, to->partial, blocks, count);
}

void CudaKernels::squared_error(View outputs, View targets, float scale, View delta, Sums& sums) {
  SumsOnGpu* to = on_gpu(sums);
  const auto count = static_cast<double>(outputs.size);
  with_type(outputs.dtype, [&]<class T>(T) {
    const SquaredErrorBody<T> body{elements<T>(outputs),
                                   elements<float>(targets),
                                   static_cast<float>(scale / count),
                                   elements<T>(delta)};
    const bool packs = aligned(body.outputs, body.targets, body.delta);
    add_sum(stream(), outputs.size, packs, body, &to->loss, to->partial, count);
  });
}

}  // namespace zero::cuda
