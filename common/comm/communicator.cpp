// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"

#include <fmt/format.h>

#include "memory/error.hpp"

namespace zero {
Communicator::Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device device,
                           Dtype dtype, std::int64_t largest)
    : rank(rank),
      size(size),
      transport_(std::move(transport)),
      received_(device, Kind::communication, dtype, largest / size * (size - 1)) {}

template <class Mine, class Theirs>
void Communicator::exchange(Kernels& on, std::optional<Collective> collective, Mine mine,
                            Theirs theirs) {
  if (size == 1) return;
  std::vector<Part> outgoing, incoming;
  for (int i = 1; i < size; ++i) {
    const int peer = (rank + i) % size;  // the next one first: so that not all send to rank 0 first
    const View part = mine(peer);
    outgoing.push_back({part, peer});
    incoming.push_back({theirs(peer), peer});
    if (!collective) continue;
    sent_.elements[static_cast<int>(*collective)][static_cast<int>(current_phase)] += part.size;
    sent_.padding += part.size - part.used;
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
    const auto slice_of = [&](int r) { return slice(full, r); };
    exchange(on, Collective::reduce_scatter, slice_of, [&](int peer) {
      return received.part((peer < rank ? peer : peer - 1) * shard.size, shard.size);
    });
    on.ordered_mean(slice(full, rank), rank, received, shard, write);
  });
}

void Communicator::all_gather(Stream& stream, View full) {
  expect(full.size % size == 0, "full holds one shard a rank");
  if (size == 1) return;
  stream.run([=, this, &on = stream.kernels()] {
    task_is(fmt::format("all_gather of layer {}", full.layer));
    if (!counts()) return transport_->all_gather(on, slice(full, rank), full);
    const auto slice_of = [&](int r) { return slice(full, r); };
    exchange(
        on, Collective::all_gather, [&](int) { return slice_of(rank); }, slice_of);
  });
}

Totals Communicator::sum(Stream& stream, Sums& sums) {
  std::vector<std::uint64_t> all;
  stream.run([&, this, &on = stream.kernels()] {
    task_is("the ranks' sums of loss and squares");
    on.fetch(sums);
    all = gather(std::bit_cast<std::array<std::uint64_t, 2>>(sums.totals));
    sent_.scalars += 2 * (size - 1);
  });
  stream.synchronise();
  Totals totals;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    totals.loss += std::bit_cast<double>(all[i]);
    totals.squares += std::bit_cast<double>(all[i + 1]);
  }
  return totals;
}

std::vector<std::uint64_t> Communicator::gather(std::span<const std::uint64_t> values) {
  const std::int64_t count = std::ssize(values);
  std::vector<std::uint64_t> all(count * size);
  std::copy(values.begin(), values.end(), all.begin() + rank * count);
  const auto of = [&](int r) -> View {  // each as two fp32
    return {reinterpret_cast<std::byte*>(all.data() + r * count), 2 * count, 2 * count};
  };
  exchange(
      *make_kernels(Device::cpu), {}, [&](int) { return of(rank); }, of);
  return all;
}
}  // namespace zero
