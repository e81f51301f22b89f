// SPDX-License-Identifier: MIT
// The model: a stack of linear layers. It owns activations, never parameters or gradients.
#pragma once
#include "compute/stream.hpp"
#include "memory/layout.hpp"
#include "train/data.hpp"
#include "train/options.hpp"

namespace zero {
/// What a task's model looks like. Layer l maps widths[l] inputs to widths[l + 1] outputs.
struct Architecture {
  std::vector<std::int64_t> widths;
  bool bias = true;
  bool relu = true;  // after every layer but the last
  bool classifier = false;  // softmax cross-entropy in nats; else mean squared error
  float last_scale = 1;  // of the last layer's initial weights

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  /// Elements of layer l: the weight (outputs x inputs, row-major), then the bias.
  std::int64_t size(int l) const { return widths[l + 1] * (widths[l] + (bias ? 1 : 0)); }
  std::vector<std::int64_t> sizes() const;
  /// Numbers in a sample's target.
  std::int64_t targets() const { return classifier ? 1 : widths.back(); }
};

Architecture architecture(const Options& options);

Layout layout_of(const Options& options, int rank, int ranks);

/// Forward and backward of a micro-batch as tasks; activations are in use from one to the other.
class Mlp {
 public:
  /// The stream must outlive the model's use; nothing is put on it here.
  Mlp(const Options& options, Stream& stream);

  /// Sets a layer, or a part of one: weights uniform in +-sqrt(6 / inputs), the last layer's times
  /// last_scale; biases and padding 0. A value depends on its place in the model alone.
  void initialise(View part) const;

  /// batch.data must outlive the task that reads it.
  void load(const Batch& batch);
  /// params: layer l whole; read when the stream gets there.
  void forward(int l, View params);
  /// Adds the micro-batch's mean loss to sums.totals.loss; its gradient is multiplied by `scale`.
  void loss(Sums& sums, float scale = 1);
  /// Stores or adds layer l's gradient, formed in fp32, rounded; padding 0. Last layer first.
  void backward(int l, View params, View grads, Write write);

 private:
  LinearShape shape(int l) const {
    return {batch_, model_.widths[l], model_.widths[l + 1], model_.bias};
  }
  bool relu(int l) const { return model_.relu && l + 1 < model_.layers(); }

  Architecture model_;
  Stream& stream_;
  std::int64_t batch_;
  std::uint64_t seed_;
  std::vector<Scratch> activations_;  // [l]: (batch, widths[l]), inputs of layer l
  std::vector<Scratch> deltas_;  // two: (batch, largest width), d loss / d outputs of a layer
  Tensor targets_;  // (batch, targets)
  std::vector<Borrowed> live_;  // of activations_
  std::vector<Borrowed> live_deltas_;
};
}  // namespace zero
