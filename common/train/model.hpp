// SPDX-License-Identifier: MIT
// The model that is trained, layer by layer. It owns activations, but no parameters or gradients.
#pragma once
#include "compute/stream.hpp"
#include "memory/call_site.hpp"
#include "memory/layout.hpp"
#include "train/data.hpp"
#include "train/options.hpp"

namespace zero {
/// A tensor of a layer. Its initial values are uniform in [offset - scale, offset + scale).
struct Parameter {
  std::string name;  // in checkpoints
  std::vector<std::int64_t> shape;  // row-major
  float scale = 0, offset = 0;
  std::int64_t size() const;
};

/// A model as data, for layout, prediction, report and checkpoint.
struct Architecture {
  /// Each layer's tensors, in order. Whoever writes the last one's gradient sets the padding to 0.
  std::vector<std::vector<Parameter>> layers{};
  std::int64_t inputs, targets;  // numbers in a sample
  std::string description{};  // describes the shape
  std::string config{};  // config.json for Hugging Face's transformers; empty: they lack this model
  Figure activations{};  // memory in use from load or forward to backward
  std::int64_t loaded = 0;  // bytes of `activations` that are in use from load on
  Figure data{};  // memory for data that is held throughout, besides source_bytes()

  std::int64_t size(int l) const;  // elements of layer l, without padding
  std::vector<std::int64_t> sizes() const;
};

Architecture architecture(const Options& options);

Layout layout_of(const Options& options, int rank, int ranks);

/// The arithmetic behind Model: an Mlp or a Llama. Its functions (see Model) each queue a task.
class Network {
 public:
  virtual ~Network() = default;
  virtual void load(const Batch& batch) = 0;
  virtual void forward(int l, ConstView params) = 0;
  virtual void loss(Sums& sums, float scale) = 0;
  virtual void backward(int l, ConstView params, View grads, Write write) = 0;
};

/// The model of options.task. Calls per micro-batch: load, each forward, loss, each backward.
class Model {
 public:
  /// All work runs on the stream, which must outlive the model. The constructor queues no work.
  Model(const Options& options, Stream& stream);

  /// Sets a layer, or a part of one, to initial values, by position and seed; its padding to 0.
  void initialise(View part, CallSite = {}) const;

  /// batch.data must outlive the task that reads it.
  void load(const Batch& batch, CallSite = {}) { network_->load(batch); }
  void forward(int l, ConstView params, CallSite = {}) { network_->forward(l, params); }
  /// Adds the micro-batch's mean loss to sums.totals.loss. scale multiplies the gradient.
  void loss(Sums& sums, float scale = 1, CallSite = {}) { network_->loss(sums, scale); }
  /// Stores or adds layer l's gradient: formed in fp32, rounded, padding 0. Call last layer first.
  void backward(int l, ConstView params, View grads, Write write, CallSite = {}) {
    network_->backward(l, params, grads, write);
  }

 private:
  const Architecture architecture_;
  Stream& stream_;
  const std::uint64_t seed_;
  const std::unique_ptr<Network> network_;
};
}  // namespace zero
