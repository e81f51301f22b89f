// SPDX-License-Identifier: MIT
// What is trained, layer by layer. A model owns activations, never parameters or gradients.
#pragma once
#include "compute/stream.hpp"
#include "memory/layout.hpp"
#include "train/data.hpp"
#include "train/options.hpp"

namespace zero {
/// A tensor of a layer. Its elements begin uniform in [offset - scale, offset + scale).
struct Parameter {
  std::string name;  // in checkpoints
  std::vector<std::int64_t> shape;  // row-major
  float scale = 0, offset = 0;
  std::int64_t size() const;
};

/// A model as data: all that layout, prediction, report and checkpoint know of it.
struct Architecture {
  /// Each layer's tensors in the order of its flat vector. Whoever forms the last one's gradient
  /// clears the padding behind it.
  std::vector<std::vector<Parameter>> layers{};
  std::int64_t inputs, targets;  // numbers of a sample
  std::string words{};  // of its shape
  std::string config{};  // as transformers' config.json; empty: they do not know it
  Figure activations{};  // in use from forward to backward
  std::int64_t loaded = 0;  // bytes of these that a batch takes before forward
  Figure data{};  // held throughout, beside source_bytes()

  std::int64_t size(int l) const;
  std::vector<std::int64_t> sizes() const;
};

Architecture architecture(const Options& options);

Layout layout_of(const Options& options, int rank, int ranks);

/// Arithmetic of an architecture. Each call queues a task, and leaves activations for the next.
class Network {
 public:
  virtual ~Network() = default;
  virtual void load(const Batch& batch) = 0;
  virtual void forward(int l, View params) = 0;
  virtual void loss(Sums& sums, float scale) = 0;
  virtual void backward(int l, View params, View grads, Write write) = 0;
};

/// The model of options.task: what a trainer asks of it, for a micro-batch at a time.
class Model {
 public:
  /// The stream must outlive the model's use; nothing is put on it here.
  Model(const Options& options, Stream& stream);

  /// Sets a layer, or a part of one, and its padding to 0. A value depends on its place in the
  /// model alone.
  void initialise(View part, CallSite = {}) const;

  /// batch.data must outlive the task that reads it.
  void load(const Batch& batch, CallSite = {}) { network_->load(batch); }
  /// params: layer l whole; read when the stream gets there.
  void forward(int l, View params, CallSite = {}) { network_->forward(l, params); }
  /// Adds the micro-batch's mean loss to sums.totals.loss; its gradient is multiplied by `scale`.
  void loss(Sums& sums, float scale = 1, CallSite = {}) { network_->loss(sums, scale); }
  /// Stores or adds layer l's gradient, formed in fp32, rounded; padding 0. Last layer first.
  void backward(int l, View params, View grads, Write write, CallSite = {}) {
    network_->backward(l, params, grads, write);
  }

 private:
  const Architecture architecture_;
  Stream& stream_;
  const std::uint64_t seed_;
  const std::unique_ptr<Network> network_;
};
}  // namespace zero
