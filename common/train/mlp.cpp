// SPDX-License-Identifier: MIT
#include "train/mlp.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "train/step.hpp"

namespace zero {
namespace {
MlpShape shape_of(const Options& options) {
  if (options.task == Task::toy) return {.widths = {128, 512, 10}, .bias = false, .relu = false};
  MlpShape model;
  model.widths.assign(options.layers + 1, options.width);
  if (options.task == Task::mlp || options.task == Task::tiny) return model;
  model.widths.back() = 256;
  model.classifier = true;
  model.last_scale = 0.1f;  // text: the loss begins near ln 256, that of 256 equally likely bytes
  return model;
}
}  // namespace

Architecture mlp_architecture(const Options& options) {
  const MlpShape shape = shape_of(options);
  const auto& widths = shape.widths;
  const std::int64_t w = bytes_of(options.dtype), batch = options.batch;
  Architecture model{.inputs = widths.front(),
                     .targets = shape.targets(),
                     .description = fmt::to_string(widths[0]),
                     .loaded = w * batch * widths.front()};  // the inputs
  for (int l = 0; l < shape.layers(); ++l) {
    const std::int64_t inputs = widths[l], outputs = widths[l + 1];
    model.description += fmt::format(" -> {}", outputs);
    const double bound = std::sqrt(6.0 / static_cast<double>(inputs));
    const float last = l + 1 == shape.layers() ? shape.last_scale : 1.0f;
    model.layers.push_back({{.name = fmt::format("layers.{}.weight", l),
                             .shape = {outputs, inputs},
                             .scale = static_cast<float>(bound) * last}});
    if (!shape.bias) continue;
    model.layers[l].push_back({.name = fmt::format("layers.{}.bias", l), .shape = {outputs}});
  }
  model.description += shape.bias ? " with biases" : " without biases";
  const std::int64_t total = std::reduce(widths.begin(), widths.end());
  const std::int64_t widest = std::ranges::max(widths);  // both buffers of gradients have it
  model.activations = {w * batch * (total + 2 * widest),
                       fmt::format("{} x {} x ({} + 2 x {})", w, batch, grouped(total), widest)};
  model.data = {4 * batch * model.targets, fmt::format("4 x {} x {}", batch, model.targets)};
  return model;
}

Mlp::Mlp(const Options& options, Stream& stream)
    : stream_(stream),
      shape_(shape_of(options)),
      batch_(options.batch),
      targets_(stream.device(), Kind::data, Dtype::fp32, batch_ * shape_.targets()),
      live_(shape_.widths.size()),
      live_grad_outputs_(2) {
  const auto add = [&](std::deque<Scratch>& buffers, std::int64_t width) {
    buffers.emplace_back(stream.device(), Kind::activations, options.dtype, batch_ * width);
  };
  for (const std::int64_t width : shape_.widths) add(activations_, width);
  for (int i = 0; i < 2; ++i) add(grad_outputs_, std::ranges::max(shape_.widths));
}

void Mlp::load(const Batch& batch) {
  const PhaseScope phase(Phase::load);
  live_[0] = activations_[0].borrow();
  const View inputs = live_[0];
  stream_.run(work_on("load", {}, {inputs, targets_.view()}),
              [=, &on = stream_.kernels(), targets = targets_.view()] {
                batch.data->load(on, batch.first, inputs, targets);
              });
}

void Mlp::forward(int l, ConstView params) {
  live_[l + 1] = activations_[l + 1].borrow();
  const View x = live_[l], y = live_[l + 1];
  Work work = work_on("forward", {params}, {});  // for traces: params' layer and size, result y
  work.writes = {y};
  stream_.run(work, [=, &on = stream_.kernels(), shape = shape(l), relu = relu(l)] {
    on.linear_forward(shape, x, params, y, relu);
  });
}

void Mlp::loss(Sums& sums, float scale) {
  for (int i = 0; i < 2; ++i) live_grad_outputs_[i] = grad_outputs_[i].borrow();
  const int last = shape_.layers() - 1;
  const ConstView outputs = live_[last + 1];
  const View grad_output = live_grad_outputs_[last % 2].view().part(0, outputs.size);
  stream_.run(work_on("loss", {outputs}, {grad_output}),
              [=, this, &on = stream_.kernels(), &sums, targets = targets_.view()] {
                if (shape_.classifier) {
                  on.cross_entropy(outputs, targets, batch_, scale, grad_output, sums);
                } else {
                  on.squared_error(outputs, targets, scale, grad_output, sums);
                }
              });
}

void Mlp::backward(int l, ConstView params, View grads, Write write) {
  const LinearShape layer = shape(l);
  const ConstView x = live_[l], y = relu(l) ? live_[l + 1].view() : View{};
  const View dy = live_grad_outputs_[l % 2].view().part(0, batch_ * layer.outputs);
  const View dx = live_grad_outputs_[(l + 1) % 2].view().part(0, batch_ * layer.inputs);
  stream_.run(work_on("backward", {params}, {grads}), [=, &on = stream_.kernels()] {
    on.linear_backward_params(layer, y, dy, x, grads, write);  // also takes dy through the ReLU
    if (l > 0) on.linear_backward_input(layer, dy, params, dx);
  });
  live_[l + 1].give_back();  // only books: the memory stays, and its next user waits on stream_
  if (l > 0) return;
  live_[0].give_back();
  for (Borrowed& grad_output : live_grad_outputs_) grad_output.give_back();
}
}  // namespace zero
