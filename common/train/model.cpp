// SPDX-License-Identifier: MIT
#include "train/model.hpp"

#include <numeric>

#include "train/llama.hpp"
#include "train/mlp.hpp"

namespace zero {
std::int64_t Parameter::size() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

std::int64_t Architecture::size(int l) const {
  std::int64_t size = 0;
  for (const Parameter& tensor : layers[l]) size += tensor.size();
  return size;
}

std::vector<std::int64_t> Architecture::sizes() const {
  std::vector<std::int64_t> sizes;
  for (int l = 0; l < std::ssize(layers); ++l) sizes.push_back(size(l));
  return sizes;
}

Architecture architecture(const Options& options) {
  return options.task == Task::llama ? llama_architecture(options) : mlp_architecture(options);
}

Layout layout_of(const Options& options, int rank, int ranks) {
  return Layout(architecture(options).sizes(), rank, ranks, options.align);
}

namespace {
std::unique_ptr<Network> make_network(const Options& options, Stream& stream) {
  if (options.task == Task::llama) return std::make_unique<Llama>(options, stream);
  return std::make_unique<Mlp>(options, stream);
}
}  // namespace

Model::Model(const Options& options, Stream& stream)
    : architecture_(architecture(options)),
      stream_(stream),
      seed_(options.seed),
      network_(make_network(options, stream)) {
  stream.kernels().reserve_products(product_room_bytes);
}

void Model::initialise(View part, CallSite) const {
  const int l = part.layer;
  expect(l >= 0, "what is initialised is a layer, or a part of one");
  std::int64_t number = 0;  // index of the layer's first parameter in the whole model
  for (int before = 0; before < l; ++before) number += architecture_.size(before);
  const Generator random(seed_, RandomStream::weights);
  stream_.run(work_on("initialise", {}, {part}), [=, this, &on = stream_.kernels()] {
    // A part in the host's memory is computed by the CPU, with the same bits.
    const auto host = part.place() == Place::host ? make_kernels(*part.device) : nullptr;
    std::int64_t start = 0;  // position of the next tensor within the layer
    const auto fill = [&](std::int64_t size, float scale, float offset) {
      const std::int64_t from = std::max(part.start, start);
      start += size;
      const std::int64_t to = std::min(part.start + part.size, start);
      if (from >= to) return;
      const View some = part.part(from - part.start, to - from);
      (host ? *host : on).initialise(some, random, number + from, scale, offset);
    };
    for (const Parameter& each : architecture_.layers[l]) {
      fill(each.size(), each.scale, each.offset);
    }
    fill(part.start + part.size - start, 0, 0);  // padding
  });
}
}  // namespace zero
