// SPDX-License-Identifier: MIT
// A device's work, one object a Stream: on the CPU a call does it, on a GPU queues it, in order.
#pragma once
#include "compute/generator.hpp"
#include "compute/work.hpp"

namespace zero {
struct AdamScalars;  // in adam_element.hpp

/// One linear layer as its products see it: `batch` rows of `inputs` and of `outputs`.
struct LinearShape {
  std::int64_t batch, inputs, outputs;
  bool bias;  // stored behind the weight
  std::int64_t weights() const { return inputs * outputs; }
};

/// The text and the numbers that stand for its bytes: (256, code_size), fp32.
struct TextSource {
  const std::byte* text;
  std::int64_t length;
  View codes;
  std::int64_t code_size;
  std::int64_t context;  // bytes that predict the next one
  Generator positions;
};

/// Two matrices, inputs x hidden and hidden x outputs, fp32, and the generator of inputs.
struct TeacherSource {
  View first, second;
  std::int64_t inputs, outputs;
  Generator random_inputs;
  static constexpr std::int64_t hidden = 16;
};

/// What Adam updates of one layer, all of it or a part. Views of one size, in fp32 but the last.
struct AdamState {
  View weights;  // the master weights; with --dtype fp32 the parameters themselves
  View momentum;
  View variance;
  View params{};  // to compute with: the weights, rounded; empty, or the weights: no other copy
};

/// A row-major matrix in memory, read as it is or transposed.
struct Matrix {
  View elements;  // rows x columns as stored
  std::int64_t columns;  // as stored: the distance between rows
  bool transposed = false;
};

/// Bytes in a GPU's memory behind Sums: the two sums, and room for so many blocks' partial sums.
inline constexpr std::int64_t most_partial_sums = 8192;
inline constexpr std::int64_t gpu_sums_bytes = 8 * (2 + most_partial_sums);

/// Two sums of a step: what it is judged by.
struct Totals {
  double loss = 0;  // of the micro-batches' mean losses
  double squares = 0;  // of gradients, scaled as they are
};

/// One rank's two sums. On a GPU they grow in its memory until fetch().
struct Sums {
  explicit Sums(Device& device)
      : on_gpu(device, Kind::workspace, device.type == DeviceType::cuda ? gpu_sums_bytes : 0,
               true) {}

  Totals totals;
  Buffer on_gpu;
};

/// Bytes for a GPU's products: cuBLAS's workspace, and room for products that are to be added.
inline constexpr std::int64_t blas_workspace_bytes = std::int64_t{32} << 20;
inline constexpr std::int64_t product_room_bytes = std::int64_t{32} << 20;

/// Views that meet in a call lie on the kernels' device and do not overlap, but where it says so.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // ---- Order ----
  /// The place at which all that was handed over so far is done.
  virtual Mark record() = 0;
  /// The same, and will know when, by the clocks as `begin` has read them; null on the CPU: now.
  virtual Mark record_time(const Mark& begin = nullptr) = 0;
  /// What is handed over from now on starts after that mark, of whatever stream.
  virtual void wait(const Mark& mark) = 0;
  /// The device's own queue, for a library that is about to put work into it; null on the CPU.
  virtual void* queue() = 0;

  // ---- Memory ----
  /// to = from, of the same size and dtype; either may lie in the host's memory.
  void copy(View from, View to) { copy_bytes(to.data, from.data, from.bytes()); }
  /// Between a view and the host's memory, either way.
  virtual void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;

  // ---- Data: samples [first, first + batch) as rows of `inputs` and `targets` (fp32) ----
  virtual void text_samples(const TextSource& source, std::int64_t first, View inputs,
                            View targets) = 0;
  virtual void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                               View targets) = 0;

  // ---- The model ----
  /// part[i] = random.uniform(number + i) * scale for i < weights, 0 behind them.
  virtual void initialise(View part, const Generator& random, std::uint64_t number,
                          std::int64_t weights, float scale) = 0;
  /// Once, before the three products below. room: bytes of a GPU's memory; the CPU takes none.
  virtual void reserve_products(std::int64_t room) = 0;
  /// y = relu(x W^T + b).
  virtual void linear_forward(const LinearShape& shape, View x, View params, View y, bool relu) = 0;
  /// dy becomes 0 where a ReLU cut off the outputs y (no y: nowhere). grads = dy^T x for the weight
  /// and dy's column sums for the bias, stored or added by store() (dtype.hpp); padding 0.
  virtual void linear_backward_params(const LinearShape& shape, View y, View dy, View x, View grads,
                                      Write write) = 0;
  /// dx = dy W, of the dy that linear_backward_params left.
  virtual void linear_backward_input(const LinearShape& shape, View dy, View params, View dx) = 0;
  /// Adds the rows' mean softmax cross-entropy (nats) to sums.totals.loss; delta = its gradient *
  /// scale. targets: a class a row.
  virtual void cross_entropy(View outputs, View targets, std::int64_t rows, float scale, View delta,
                             Sums& sums) = 0;
  /// Adds the mean squared error of all elements to sums.totals.loss; delta = its gradient * scale.
  virtual void squared_error(View outputs, View targets, float scale, View delta, Sums& sums) = 0;

  // ---- Gradients ----
  virtual void clear(Sums& sums) = 0;
  /// Waits until sums.totals.loss and sums.totals.squares are what the device has added up.
  virtual void fetch(Sums& sums) = 0;
  /// x / divisor for every element, rounded once.
  virtual void divide(View values, int divisor) = 0;
  /// Adds the sum of squares, formed in double, to sums.totals.squares.
  virtual void squared_norm(View values, Sums& sums) = 0;
  /// shard = mean of the ranks' parts, added in rank order in fp32, divided once; Write::add: by
  /// store(). own: rank `rank`'s part, may be the shard; received: the others', in rank order.
  virtual void ordered_mean(View own, int rank, View received, View shard, Write write) = 0;

  // ---- The update ----
  /// adam_element for each; new weights go, rounded, to state.params, which may lie where grads do.
  virtual void adam(const AdamScalars& scalars, const AdamState& state, View grads) = 0;
};

// Defined in stream.cpp, or, of a GPU, in cuda/.
/// For a new stream of that device. urgent: a GPU begins its work before that of others.
std::unique_ptr<Kernels> make_kernels(Device& device, bool urgent = false);
namespace cuda {
/// Throws Error (resources) in a build without CUDA.
std::unique_ptr<Kernels> make_kernels(Device& gpu, bool urgent);
}  // namespace cuda

/// Blocks until the mark is passed. Throws Error (resources) when the device has failed.
void wait_for(const Mark& mark);
}  // namespace zero
