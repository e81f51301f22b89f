// SPDX-License-Identifier: MIT
// A GPU's kernels. A teacher's samples have the CPU's bits, because they are summed in its order.
#include "compute/cuda/launch.cuh"
#include "compute/row_wise.hpp"

namespace zero::cuda {
namespace {
/// What Sums::on_gpu holds. fetch() forms the totals.
struct SumsOnGpu {
  static SumsOnGpu& of(Sums& sums) { return *reinterpret_cast<SumsOnGpu*>(sums.on_gpu.data()); }

  Totals partial[most_partial_sums / 2];  // [b]: block b's sums over all calls since clear()
  Totals totals;
};
static_assert(sizeof(SumsOnGpu) == gpu_sums_bytes);

constexpr int teacher_rows = threads / TeacherSource::hidden;  // samples that a block forms

/// Each thread sums one hidden number of a sample, inputs in rising order, from the block's tiles.
template <class T>
__global__ void teacher_kernel(TeacherSource source, std::int64_t first, std::int64_t rows,
                               T* inputs, float* targets) {
  constexpr int hidden_size = TeacherSource::hidden, tile = 128;
  using Row = Pack<float, 4>[tile / 4 + 1];  // begins in another bank than the row before
  __shared__ Row x[teacher_rows], weights[hidden_size];
  __shared__ float hidden[teacher_rows][hidden_size];
  const auto* to_hidden = reinterpret_cast<const float*>(source.first.data);
  const auto* to_outputs = reinterpret_cast<const float*>(source.second.data);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * teacher_rows;
  const int row = threadIdx.x / hidden_size, h = threadIdx.x % hidden_size;
  float sum = 0;
  for (std::int64_t start = 0; start < source.inputs; start += tile) {
    for (int k = threadIdx.x; k < teacher_rows * tile; k += threads) {
      const std::int64_t of = first_row + k / tile, i = start + k % tile;
      float value = 0;  // behind the last input, where it changes no sum
      if (i < source.inputs) {
        value = source.random_inputs.uniform((first + of) * source.inputs + i);
        if (of < rows) inputs[of * source.inputs + i] = narrow<T>(value);
      }
      x[k / tile][k % tile / 4].at[k % 4] = value;
    }
    for (int k = threadIdx.x; k < tile * hidden_size; k += threads) {
      const int i = k / hidden_size;
      weights[k % hidden_size][i / 4].at[i % 4] =
          start + i < source.inputs ? to_hidden[start * hidden_size + k] : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < tile / 4; ++i) {
      const Pack<float, 4> values = x[row][i], factors = weights[h][i];
      for (int k = 0; k < 4; ++k) sum += values.at[k] * factors.at[k];
    }
    __syncthreads();  // the next tile is written there
  }
  hidden[row][h] = sum;
  __syncthreads();
  for (std::int64_t o = threadIdx.x; o < source.outputs; o += threads) {
    float factors[hidden_size];
    for (int k = 0; k < hidden_size; ++k) factors[k] = to_outputs[k * source.outputs + o];
    for (int r = 0; r < teacher_rows && first_row + r < rows; ++r) {
      float target = 0;
      for (int k = 0; k < hidden_size; ++k) target += hidden[r][k] * factors[k];
      targets[(first_row + r) * source.outputs + o] = target;
    }
  }
}

/// For column_partial: packs of columns of a block, threads for each pack, most chunks of rows.
constexpr int block_packs = 8;
constexpr int lanes = threads / block_packs;
constexpr std::int64_t most_chunks = 32;

/// partial[chunk * columns + column] = sum of dy over the chunk's rows: each lane adds its rows in
/// rising order, then the lanes are added in rising order. If y is not null, Mask changes dy first.
template <int width, class T>
__global__ void column_partial(const T* y, T* dy, std::int64_t rows, std::int64_t columns,
                               std::int64_t chunk_rows, float* partial) {
  constexpr int block_columns = block_packs * width;
  __shared__ float sums[lanes][block_columns];
  const int lane = threadIdx.x / block_packs, first = threadIdx.x % block_packs * width;
  const std::int64_t block_column = std::int64_t{blockIdx.x} * block_columns;
  const std::int64_t start = blockIdx.y * chunk_rows;
  const std::int64_t end = start + chunk_rows < rows ? start + chunk_rows : rows;
  float sum[width] = {};
  for (std::int64_t row = start + lane; row < end && block_column + first < columns; row += lanes) {
    const std::int64_t at = row * columns + block_column + first;
    auto grad_output = load<width>(In<T>{dy}, at);
    if (y) {
      const auto output = load<width>(In<T>{y}, at);
      for (int k = 0; k < width; ++k) Mask()(at, output.at[k], grad_output.at[k]);
      save(Out<T>{dy}, at, grad_output);
    }
    for (int k = 0; k < width; ++k) sum[k] += widen(grad_output.at[k]);
  }
  for (int k = 0; k < width; ++k) sums[lane][first + k] = sum[k];
  __syncthreads();
  const std::int64_t column = block_column + threadIdx.x;
  if (threadIdx.x >= block_columns || column >= columns) return;
  float all = sums[0][threadIdx.x];
  for (int other = 1; other < lanes; ++other) all += sums[other][threadIdx.x];
  partial[blockIdx.y * columns + column] = all;
}

/// bias[column] = the sum of the column's partial sums, in rising order of chunks, stored or added.
template <class T>
__global__ void column_sum(const float* partial, std::int64_t columns, unsigned chunks, T* bias,
                           Write write) {
  const std::int64_t column = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (column >= columns) return;
  float sum = partial[column];
  for (unsigned chunk = 1; chunk < chunks; ++chunk) sum += partial[chunk * columns + column];
  store(bias[column], sum, write);
}

/// A block's threads call visit(number, value in each operand) for elements [0, end) of a row.
template <int width, class Visit, class... Operands>
__device__ void visit_row(std::int64_t end, const Visit& visit, const Operands&... operands) {
  for (std::int64_t i = threadIdx.x * width; i < end; i += threads * width) {
    visit_pack<width>(i, visit, operands...);
  }
}

/// For a row's first `seen` elements x returns the largest, and the sum of e^((x - largest) scale).
template <int width, class T>
__device__ std::pair<float, float> add_powers(const In<T>& row, std::int64_t seen, float scale) {
  const auto larger = [](float a, float b) { return a < b ? b : a; };
  float largest = widen(row.at[0]), sum = 0;
  const auto compare = [&](std::int64_t i, T x) {
    if (i < seen) largest = larger(largest, widen(x));
  };
  visit_row<width>(seen, compare, row);
  largest = combine_block(largest, larger);
  const auto add = [&](std::int64_t i, T x) {
    if (i < seen) sum += portable_exp((widen(x) - largest) * scale);
  };
  visit_row<width>(seen, add, row);
  return {largest, block_sum(sum)};
}

/// Each block takes a row, and then others, if there are more rows than blocks.
template <int width, class T>
__global__ void cross_entropy_kernel(Rows<In<T>, Strided> outputs, const float* targets,
                                     std::int64_t rows, std::int64_t count, float factor,
                                     Rows<Out<T>, Strided> grad_output, Totals* partial) {
  double loss = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const In<T> y = outputs(row);
    const auto [largest, sum] = add_powers<width>(y, count, 1);
    const auto target = static_cast<std::int64_t>(targets[row]);
    const auto differ = [&](std::int64_t j, T y, T& dy) {
      const float probability = portable_exp(widen(y) - largest) / sum;
      dy = narrow<T>((probability - (j == target ? 1.0f : 0.0f)) * factor);
    };
    visit_row<width>(count, differ, y, grad_output(row));
    loss += portable_log(sum) + largest - widen(y.at[target]);
  }
  if (threadIdx.x == 0) partial[blockIdx.x].loss += loss / static_cast<double>(rows);
}

/// Adds up all blocks' partial sums.
__global__ void total_sums(const Totals* partial, Totals* totals) {
  Totals mine;
  for (std::int64_t i = threadIdx.x; i < most_blocks; i += threads) {
    mine.loss += partial[i].loss;
    mine.squares += partial[i].squares;
  }
  const Totals all{block_sum(mine.loss), block_sum(mine.squares)};
  if (threadIdx.x == 0) *totals = all;
}

/// ordered_mean(): each thread forms a pack. received: the other ranks' parts of `part` elements.
template <int width, class T>
__global__ void mean_kernel(const T* own, int rank, const T* received, int ranks, std::int64_t part,
                            T* shard, Write write) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * width;
  if (i >= part) return;
  float sum[width] = {};
  for (int r = 0; r < ranks; ++r) {
    const T* from = r == rank ? own : received + (r < rank ? r : r - 1) * part;
    const auto pack = load<width>(In<T>{from}, i);
    for (int k = 0; k < width; ++k) {
      const float x = widen(pack.at[k]);
      sum[k] = r == 0 ? x : sum[k] + x;
    }
  }
  Pack<T, width> mean{};
  if (write == Write::add) mean = load<width>(In<T>{shard}, i);
  for (int k = 0; k < width; ++k) store(mean.at[k], sum[k] / static_cast<float>(ranks), write);
  save(Out<T>{shard}, i, mean);
}

/// Each thread applies the body to one pack of a row. all: packs of all rows; packs: of one row.
template <int width, class Body, class... Operands>
__global__ void each_row_kernel(std::int64_t all, std::int64_t packs, Body body,
                                Operands... operands) {
  const std::int64_t item = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (item < all) visit_pack<width>(item % packs * width, body, operands(item / packs)...);
}

/// Each block sums the body's terms over one row, then applies the body to the row's elements.
template <int width, class Body, class... Operands>
__global__ void row_sum_kernel(std::int64_t count, Body body, Operands... operands) {
  const std::int64_t row = blockIdx.x;
  float sums[Body::sums] = {};
  const auto add = [&](auto... packs) {
    for (int k = 0; k < width; ++k) {
      float terms[Body::sums];
      body.term(terms, packs.at[k]...);
      for (int s = 0; s < Body::sums; ++s) sums[s] += terms[s];
    }
  };
  for (std::int64_t i = threadIdx.x * width; i < count; i += threads * width) {
    add(load<width>(operands(row), i)...);
  }
  for (float& sum : sums) sum = block_sum(sum);
  const auto apply = [&](auto, auto&... x) { body(sums, x...); };
  visit_row<width>(count, apply, operands(row)...);
}

/// causal_softmax(): each block takes one row.
template <int width, class T>
__global__ void softmax_kernel(CausalRows rows, T* scores, float scale) {
  const std::int64_t row = blockIdx.x, seen = rows.seen(row);
  const InOut<T> x{scores + rows(row)};
  const auto [largest, sum] = add_powers<width>(In<T>{x.at}, seen, scale);
  const auto divide = [&](std::int64_t i, T& x) {
    x = narrow<T>(i < seen ? portable_exp((widen(x) - largest) * scale) / sum : 0);
  };
  visit_row<width>(rows.end, divide, x);
}

/// Sorts a block's rows by token, then number, into `order`. A thread counts what precedes its row.
__global__ void sort_block(const float* tokens, std::int64_t count, std::int32_t* order) {
  __shared__ float others[threads];
  const int self = static_cast<int>(threadIdx.x);
  std::int64_t place = std::int64_t{blockIdx.x} * threads;
  const std::int64_t row = place + self;
  const float token = row < count ? tokens[row] : 1e9f;  // no row: sorted behind all tokens
  others[self] = token;
  __syncthreads();
  for (int k = 0; k < threads; ++k) place += others[k] < token || (others[k] == token && k < self);
  if (row < count) order[place] = static_cast<std::int32_t>(row);
}

/// Returns the place in [low, end] of a sorted order behind all tokens x for which before(x).
template <class Before>
__device__ std::int64_t behind(const float* tokens, const std::int32_t* order, std::int64_t low,
                               std::int64_t end, Before before) {
  while (low < end) {
    const std::int64_t middle = (low + end) / 2;
    before(tokens[order[middle]]) ? low = middle + 1 : end = middle;
  }
  return low;
}

/// Merges each two sorted runs of `size` rows. A row's place: the number of rows of both before it.
__global__ void merge_runs(const float* tokens, std::int64_t count, std::int64_t size,
                           const std::int32_t* from, std::int32_t* to) {
  const std::int64_t at = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (at >= count) return;
  const bool second = at / size % 2;
  const std::int64_t other = (at / size + (second ? -1 : 1)) * size;  // where the other run begins
  const float token = tokens[from[at]];
  const auto before = [=](float x) { return x < token || (second && x == token); };
  const std::int64_t place = behind(tokens, from, other, std::min(other + size, count), before);
  to[at + place - (second ? at / size * size : other)] = from[at];
}

/// A block per sorted row and `threads` columns; it sums the token's rows if its row is the first.
template <class T>
__global__ void embed_backward_kernel(const float* tokens, const std::int32_t* order,
                                      std::int64_t count, const T* dy, std::int64_t width, T* grads,
                                      Write write) {
  const std::int64_t first = blockIdx.x;
  const std::int64_t column = std::int64_t{blockIdx.y} * threads + threadIdx.x;
  const float token = tokens[order[first]];
  if (column >= width || (first > 0 && tokens[order[first - 1]] == token)) return;
  // The end is found first, because a loop of known length loads many rows at a time.
  const std::int64_t end = behind(tokens, order, first, count, [=](float x) { return x == token; });
  float sum = 0;
  for (std::int64_t at = first; at < end; ++at) sum += widen(dy[order[at] * width + column]);
  store(grads[static_cast<std::int64_t>(token) * width + column], sum, write);
}

/// Implements the functions of Kernels that Runtime, ElementWise and RowWise do not.
class CudaKernels : public RowWise<CudaKernels, ElementWise<CudaKernels, Runtime>> {
 public:
  using RowWise::RowWise;

  void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                       View targets) override {
    with_type(inputs.dtype, [&]<class T>(T) {
      const std::int64_t rows = targets.size / source.outputs;
      launch(stream(), blocks_for(rows, teacher_rows), teacher_kernel<T>, source, first, rows,
             elements<T>(inputs), elements<float>(targets));
    });
  }

  void linear_forward(const LinearShape& shape, ConstView x, ConstView params, View y,
                      bool relu) override {
    const ConstMatrix weight{params.part(0, shape.weights()), shape.inputs, true};
    const std::byte* bias = params.data + weight.elements.bytes();
    multiply(1, shape.batch, shape.inputs, shape.outputs, {{x, shape.inputs}}, {weight},
             {{y, shape.outputs}}, shape.bias ? bias : nullptr, relu);
  }

  void linear_backward_params(const LinearShape& shape, ConstView y, View dy, ConstView x,
                              View grads, Write write) override {
    // Write::add forms the product in product_room_, in parts that fit: 8 n rows (aligned), 1 to 7,
    // or part of a row. Write::overwrite has the same parts: sizes may change the order of sums.
    const std::int64_t size = bytes_of(grads.dtype);
    const bool even = reinterpret_cast<std::uintptr_t>(grads.data) % 16 == 0 &&
                      shape.inputs * size % 16 == 0;  // parts begin at multiples of 16 bytes
    const std::int64_t room = (product_room_->bytes() - (even ? 0 : 16)) / size;
    const std::int64_t width = std::clamp<std::int64_t>(shape.inputs, 1, room);
    // Parts have about one size, because even a last part of few rows reads all inputs.
    const std::int64_t most = room / width, eights = most < 8 ? 1 : 8;
    const std::int64_t parts = blocks_for(shape.outputs, most / eights * eights);
    const std::int64_t step = blocks_for(shape.outputs, parts * eights) * eights;
    with_type(grads.dtype, [&]<class T>(T) {
      const In<T> cut{y.size > 0 ? elements<T>(y) : nullptr};
      const InOut<T> grad_output{elements<T>(dy)};
      if (shape.bias) {
        sum_columns(cut, grad_output, shape.batch, shape.outputs,
                    elements<T>(grads) + shape.weights(), write);
      } else {
        each(y.size, Mask(), cut, grad_output);
      }
      const auto add_to = [&](std::int64_t row, std::int64_t first) {
        const std::int64_t rows = std::min(step, shape.outputs - row);
        const std::int64_t columns = std::min(width, shape.inputs - first);
        const ConstMatrix grad_outputs{dy.part(row, dy.size - row), shape.outputs, true};
        const ConstMatrix inputs{x.part(first, x.size - first), shape.inputs};
        const View to = grads.part(row * shape.inputs + first, rows * columns);
        View product = to;
        // The product is aligned like `to`: else cuBLAS might choose another order of sums.
        const auto begin = reinterpret_cast<std::uintptr_t>(to.data) % 16;
        if (write == Write::add) product.data = product_room_->data() + begin;
        multiply(1, rows, shape.batch, columns, {grad_outputs}, {inputs}, {{product, columns}});
        if (write == Write::overwrite) return;
        each(to.size, Add(), In<T>{elements<T>(product)}, InOut<T>{elements<T>(to)});
      };
      for (std::int64_t row = 0; row < shape.outputs; row += step) {
        for (std::int64_t first = 0; first < shape.inputs; first += width) add_to(row, first);
      }
    });
    if (grads.used == grads.size) return;
    const View padding = grads.part(grads.used, grads.size - grads.used);
    check_cuda(cudaMemsetAsync(padding.data, 0, padding.bytes(), stream()));
  }

  void linear_backward_input(const LinearShape& shape, ConstView dy, ConstView params,
                             View dx) override {
    const ConstMatrix weight{params.part(0, shape.weights()), shape.inputs};
    multiply(1, shape.batch, shape.outputs, shape.inputs, {{dy, shape.outputs}}, {weight},
             {{dx, shape.inputs}});
  }

  void cross_entropy(ConstView outputs, ConstView targets, std::int64_t rows, float scale,
                     View grad_output, Sums& sums) override {
    const auto factor = static_cast<float>(scale / static_cast<double>(rows));
    const auto blocks = static_cast<unsigned>(std::min(rows, most_blocks));
    with_type(outputs.dtype, [&]<class T>(T) {
      constexpr int width = 16 / sizeof(T);
      const Strided row{outputs.size / rows};
      const Rows y{In<T>{elements<T>(outputs)}, row};
      const Rows dy{Out<T>{elements<T>(grad_output)}, row};
      const bool packed = in_packs<width>(row.elements, y, dy);
      launch(stream(), blocks, packed ? cross_entropy_kernel<width, T> : cross_entropy_kernel<1, T>,
             y, elements<float>(targets), rows, row.elements, factor, dy,
             SumsOnGpu::of(sums).partial);
    });
  }

  void embed_backward(ConstView tokens, ConstView dy, View grads, Write write) override {
    const std::int64_t count = tokens.size, width = dy.size / count;
    auto *order = reinterpret_cast<std::int32_t*>(product_room_->data()), *merged = order + count;
    expect(2 * count * std::int64_t{sizeof *order} <= product_room_->bytes(), "too many tokens");
    const auto* number = elements<float>(tokens);
    launch(stream(), blocks_for(count), sort_block, number, count, order);
    for (std::int64_t size = threads; size < count; size *= 2) {
      launch(stream(), blocks_for(count), merge_runs, number, count, size, order, merged);
      std::swap(order, merged);
    }
    if (write == Write::overwrite) {
      check_cuda(cudaMemsetAsync(grads.data, 0, grads.bytes(), stream()));
    }
    with_type(grads.dtype, [&]<class T>(T) {
      launch(stream(), dim3(blocks_for(count, 1), blocks_for(width)), embed_backward_kernel<T>,
             number, order, count, elements<T>(dy), width, elements<T>(grads), write);
    });
  }

  void products(std::int64_t count, std::int64_t rows, std::int64_t inner, std::int64_t columns,
                const ConstMatrices& a, const ConstMatrices& b, const Matrices& to) override {
    constexpr std::int64_t most = 1 << 15;  // products at once: a grid's y and z end at 2^16 - 1
    const auto from = [](auto all, std::int64_t first) {
      all.first.elements.data += first * all.batch_stride * bytes_of(all.first.elements.dtype);
      return all;
    };
    for (std::int64_t i = 0; i < count; i += most) {
      multiply(std::min(most, count - i), rows, inner, columns, from(a, i), from(b, i),
               from(to, i));
    }
  }

  void causal_softmax(const CausalRows& rows, View scores, float scale) override {
    with_type(scores.dtype, [&]<class T>(T) {
      constexpr int width = 16 / sizeof(T);
      const bool packed = in_packs<width>(rows.end, Rows{In<T>{elements<T>(scores)}, rows});
      launch(stream(), blocks_for(rows.rows_in(scores), 1),
             packed ? softmax_kernel<width, T> : softmax_kernel<1, T>, rows, elements<T>(scores),
             scale);
    });
  }

  void fetch(Sums& sums) override {
    SumsOnGpu& on_gpu = SumsOnGpu::of(sums);
    launch(stream(), 1, total_sums, on_gpu.partial, &on_gpu.totals);
    copy_bytes(fetched_.data(), reinterpret_cast<const std::byte*>(&on_gpu.totals), sizeof(Totals));
    finish();
    sums.totals = *reinterpret_cast<const Totals*>(fetched_.data());
  }

  void ordered_mean(ConstView own, int rank, ConstView received, View shard, Write write) override {
    const int ranks = static_cast<int>(received.size / shard.size) + 1;
    with_type(shard.dtype, [&]<class T>(T) {
      constexpr int width = 16 / sizeof(T);
      const auto fits = [](ConstView view) { return aligned<width>(In<T>{elements<T>(view)}); };
      const bool packed = shard.size % width == 0 && fits(own) && fits(received) && fits(shard);
      launch(stream(), blocks_for(shard.size, packed ? threads * width : threads),
             packed ? mean_kernel<width, T> : mean_kernel<1, T>, elements<T>(own), rank,
             elements<T>(received), ranks, shard.size, elements<T>(shard), write);
    });
  }

  // ---- For ElementWise ----
  template <class T, class Byte> static SameConst<Byte, T>* elements(ViewOf<Byte> view) {
    expect(view.on_gpu(), "a GPU's kernels take a GPU's memory");
    return reinterpret_cast<SameConst<Byte, T>*>(view.data);
  }

  template <class Body, class... Operands>
  void each(std::int64_t count, const Body& body, const Operands&... operands) {
    const Items items(count, operands...);
    if (items.all == 0) return;
    launch(stream(), blocks_for(items.all), each_kernel<Body, Operands...>, items, body,
           operands...);
  }

  // ---- For RowWise ----
  template <class Body, class... Operands>
  void each_row(std::int64_t rows, std::int64_t count, const Body& body,
                const Operands&... operands) {
    constexpr int width = Items<Operands...>::width;
    const bool packed = in_packs<width>(count, operands...);
    const std::int64_t packs = packed ? count / width : count;
    launch(
        stream(), blocks_for(rows * packs),
        packed ? each_row_kernel<width, Body, Operands...> : each_row_kernel<1, Body, Operands...>,
        rows * packs, packs, body, operands...);
  }

  template <class Body, class... Operands>
  void each_row_sum(std::int64_t rows, std::int64_t count, const Body& body,
                    const Operands&... operands) {
    constexpr int width = Items<Operands...>::width;
    const bool packed = in_packs<width>(count, operands...);
    launch(stream(), blocks_for(rows, 1),
           packed ? row_sum_kernel<width, Body, Operands...> : row_sum_kernel<1, Body, Operands...>,
           count, body, operands...);
  }

  void column_sums(View dy, View grads, Write write) {
    with_type(grads.dtype, [&]<class T>(T) {
      sum_columns(In<T>{nullptr}, InOut<T>{elements<T>(dy)}, dy.size / grads.size, grads.size,
                  elements<T>(grads), write);
    });
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
  /// Returns whether rows of `count` elements are whole packs in each of the operands.
  template <int width, class... Operands>
  static bool in_packs(std::int64_t count, const Operands&... operands) {
    return count % width == 0 &&
           ((aligned<width>(operands.first) && operands.begins.elements % width == 0) && ...);
  }

  /// Applies Mask if cut is not null. Then to = the sums of grad_output's columns, stored or added.
  template <class T>
  void sum_columns(In<T> cut, InOut<T> grad_output, std::int64_t rows, std::int64_t columns, T* to,
                   Write write) {
    constexpr int pack = 16 / sizeof(T);
    const bool packed = columns % pack == 0 && aligned<pack>(cut) && aligned<pack>(grad_output);
    const unsigned blocks = blocks_for(columns, block_packs * (packed ? pack : 1));
    const std::int64_t chunk_rows = std::max<std::int64_t>(threads, blocks_for(rows, most_chunks));
    const unsigned chunks = blocks_for(rows, chunk_rows);
    auto* partial = reinterpret_cast<float*>(product_room_->data());
    launch(stream(), dim3(blocks, chunks), packed ? column_partial<pack, T> : column_partial<1, T>,
           cut.at, grad_output.at, rows, columns, chunk_rows, partial);
    launch(stream(), blocks_for(columns), column_sum<T>, partial, columns, chunks, to, write);
  }
};
}  // namespace

std::unique_ptr<Kernels> make_kernels(Device& gpu, bool urgent) {
  return std::make_unique<CudaKernels>(gpu, urgent);
}
}  // namespace zero::cuda
