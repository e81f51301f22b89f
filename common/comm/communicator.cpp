// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"

#include <cstring>

#include "compute/generator.hpp"
#include "memory/throw_error.hpp"

namespace zero {
Communicator::Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device& device,
                           Dtype dtype, std::int64_t largest, Link link)
    : rank(rank),
      size(size),
      transport_(std::move(transport)),
      received_(device, Kind::communication, dtype, largest / size * (size - 1)),
      on_host_(make_kernels(device.host())),
      link_(link) {}

void Communicator::exchange(Kernels& on, Collective of, auto out_to, auto in_from) {
  std::vector<Peer> peers;
  for (int i = 1; i < size; ++i) {
    const int peer = (rank + i) % size;  // the next one first: so that not all send to rank 0
    const auto& [to, out, in] = peers.emplace_back(peer, out_to(peer), in_from(peer));
    if (of == Collective::sums)
      sent_.scalars += out.size / 2 - 1;  // the hash is no number of a step
    if (of >= Collective::sums) continue;  // of host values
    sent_.elements[of][here.phase] += out.size;
    sent_.padding += out.size - out.used;
  }
  if (peers.empty()) return;
  Stream::part({"messages", Work::Sort::wait}, [&] { transport_->exchange(on, of, peers); });
}

void Communicator::run(Stream& stream, const Work& work, std::int64_t bytes, auto collective) {
  history_ = mix(history_ ^ mix(std::hash<std::string>()(words(work))) ^ bytes);
  stream.run(work, [=, this, time = link_.time(bytes, size), &on = stream.kernels()] {
    if (time.count() > 0) {
      wait_for(on.record());  // this rank is there when what it sends is made
      gather(std::array<std::uint64_t, 1>());  // nothing leaves before the last rank is there
    }
    move_over("the link", time, on, [&] { collective(on); });
  });
}

void Communicator::reduce_scatter_mean(Stream& stream, View full, View own, Write write, CallSite) {
  expect(full.size == own.size * size, "full holds one part a rank");
  const Borrowed room = received_.borrow();
  expect(full.dtype == own.dtype && full.dtype == room.view().dtype,
         "full, the own part and the receive buffer have one dtype");
  // Alone, and in its place: it is the mean.
  if (size == 1 && write == Write::overwrite && full.data == own.data) return;
  const View others = room.view().part(0, full.size - own.size);  // in rank order
  run(stream, sending("reduce_scatter", full, own), full.bytes(), [=, this](Kernels& on) {
    if (!counts() && size > 1) {
      const View sum = others.part(0, own.size);
      transport_->reduce_scatter_sum(on, full, sum);
      on.divide(sum, size);
      return on.ordered_mean(sum, 0, sum.part(0, 0), own, write);  // of one: writes or adds
    }
    exchange(
        on, Collective::reduce_scatter, [&](int r) { return slice(full, r); },
        [&](int r) { return others.part((r < rank ? r : r - 1) * own.size, own.size); });
    on.ordered_mean(slice(full, rank), rank, others, own, write);
  });
}

void Communicator::all_gather(Stream& stream, View own, View full, CallSite) {
  expect(full.size == own.size * size, "full holds one part a rank");
  if (own.data != slice(full, rank).data) copy(stream, own, slice(full, rank));
  if (size == 1) return;
  run(stream, sending("all_gather", own, full), full.bytes(), [=, this](Kernels& on) {
    if (!counts()) return transport_->all_gather(on, slice(full, rank), full);
    exchange(
        on, Collective::all_gather, [&](int) { return slice(full, rank); },
        [&](int r) { return slice(full, r); });
  });
}

Totals Communicator::await_all_reduced(Stream& stream, Sums& sums, CallSite) {
  std::vector<std::uint64_t> all;
  const std::int64_t sent = 2 * (size - 1);
  const Work work{"sums", Work::Sort::message, -1, sent, sent * std::int64_t{sizeof(double)}};
  run(stream, work, size * sizeof(sums.totals), [&](Kernels& on) {
    on.fetch(sums);
    sums.totals.squares += sums.squares_on_host;
    const auto [loss, squares] = std::bit_cast<std::array<std::uint64_t, 2>>(sums.totals);
    all = gather(std::array{loss, squares, history_}, Collective::sums);
  });
  stream.synchronise();
  Totals totals;
  for (std::size_t i = 0; i < all.size(); i += 3) {
    if (all[i + 2] != all[2])
      throw_error(ExitCode::communication,
                  "rank {} has called other collectives than rank 0: every rank must call the same "
                  "ones in the same order",
                  i / 3);
    totals.loss += std::bit_cast<double>(all[i]);
    totals.squares += std::bit_cast<double>(all[i + 1]);
  }
  return totals;
}

std::vector<std::uint64_t> Communicator::gather(std::span<const std::uint64_t> values,
                                                Collective as) {
  const std::int64_t count = std::ssize(values);
  std::vector<std::uint64_t> all(count * size);
  std::ranges::copy(values, all.begin() + rank * count);
  const auto of = [&](int r) -> View {  // each as two fp32
    return {reinterpret_cast<std::byte*>(all.data() + r * count), 2 * count, 2 * count};
  };
  exchange(
      *on_host_, as, [&](int) { return of(rank); }, of);
  return all;
}

std::vector<std::string> Communicator::gather_texts(const std::string& mine) {
  const std::uint64_t length = mine.size();
  const std::vector<std::uint64_t> lengths = gather({&length, 1});
  const std::size_t room = std::ranges::max(lengths) / sizeof(length) + 1;
  std::vector<std::uint64_t> padded(room);
  std::memcpy(padded.data(), mine.data(), mine.size());
  const std::vector<std::uint64_t> all = gather(padded);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(&all[r * room]), lengths[r]);
  }
  return texts;
}
}  // namespace zero
