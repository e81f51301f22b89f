// SPDX-License-Identifier: MIT
// A fingerprint of the master parameters that does not depend on N, on the layout or on the order.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include "compute/generator.hpp"
#include "memory/layout.hpp"

namespace zero {
/// By layer: the sum, mod 2^64, of mix(mix(global element number) ^ bits) over the elements that
/// one rank holds.
struct LayerDigests {
  std::vector<std::uint64_t> layers;
  bool replicated = false;  // every rank holds all of every layer; else the ranks' sums add up
};

/// Waits for the trainer's work first.
template <class Trainer> LayerDigests layer_digests(Trainer& trainer, const Layout& layout) {
  trainer.synchronise();
  LayerDigests digests;
  for (int l = 0; l < layout.layers(); ++l) {
    const auto slice = trainer.state(l);
    const OnHost host(slice.weights);
    const auto weights = host.template as<float>();
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < slice.weights.used; ++i) {
      const std::uint64_t number = layout.layer_start(l) + slice.weights.start + i;
      sum += mix(mix(number) ^ std::bit_cast<std::uint32_t>(weights[i]));
    }
    digests.layers.push_back(sum);
    digests.replicated = slice.weights.size == layout.layer_size(l);
  }
  return digests;
}
}  // namespace zero
