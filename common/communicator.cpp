// SPDX-License-Identifier: MIT
#include "communicator.hpp"

namespace zero {

std::vector<std::uint64_t> Ranks::gather(std::span<const std::uint64_t> values) {
  return {values.begin(), values.end()};
}

void Communicator::all_reduce_mean(Stream& stream, View full) {
  const std::int64_t own = full.size / size;
  reduce_scatter_mean(stream, full, full.part(rank * own, own));
  all_gather(stream, full);
}

}  // namespace zero
