// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "memory/error.hpp"

namespace zero {
namespace {
/// Host memory as a transport sees it: bytes are a multiple of 4.
View host_view(std::byte* data, std::int64_t bytes) {
  return {data, bytes / 4, bytes / 4, Dtype::fp32, Device::cpu};
}
}  // namespace

Communicator::Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device device,
                           Dtype dtype, std::int64_t largest)
    : rank(rank),
      size(size),
      transport_(std::move(transport)),
      received_(device, Kind::communication, dtype, largest / size * (size - 1)) {}

std::vector<int> Communicator::peers() const {
  std::vector<int> others;
  for (int i = 1; i < size; ++i) others.push_back((rank + i) % size);
  return others;
}

template <class Mine, class Theirs>
void Communicator::exchange(Kernels& on, Mine mine, Theirs theirs) {
  if (size == 1) return;
  std::vector<Part> outgoing, incoming;
  for (const int peer : peers()) {
    outgoing.push_back({mine(peer), peer});
    incoming.push_back({theirs(peer), peer});
  }
  transport_->exchange(on, outgoing, incoming);
}

void Communicator::reduce_scatter_mean(Stream& stream, View full, View shard, Write write) {
  expect(full.size == shard.size * size, "full holds one shard a rank");
  const Booking booking = received_.book();
  expect(full.dtype == shard.dtype && full.dtype == booking.view().dtype,
         "full, shard and the receive buffer have one dtype");
  const View received = booking.view().part(0, shard.size * (size - 1));
  // One rank alone would write what it reads.
  if (size == 1 && write == Write::over && full.data == shard.data) return;
  stream.run([=, this, &on = stream.kernels()] {
    task_is(fmt::format("reduce_scatter of layer {}", full.layer));
    if (!counts() && size > 1) {
      const View sum = received.part(0, shard.size);
      transport_->reduce_scatter_sum(on, full, sum);
      on.divide(sum, size);
      return on.ordered_mean(sum, 0, sum.part(0, 0), shard, write);  // of one: writes or adds
    }
    const auto slice = [&](int r) { return part_of(full, r); };
    exchange(
        on,
        [&](int peer) {
          count(slice(peer), Collective::reduce_scatter);
          return slice(peer);
        },
        [&](int peer) {
          return received.part((peer < rank ? peer : peer - 1) * shard.size, shard.size);
        });
    on.ordered_mean(slice(rank), rank, received, shard, write);
  });
}

void Communicator::all_gather(Stream& stream, View full) {
  expect(full.size % size == 0, "full holds one shard a rank");
  if (size == 1) return;
  stream.run([=, this, &on = stream.kernels()] {
    task_is(fmt::format("all_gather of layer {}", full.layer));
    if (!counts()) return transport_->all_gather(on, part_of(full, rank), full);
    exchange(
        on,
        [&](int) {
          count(part_of(full, rank), Collective::all_gather);
          return part_of(full, rank);
        },
        [&](int peer) { return part_of(full, peer); });
  });
}

void Communicator::all_reduce_mean(Stream& stream, View full) {
  reduce_scatter_mean(stream, full, part_of(full, rank));
  all_gather(stream, full);
}

Totals Communicator::sum(Stream& stream, Sums& sums) {
  std::vector<Totals> all(size);
  stream.run([&, this, &on = stream.kernels()] {
    task_is("the ranks' sums of loss and squares");
    on.fetch(sums);
    all[rank] = sums.totals;
    gather_host(on, reinterpret_cast<std::byte*>(all.data()), sizeof(Totals));
    sent_.scalars += 2 * (size - 1);
  });
  stream.synchronise();
  Totals totals;
  for (const Totals& of_rank : all) {
    totals.loss += of_rank.loss;
    totals.squares += of_rank.squares;
  }
  return totals;
}

std::vector<std::uint64_t> Communicator::gather(std::span<const std::uint64_t> values) {
  std::vector<std::uint64_t> all(values.size() * size);
  std::copy(values.begin(), values.end(), all.begin() + rank * std::ssize(values));
  const auto on = make_kernels(Device::cpu);
  gather_host(*on, reinterpret_cast<std::byte*>(all.data()),
              static_cast<std::int64_t>(values.size_bytes()));
  return all;
}

void Communicator::gather_host(Kernels& on, std::byte* all, std::int64_t bytes) {
  const auto of = [&](int r) { return host_view(all + r * bytes, bytes); };
  exchange(
      on, [&](int) { return of(rank); }, of);
}

void Communicator::count(View part, Collective collective) {
  const auto phase = static_cast<int>(current_phase);
  sent_.elements[static_cast<int>(collective)][phase] += part.size;
  sent_.padding += part.size - part.used;
}
}  // namespace zero
