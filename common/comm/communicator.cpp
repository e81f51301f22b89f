// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"

#include <cstring>

#include "compute/generator.hpp"
#include "memory/throw_error.hpp"

namespace zero {
namespace {
/// Returns the values as two fp32 each, as a Transport moves no 64-bit type; empty if not `sent`.
View view_of(std::span<std::uint64_t> values, bool sent = true) {
  const std::int64_t size = sent ? 2 * std::ssize(values) : 0;
  return {reinterpret_cast<std::byte*>(values.data()), size, size};
}
}  // namespace

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
    const int peer = (rank + i) % size;  // each rank begins with its next, not all with rank 0
    peers.push_back({peer, out_to(peer), in_from(peer)});
    const ConstView& out = peers.back().out;
    if (of == Collective::sums) sent_.scalars += out.size / 2 - 1;  // all but history_
    if (moves_host_values(of)) continue;
    sent_.elements[of][here.phase] += out.size;
    sent_.padding += out.size - out.used;
  }
  if (peers.empty()) return;
  Stream::part({"messages", Work::Type::wait}, [&] { transport_->exchange(on, of, peers); });
}

void Communicator::run(Stream& stream, const Work& work, std::int64_t bytes, auto collective) {
  history_ = mix(history_ ^ mix(std::hash<std::string>()(describe(work))) ^ bytes);
  stream.run(work, [=, this, time = link_.time(bytes, size), &on = stream.kernels()] {
    if (time.count() > 0) {
      wait_for(on.record());  // until the elements that this rank sends are computed
      gather(std::array<std::uint64_t, 1>());  // until all ranks are here: then the link starts
    }
    move_over("the link", time, on, [&] { collective(on); });
  });
}

void Communicator::reduce_scatter_mean(Stream& stream, ConstView full, View own, Write write,
                                       CallSite) {
  expect(full.size == own.size * size, "full has one equal part for each rank");
  // Borrowed until return, for the ledger. The task may use it later, as no other collective runs.
  const Borrowed room = received_.borrow();
  expect(full.dtype == own.dtype && full.dtype == room.view().dtype,
         "full, the own part and the receive buffer have one dtype");
  // With one rank and in place, the input is the mean.
  if (size == 1 && write == Write::overwrite && full.data == own.data) return;
  const View others = room.view().part(0, full.size - own.size);  // in rank order
  run(stream, sending("reduce_scatter", full, own), full.bytes(),
      [=, this](Kernels& on) { reduce_scatter(on, full, others, own, write); });
}

void Communicator::reduce_scatter(Kernels& on, ConstView full, View others, View own, Write write) {
  exchange(
      on, Collective::reduce_scatter, [&](int r) { return slice(full, r); },
      [&](int r) { return others.part((r < rank ? r : r - 1) * own.size, own.size); });
  on.ordered_mean(slice(full, rank), rank, others, own, write);
}

void Communicator::all_gather(Stream& stream, ConstView own, View full, CallSite) {
  expect(full.size == own.size * size, "full has one equal part for each rank");
  if (own.data != slice(full, rank).data) copy(stream, own, slice(full, rank));
  if (size == 1) return;
  run(stream, sending("all_gather", own, full), full.bytes(),
      [=, this](Kernels& on) { gather_parts(on, full); });
}

void Communicator::gather_parts(Kernels& on, View full) {
  exchange(
      on, Collective::all_gather, [&](int) { return slice(full, rank); },
      [&](int r) { return slice(full, r); });
}

Totals Communicator::await_all_reduced(Stream& stream, Sums& sums, CallSite) {
  std::vector<std::uint64_t> all;
  const std::int64_t sent = 2 * (size - 1);  // history_ is not counted
  const Work work{"sums", Work::Type::message, -1, sent, sent * std::int64_t{sizeof(double)}};
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
  const auto values_of = [&](int r) { return view_of(std::span(all).subspan(r * count, count)); };
  exchange(
      *on_host_, as, [&](int) { return values_of(rank); }, values_of);
  return all;
}

std::vector<std::string> Communicator::gather_texts(const std::string& mine, bool everywhere) {
  const std::uint64_t length = mine.size();
  const std::vector<std::uint64_t> lengths = gather({&length, 1});
  const auto receives = [=](int r) { return everywhere || r == 0; };
  std::vector<std::vector<std::uint64_t>> padded(size);  // each rank's text, in whole 64-bit values
  for (int r = 0; r < size; ++r) {
    if (r == rank || receives(rank)) padded[r].resize(lengths[r] / sizeof(length) + 1);
  }
  std::memcpy(padded[rank].data(), mine.data(), mine.size());
  exchange(
      *on_host_, Collective::gather, [&](int r) { return view_of(padded[rank], receives(r)); },
      [&](int r) { return view_of(padded[r], receives(rank)); });
  std::vector<std::string> texts;
  for (int r = 0; r < size && receives(rank); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(padded[r].data()), lengths[r]);
  }
  return texts;
}
}  // namespace zero
