// SPDX-License-Identifier: MIT
// A GPU's kernels. Samples are the CPU's to the bit: added up in the same order.
#include "compute/cuda/launch.cuh"
#include "compute/portable_math.hpp"

namespace zero::cuda {
namespace {
/// What lies in a GPU's memory behind Sums: the totals are formed when they are fetched.
struct SumsOnGpu {
  static SumsOnGpu& of(Sums& sums) { return *reinterpret_cast<SumsOnGpu*>(sums.on_gpu.data()); }

  Totals partial[most_partial_sums / 2];  // block b's part of all calls since they were cleared
  Totals totals;
};
static_assert(sizeof(SumsOnGpu) == gpu_sums_bytes);

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

/// A block a sample; each of its first threads forms one hidden number.
template <class T>
__global__ void teacher_kernel(TeacherSource source, std::int64_t first, T* inputs,
                               float* targets) {
  constexpr unsigned hidden_size = TeacherSource::hidden;
  __shared__ float hidden[hidden_size];
  const auto* to_hidden = reinterpret_cast<const float*>(source.first.data);
  const auto* to_outputs = reinterpret_cast<const float*>(source.second.data);
  const std::int64_t row = blockIdx.x;
  const auto input = [&](std::int64_t i) {
    return source.random_inputs.uniform((first + row) * source.inputs + i);
  };
  for (std::int64_t i = threadIdx.x; i < source.inputs; i += threads) {
    inputs[row * source.inputs + i] = narrow<T>(input(i));
  }
  if (threadIdx.x < hidden_size) {
    float sum = 0;
    for (std::int64_t i = 0; i < source.inputs; ++i) {
      sum += input(i) * to_hidden[i * hidden_size + threadIdx.x];
    }
    hidden[threadIdx.x] = sum;
  }
  __syncthreads();
  for (std::int64_t o = threadIdx.x; o < source.outputs; o += threads) {
    float target = 0;
    for (unsigned h = 0; h < hidden_size; ++h) {
      target += hidden[h] * to_outputs[h * source.outputs + o];
    }
    targets[row * source.outputs + o] = target;
  }
}

/// A block of column_partial takes so many neighbouring columns, and its threads, as lanes, every
/// so manieth row of a chunk of rows.
constexpr int block_width = 8;
constexpr int lanes = threads / block_width;
constexpr std::int64_t most_chunks = 32;

/// partial[chunk * columns + column] = sum over the rows of that chunk, a lane's rows first, then
/// the lanes, both upwards.
template <class T>
__global__ void column_partial(const T* dy, std::int64_t rows, std::int64_t columns,
                               std::int64_t chunk_rows, float* partial) {
  __shared__ float sums[threads];
  const int lane = threadIdx.x / block_width;
  const std::int64_t column = std::int64_t{blockIdx.x} * block_width + threadIdx.x % block_width;
  const std::int64_t start = blockIdx.y * chunk_rows;
  const std::int64_t end = start + chunk_rows < rows ? start + chunk_rows : rows;
  float sum = 0;
  for (std::int64_t row = start + lane; row < end && column < columns; row += lanes) {
    sum += widen(dy[row * columns + column]);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane > 0 || column >= columns) return;
  for (int other = 1; other < lanes; ++other) sum += sums[other * block_width + threadIdx.x];
  partial[blockIdx.y * columns + column] = sum;
}

/// bias = the sums of the chunks' partial sums, upwards, stored or added.
template <class T>
__global__ void column_sum(const float* partial, std::int64_t columns, unsigned chunks, T* bias,
                           Write write) {
  const std::int64_t column = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (column >= columns) return;
  float sum = partial[column];
  for (unsigned chunk = 1; chunk < chunks; ++chunk) sum += partial[chunk * columns + column];
  store(bias[column], sum, write);
}

/// A block a row, several rows one after the other where there are more rows than blocks.
template <class T>
__global__ void cross_entropy_kernel(const T* outputs, const float* targets, std::int64_t rows,
                                     std::int64_t count, float factor, T* delta, Totals* partial) {
  const auto larger = [](float a, float b) { return a < b ? b : a; };
  double loss = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* y = outputs + row * count;
    T* dy = delta + row * count;
    float largest = widen(y[0]);
    for (std::int64_t j = threadIdx.x; j < count; j += threads) {
      largest = larger(largest, widen(y[j]));
    }
    largest = combine_block(largest, larger);
    float sum = 0;
    for (std::int64_t j = threadIdx.x; j < count; j += threads) {
      sum += portable_exp(widen(y[j]) - largest);
    }
    sum = block_sum(sum);
    const auto target = static_cast<std::int64_t>(targets[row]);
    for (std::int64_t j = threadIdx.x; j < count; j += threads) {
      const float probability = portable_exp(widen(y[j]) - largest) / sum;
      dy[j] = narrow<T>((probability - (j == target ? 1.0f : 0.0f)) * factor);
    }
    loss += portable_log(sum) + largest - widen(y[target]);
  }
  if (threadIdx.x == 0) partial[blockIdx.x].loss += loss / static_cast<double>(rows);
}

/// Both sums of all blocks' partial sums.
__global__ void total_sums(const Totals* partial, Totals* totals) {
  Totals mine;
  for (std::int64_t i = threadIdx.x; i < most_blocks; i += threads) {
    mine.loss += partial[i].loss;
    mine.squares += partial[i].squares;
  }
  const Totals all{block_sum(mine.loss), block_sum(mine.squares)};
  if (threadIdx.x == 0) *totals = all;
}

/// A thread an element. received: the other ranks' parts, `part` elements each.
template <class T>
__global__ void mean_kernel(const T* own, int rank, const T* received, int ranks, std::int64_t part,
                            T* shard, Write write) {
  const std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= part) return;
  float sum = 0;
  for (int r = 0; r < ranks; ++r) {
    const T* from = r == rank ? own : received + (r < rank ? r : r - 1) * part;
    sum = r == 0 ? widen(from[i]) : sum + widen(from[i]);
  }
  store(shard[i], sum / static_cast<float>(ranks), write);
}
class CudaKernels : public ElementWise<CudaKernels, Runtime> {
 public:
  using ElementWise::ElementWise;

  void text_samples(const TextSource& source, std::int64_t first, View inputs,
                    View targets) override {
    with_type(inputs.dtype, [&]<class T>(T) {
      launch(stream(), blocks_for(targets.size, 1), text_kernel<T>, source, first,
             elements<T>(inputs), elements<float>(targets));
    });
  }

  void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                       View targets) override {
    with_type(inputs.dtype, [&]<class T>(T) {
      launch(stream(), blocks_for(targets.size, source.outputs), teacher_kernel<T>, source, first,
             elements<T>(inputs), elements<float>(targets));
    });
  }

  void linear_forward(const LinearShape& shape, View x, View params, View y, bool relu) override {
    const Matrix weight{params.part(0, shape.weights()), shape.inputs, true};
    const std::byte* bias = params.data + weight.elements.bytes();
    multiply({x, shape.inputs}, weight, shape.batch, shape.inputs, shape.outputs, y,
             shape.bias ? bias : nullptr, relu);
  }

  void linear_backward_params(const LinearShape& shape, View dy, View x, View grads,
                              Write write) override {
    // What is added is rounded first: as many rows of the weight at a time as there is room for, in
    // eights, which keep 16 bytes aligned, or a row piece by piece.
    const std::int64_t room = product_room_->bytes() / bytes_of(grads.dtype);
    std::int64_t step = shape.outputs, width = shape.inputs;
    if (write == Write::add) {
      width = std::min(width, room);
      step = room / width < 8 ? room / width : room / width / 8 * 8;
    }
    with_type(grads.dtype, [&]<class T>(T) {
      const auto add_to = [&](std::int64_t row, std::int64_t first) {
        const std::int64_t rows = std::min(step, shape.outputs - row);
        const std::int64_t columns = std::min(width, shape.inputs - first);
        const Matrix deltas{dy.part(row, dy.size - row), shape.outputs, true};
        const Matrix inputs{x.part(first, x.size - first), shape.inputs};
        const View to = grads.part(row * shape.inputs + first, rows * columns);
        View product = to;
        if (write == Write::add) product.data = product_room_->data();
        multiply(deltas, inputs, rows, shape.batch, columns, product);
        if (write == Write::over) return;
        each(to.size, Add(), In<T>{elements<T>(product)}, InOut<T>{elements<T>(to)});
      };
      for (std::int64_t row = 0; row < shape.outputs; row += step) {
        for (std::int64_t first = 0; first < shape.inputs; first += width) add_to(row, first);
      }
      if (!shape.bias) return;
      const std::int64_t chunk_rows =
          std::max<std::int64_t>(threads, blocks_for(shape.batch, most_chunks));
      const unsigned chunks = blocks_for(shape.batch, chunk_rows);
      auto* partial = reinterpret_cast<float*>(product_room_->data());
      launch(stream(), dim3(blocks_for(shape.outputs, block_width), chunks), column_partial<T>,
             elements<T>(dy), shape.batch, shape.outputs, chunk_rows, partial);
      launch(stream(), blocks_for(shape.outputs), column_sum<T>, partial, shape.outputs, chunks,
             elements<T>(grads) + shape.weights(), write);
    });
    if (grads.used == grads.size) return;
    const View padding = grads.part(grads.used, grads.size - grads.used);
    check_cuda(cudaMemsetAsync(padding.data, 0, padding.bytes(), stream()));
  }

  void linear_backward_input(const LinearShape& shape, View dy, View params, View x, View dx,
                             bool relu) override {
    const Matrix weight{params.part(0, shape.weights()), shape.inputs};
    multiply({dy, shape.outputs}, weight, shape.batch, shape.outputs, shape.inputs, dx);
    if (!relu) return;
    with_type(dx.dtype, [&]<class T>(T) {
      T* delta = elements<T>(dx);
      each(shape.batch * shape.inputs, Mask(), In<T>{delta}, In<T>{elements<T>(x)}, Out<T>{delta});
    });
  }

  void cross_entropy(View outputs, View targets, std::int64_t rows, float scale, View delta,
                     Sums& sums) override {
    const auto factor = static_cast<float>(scale / static_cast<double>(rows));
    const auto blocks = static_cast<unsigned>(std::min(rows, most_blocks));
    with_type(outputs.dtype, [&]<class T>(T) {
      launch(stream(), blocks, cross_entropy_kernel<T>, elements<T>(outputs),
             elements<float>(targets), rows, outputs.size / rows, factor, elements<T>(delta),
             SumsOnGpu::of(sums).partial);
    });
  }

  void fetch(Sums& sums) override {
    SumsOnGpu& on_gpu = SumsOnGpu::of(sums);
    launch(stream(), 1, total_sums, on_gpu.partial, &on_gpu.totals);
    copy_bytes(fetched_.data(), reinterpret_cast<const std::byte*>(&on_gpu.totals), sizeof(Totals));
    finish();
    sums.totals = *reinterpret_cast<const Totals*>(fetched_.data());
  }

  void ordered_mean(View own, int rank, View received, View shard, Write write) override {
    const int ranks = static_cast<int>(received.size / shard.size) + 1;
    with_type(shard.dtype, [&]<class T>(T) {
      launch(stream(), blocks_for(shard.size), mean_kernel<T>, elements<T>(own), rank,
             elements<T>(received), ranks, shard.size, elements<T>(shard), write);
    });
  }

  // ---- For ElementWise ----
  template <class T> static T* elements(View view) {
    expect(view.device == Device::cuda, "a GPU's kernels take a GPU's memory");
    return reinterpret_cast<T*>(view.data);
  }

  template <class Body, class... Operands>
  void each(std::int64_t count, const Body& body, const Operands&... operands) {
    const Items items(count, operands...);
    if (items.all == 0) return;
    launch(stream(), blocks_for(items.all), each_kernel<Body, Operands...>, items, body,
           operands...);
  }

  template <class Body, class... Operands>
  void add_sum(Sums& sums, double Totals::*total, double divisor, std::int64_t count,
               const Body& body, const Operands&... operands) {
    const Items items(count, operands...);
    const unsigned blocks = std::clamp<std::int64_t>(blocks_for(items.all), 1, most_blocks);
    launch(stream(), blocks, add_partial_sums<Body, Operands...>, items,
           &(SumsOnGpu::of(sums).partial->*total), divisor, body, operands...);
  }

 private:
  HostBuffer fetched_{Device::cuda, sizeof(Totals)};  // the two sums, where the host reads them
};
}  // namespace

std::unique_ptr<Kernels> make_kernels(bool urgent) { return std::make_unique<CudaKernels>(urgent); }
}  // namespace zero::cuda
