// SPDX-License-Identifier: MIT
#include "train/mlp.hpp"

#include <cmath>

namespace zero {
Architecture architecture(const Options& options) {
  if (options.task == Task::toy) return {.widths = {128, 512, 10}, .bias = false, .relu = false};
  Architecture model;
  if (options.narrate > 0) {  // 6 + 6 parameters, 9 + 4, or 2
    model.widths = {2, 2, 2};
    if (options.narrate == 13) model.widths = {2, 3, 1};
    if (options.narrate == 2) model.widths = {1, 1};
    return model;
  }
  model.widths.assign(options.layers + 1, options.width);
  if (options.task == Task::mlp) return model;
  model.widths.back() = 256;
  model.classifier = true;
  model.last_scale = 0.1f;
  return model;
}

Layout layout_of(const Options& options, int rank, int ranks) {
  // A model that is narrated gets no padding for alignment.
  return Layout(architecture(options).sizes(), rank, ranks, options.narrate > 0 ? 1 : 8);
}

std::vector<std::int64_t> Architecture::sizes() const {
  std::vector<std::int64_t> sizes;
  for (int l = 0; l < layers(); ++l) sizes.push_back(size(l));
  return sizes;
}

Mlp::Mlp(const Options& options, Stream& stream)
    : model_(architecture(options)),
      stream_(stream),
      batch_(options.batch),
      seed_(options.seed),
      targets_(stream.device(), Kind::data, Dtype::fp32, options.batch * model_.targets()),
      live_(model_.widths.size()),
      live_deltas_(2) {
  const auto add = [&](std::vector<Scratch>& buffers, std::int64_t width) {
    buffers.emplace_back(stream.device(), Kind::activations, options.dtype, batch_ * width);
  };
  for (const std::int64_t width : model_.widths) add(activations_, width);
  for (int i = 0; i < 2; ++i) add(deltas_, std::ranges::max(model_.widths));
  stream.kernels().reserve_products(product_room_bytes);
}

void Mlp::initialise(View part) const {
  const int l = part.layer;
  expect(l >= 0, "what is initialised is a layer, or a part of one");
  const std::int64_t weights = model_.widths[l] * model_.widths[l + 1];
  const double bound = std::sqrt(6.0 / static_cast<double>(model_.widths[l]));
  const float last = l + 1 == model_.layers() ? model_.last_scale : 1.0f;
  const float scale = static_cast<float>(bound) * last;
  std::int64_t number = part.start;  // of the part's first element in the whole model
  for (int before = 0; before < l; ++before) number += model_.size(before);
  const Generator random(seed_, RandomStream::weights);
  stream_.run(work_on("initialise", part), [=, &on = stream_.kernels()] {
    // What lies with the host is made there, to the same bits.
    const auto host = part.place() == Place::host ? make_kernels(*part.device) : nullptr;
    (host ? *host : on).initialise(part, random, number, weights - part.start, scale);
  });
}

void Mlp::load(const Batch& batch) {
  const PhaseScope phase(Phase::load);
  live_[0] = activations_[0].borrow();
  const View inputs = live_[0];
  stream_.run(work_on("load", inputs), [=, &on = stream_.kernels(), targets = targets_.view()] {
    batch.data->load(on, batch.first, inputs, targets);
  });
}

void Mlp::forward(int l, View params) {
  live_[l + 1] = activations_[l + 1].borrow();
  stream_.run(
      work_on("forward", params),
      [=, &on = stream_.kernels(), shape = shape(l), x = live_[l].view(), y = live_[l + 1].view(),
       relu = relu(l)] { on.linear_forward(shape, x, params, y, relu); });
}

void Mlp::loss(Sums& sums, float scale) {
  for (int i = 0; i < 2; ++i) live_deltas_[i] = deltas_[i].borrow();
  const int last = model_.layers() - 1;
  const View outputs = live_[last + 1];
  const View delta = live_deltas_[last % 2].view().part(0, outputs.size);
  stream_.run(work_on("loss", outputs),
              [=, this, &on = stream_.kernels(), &sums, targets = targets_.view()] {
                if (model_.classifier) {
                  on.cross_entropy(outputs, targets, batch_, scale, delta, sums);
                } else {
                  on.squared_error(outputs, targets, scale, delta, sums);
                }
              });
}

void Mlp::backward(int l, View params, View grads, Write write) {
  const LinearShape layer = shape(l);
  const View x = live_[l], y = relu(l) ? live_[l + 1].view() : View{};
  const View dy = live_deltas_[l % 2].view().part(0, batch_ * layer.outputs);
  const View dx = live_deltas_[(l + 1) % 2].view().part(0, batch_ * layer.inputs);
  stream_.run(work_on("backward", grads), [=, &on = stream_.kernels()] {
    on.linear_backward_params(layer, y, dy, x, grads, write);
    if (l > 0) on.linear_backward_input(layer, dy, params, dx);
  });
  live_[l + 1].give_back();
  if (l > 0) return;
  live_[0].give_back();
  for (Borrowed& delta : live_deltas_) delta.give_back();
}
}  // namespace zero
