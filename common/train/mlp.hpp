// SPDX-License-Identifier: MIT
// A stack of linear layers.
#pragma once
#include <deque>

#include "train/model.hpp"

namespace zero {
/// Layer l maps widths[l] inputs to widths[l + 1] outputs: a weight (outputs x inputs) and a bias.
/// Weights begin uniform in +-sqrt(6 / inputs), the last layer's times last_scale, biases at 0.
struct MlpShape {
  std::vector<std::int64_t> widths;
  bool bias = true;
  bool relu = true;  // after every layer except the last
  bool classifier = false;  // softmax cross-entropy in nats; else mean squared error
  float last_scale = 1;  // if small, the classifier first finds all classes about equally likely

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  std::int64_t targets() const { return classifier ? 1 : widths.back(); }
};

Architecture mlp_architecture(const Options& options);

class Mlp : public Network {
 public:
  Mlp(const Options& options, Stream& stream);

  void load(const Batch& batch) override;
  void forward(int l, ConstView params) override;
  void loss(Sums& sums, float scale) override;
  void backward(int l, ConstView params, View grads, Write write) override;

 private:
  LinearShape shape(int l) const {
    return {batch_, shape_.widths[l], shape_.widths[l + 1], shape_.bias};
  }
  bool relu(int l) const { return shape_.relu && l + 1 < shape_.layers(); }

  Stream& stream_;
  const MlpShape shape_;
  std::int64_t batch_;
  std::deque<Scratch> activations_;  // [l]: (batch, widths[l]), layer l's inputs, l - 1's outputs
  std::deque<Scratch> grad_outputs_;  // [l % 2]: (batch, largest width), gradients of l's outputs
  Tensor targets_;  // (batch, targets)
  std::vector<Borrowed> live_;  // [l]: activations_[l], lent from forward to backward
  std::vector<Borrowed> live_grad_outputs_;  // grad_outputs_, lent from loss to the end of backward
};
}  // namespace zero
