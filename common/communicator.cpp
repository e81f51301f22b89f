// SPDX-License-Identifier: MIT
#include "communicator.hpp"

namespace zero {

std::vector<std::uint64_t> Ranks::gather(std::span<const std::uint64_t> values) {
  return {values.begin(), values.end()};
}

std::vector<int> Ranks::peers() const {
  std::vector<int> others;
  for (int i = 1; i < size; ++i) others.push_back((rank + i) % size);
  return others;
}

void Ranks::count(View part, Collective collective) {
  const auto phase = static_cast<int>(current_phase);
  sent_.elements[static_cast<int>(collective)][phase] += part.size;
  sent_.padding += part.size - part.used;
}

void Communicator::all_reduce_mean(Stream& stream, View full) {
  const std::int64_t own = full.size / size;
  reduce_scatter_mean(stream, full, full.part(rank * own, own));
  all_gather(stream, full);
}

}  // namespace zero
