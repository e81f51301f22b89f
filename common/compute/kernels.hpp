// SPDX-License-Identifier: MIT
// A device's operations. A Stream has a Kernels: on a CPU a call does the work, on a GPU queues it.
#pragma once
#include <chrono>
#include <memory>

#include "compute/generator.hpp"
#include "compute/matrix.hpp"
#include "compute/sums.hpp"

namespace zero {
struct AdamScalars;  // in adam_element.hpp
struct AdamState;

/// A place between two pieces of work in a device's queue.
class DeviceEvent {
 public:
  explicit DeviceEvent(Device& device) : device(device) {}
  virtual ~DeviceEvent() = default;
  Device& device;  // may be destroyed before the event, so passed() does not use the device
  /// Whether all work before this place is done. Throws Error (resources) if the device has failed.
  virtual bool passed() const = 0;
  /// Returns when the device passed it, by the host's clock. Only for a passed record_time() event.
  virtual std::chrono::steady_clock::time_point time() const = 0;
};
using DeviceEventPtr = std::shared_ptr<const DeviceEvent>;  // null: a place that has been passed

/// The sizes of a linear layer's matrix products: `batch` rows of `inputs` and `outputs` numbers.
struct LinearShape {
  std::int64_t batch, inputs, outputs;
  bool bias;  // whether the layer has a bias; it is stored behind the weight
  std::int64_t weights() const { return inputs * outputs; }
};

/// A text's tokens. Sample s begins at token positions.bits(s), modulo the number of places at
/// which a sample and the token behind it fit.
struct TokenSource {
  const std::byte* text;  // in the device's memory; a Data owns it
  std::int64_t length;  // in tokens
  std::int64_t token_bytes;  // 1 or 2
  std::int64_t sequence;  // tokens of a sample
  Generator positions;

  /// Returns token i of a sample; if i == sequence, the token behind the sample.
  HOST_DEVICE std::int64_t token(std::int64_t sample, std::int64_t i) const {
    const auto places = static_cast<std::uint64_t>(length - sequence);
    const auto at = static_cast<std::int64_t>(positions.bits(sample) % places) + i;
    const auto* bytes = reinterpret_cast<const unsigned char*>(text) + at * token_bytes;
    return token_bytes == 1 ? bytes[0] : bytes[0] | bytes[1] << 8;
  }
};

/// The teacher of tasks toy, mlp and tiny, who answers: targets = (random inputs) x first x second.
struct TeacherSource {
  ConstView first, second;  // (inputs, hidden) and (hidden, outputs), fp32
  std::int64_t inputs, outputs;
  Generator random_inputs;
  static constexpr std::int64_t hidden = 16;
};

/// Bytes of a GPU: cuBLAS's workspace; room for interim results, as a product to add to gradients.
inline constexpr std::int64_t blas_workspace_bytes = std::int64_t{32} << 20;
inline constexpr std::int64_t product_room_bytes = std::int64_t{32} << 20;
/// A Llama's micro-batch has at most so many tokens: a GPU sorts them in product_room_bytes.
inline constexpr std::int64_t most_tokens = product_room_bytes / 8;  // two 32-bit numbers a token
/// If there are other ranks, products leave 16 multiprocessors, but at most half of all, to NCCL's
/// at most 16 blocks, which each fill one. Else messages would wait for the end of a product.
inline constexpr int message_blocks = 16;

/// A function's views lie on the kernels' device and do not overlap, unless its comment allows it.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // ---- Order ----
  /// Returns the place at which all work handed over so far is done.
  virtual DeviceEventPtr record() = 0;
  /// As record(), and the event knows its time() once it is passed. begin: an earlier event of
  /// record_time(), whose reading of both clocks is used again. On a CPU returns null: passed now.
  virtual DeviceEventPtr record_time(const DeviceEventPtr& begin = nullptr) = 0;
  /// Makes all work handed over from now on start after the event, which may be another stream's.
  virtual void wait(const DeviceEventPtr& event) = 0;
  /// Returns the device's own queue, for a library that puts work into it; null on the CPU.
  virtual void* queue() = 0;

  // ---- Memory ----
  /// to = from, of the same size and dtype; either may lie in the host's memory.
  void copy(ConstView from, View to) { copy_bytes(to.data, from.data, from.bytes()); }
  virtual void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;

  // ---- Data: samples from number `first` on, as rows that fill `inputs` and `targets` (fp32) ----
  /// Inputs: each byte's code, a row of `codes` (256 rows). Target: the byte behind the sample.
  virtual void text_samples(const TokenSource& source, ConstView codes, std::int64_t first,
                            View inputs, View targets) = 0;
  virtual void teacher_samples(const TeacherSource& source, std::int64_t first, View inputs,
                               View targets) = 0;
  /// Inputs: a sample's tokens, as numbers in fp32. Targets: for each token the next one.
  virtual void token_samples(const TokenSource& source, std::int64_t first, View inputs,
                             View targets) = 0;

  // ---- The model ----
  /// part[i] = random.uniform(number + i) * scale + offset.
  virtual void initialise(View part, const Generator& random, std::uint64_t number, float scale,
                          float offset) = 0;
  /// Call it once, before the products below. On a GPU takes memory for cuBLAS, and `room` bytes.
  virtual void reserve_products(std::int64_t room) = 0;
  /// y = x W^T + b, through a ReLU if `relu`. params: W (outputs, inputs), then b, if any.
  virtual void linear_forward(const LinearShape& shape, ConstView x, ConstView params, View y,
                              bool relu) = 0;
  /// First dy becomes 0 where y, the ReLU's output, is 0 (empty y: no ReLU). grads = dy^T x for the
  /// weight and dy's column sums for the bias, stored or added by store() (dtype.hpp); padding 0.
  virtual void linear_backward_params(const LinearShape& shape, ConstView y, View dy, ConstView x,
                                      View grads, Write write) = 0;
  /// dx = dy W, for the dy that linear_backward_params left.
  virtual void linear_backward_input(const LinearShape& shape, ConstView dy, ConstView params,
                                     View dx) = 0;
  /// Adds the rows' mean softmax cross-entropy (nats) to sums.totals.loss; grad_output = scale *
  /// the gradient of that mean by `outputs`. targets: one class per row.
  virtual void cross_entropy(ConstView outputs, ConstView targets, std::int64_t rows, float scale,
                             View grad_output, Sums& sums) = 0;
  /// As cross_entropy(), with the mean squared error over all elements. targets: one per output.
  virtual void squared_error(ConstView outputs, ConstView targets, float scale, View grad_output,
                             Sums& sums) = 0;

  // ---- Gradients ----
  virtual void clear(Sums& sums) = 0;
  /// Waits for the device, and sets sums.totals to what the device has added up since clear().
  virtual void fetch(Sums& sums) = 0;
  /// Divides every element by divisor and rounds once.
  virtual void divide(View values, int divisor) = 0;
  /// Adds the sum of the values' squares, formed in double, to sums.totals.squares.
  virtual void squared_norm(ConstView values, Sums& sums) = 0;
  /// shard = the mean of the ranks' parts, or shard + the mean, by store(). Parts are added in fp32
  /// in rank order. own: this rank's part, may be `shard`; received: the other ranks', in order.
  virtual void ordered_mean(ConstView own, int rank, ConstView received, View shard,
                            Write write) = 0;

  // ---- The update ----
  /// Applies adam_element() to all elements. state.params (see AdamState) may be grads' memory.
  virtual void adam(const AdamScalars& scalars, const AdamState& state, ConstView grads) = 0;

  // ---- For a Llama only: a row belongs to a token, or to a token and a head ----
  /// y (tokens, width) = the rows of the table (vocabulary, width) that `tokens` (fp32) name.
  virtual void embed(ConstView tokens, ConstView table, View y) = 0;
  /// Row t of grads, the table's gradient, is the sum, in order, of dy's rows whose token is t,
  /// stored or added; padding 0.
  virtual void embed_backward(ConstView tokens, ConstView dy, View grads, Write write) = 0;
  /// y = x / sqrt(mean of x^2 + 10^-6) * gain, row by row. x, y: (rows, size of gain).
  virtual void rms_norm(ConstView x, ConstView gain, View y) = 0;
  /// dx = the gradient of x, stored or added as `how` says; grads = the gradient of the gain, as
  /// `write` says. dy is overwritten by the terms whose column sums are the gain's gradient.
  virtual void rms_norm_backward(View dy, ConstView gain, ConstView x, View dx, Write how,
                                 View grads, Write write) = 0;
  /// Copies heads from by_token to by_kv_head (HeadsShape). Turns each head's elements i and i +
  /// head_dim / 2. rope_cos_sin: (tokens, head_dim), fp32, cosines, then sines; empty: no turn.
  virtual void split_heads(const HeadsShape& shape, const ConstMatrix& by_token,
                           ConstView rope_cos_sin, View by_kv_head) = 0;
  /// Copies the heads back to by_token, and turns each by split_heads()'s angles, negated.
  virtual void merge_heads(const HeadsShape& shape, ConstView by_kv_head, ConstView rope_cos_sin,
                           const Matrix& by_token) = 0;
  /// Forms `count` products of a (rows x inner) and b (inner x columns) in fp32, rounds each once.
  virtual void products(std::int64_t count, std::int64_t rows, std::int64_t inner,
                        std::int64_t columns, const ConstMatrices& a, const ConstMatrices& b,
                        const Matrices& to) = 0;
  /// Each row of scores becomes the softmax of row * scale over the tokens it sees, then zeros.
  virtual void causal_softmax(const CausalRows& rows, View scores, float scale) = 0;
  /// grad_output, at first the gradient of attention_probs, becomes the gradient of the scores.
  virtual void softmax_backward(const CausalRows& rows, ConstView attention_probs, float scale,
                                View grad_output) = 0;
  /// y (rows, hidden) = gate / (1 + e^-gate) * up. gate_up (rows, 2, hidden) has gate and up.
  virtual void swiglu(ConstView gate_up, std::int64_t hidden, View y) = 0;
  /// gate_up is overwritten by its own gradient.
  virtual void swiglu_backward(ConstView dy, std::int64_t hidden, View gate_up) = 0;
  /// y = y + x, rounded.
  virtual void add(ConstView x, View y) = 0;
};

/// Makes the kernels of a new stream. urgent: a GPU begins their work before that of other streams.
std::unique_ptr<Kernels> make_kernels(Device& device, bool urgent = false);
namespace cuda {
/// Throws Error (resources) in a build without CUDA.
std::unique_ptr<Kernels> make_kernels(Device& gpu, bool urgent);
}  // namespace cuda

/// Blocks until the event is passed. Throws Error if the device has failed, or by check_peers().
void wait_for(const DeviceEventPtr& event);
}  // namespace zero
