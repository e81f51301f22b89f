// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"

#include "memory/error.hpp"

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

void Communicator::reserve(Dtype dtype, std::int64_t largest) {
  received_.emplace(Kind::communication, dtype, largest / size * (size - 1));
}

Loan Communicator::lend_received(View full, View shard) const {
  expect(received_.has_value(), "reserve() comes before the first collective");
  expect(full.size == shard.size * size, "full holds one shard a rank");
  Loan loan = received_->borrow();
  expect(full.dtype == shard.dtype && full.dtype == loan.view().dtype,
         "full, shard and what was reserved have one dtype");
  return loan;
}

void Communicator::all_reduce_mean(Stream& stream, View full) {
  const std::int64_t own = full.size / size;
  reduce_scatter_mean(stream, full, full.part(rank * own, own));
  all_gather(stream, full);
}

}  // namespace zero
