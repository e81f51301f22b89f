// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"

#include <cstring>

#include "memory/error.hpp"

namespace zero {
Communicator::Communicator(int rank, int size, std::unique_ptr<Transport> transport, Device& device,
                           Dtype dtype, std::int64_t largest, Link link)
    : rank(rank),
      size(size),
      transport_(std::move(transport)),
      // Of each other rank a piece to add and one that is on its way.
      received_(
          device, Kind::communication, dtype,
          (size - 1) * std::min(largest / size, 2 * piece_elements(device.type, dtype, largest))),
      on_host_(make_kernels(device.host())),
      link_(link) {}

void Communicator::start(Kernels& on, Collective of, const std::vector<Part>& outgoing,
                         const std::vector<Part>& incoming) {
  if (size == 1) return;
  for (const auto& [elements, peer] : outgoing) {
    if (of == Collective::sums) sent_.scalars += elements.size / 2;  // each as two fp32
    if (of >= Collective::sums) continue;  // of host values
    sent_.elements[of][here.phase] += elements.size;
    sent_.padding += elements.size - elements.used;
  }
  transport_->start(on, of, outgoing, incoming);
}

void Communicator::finish() {
  if (size == 1) return;
  Stream::part({"messages", Work::Sort::wait}, [this] { transport_->finish(); });
}

void Communicator::run(Stream& stream, const Work& work, std::int64_t bytes, auto collective) {
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
  const std::int64_t piece = piece_elements(full.device_type(), full.dtype, own.size);
  View received = room.view();
  received.layer = full.layer;
  // Alone, and in its place: it is the mean.
  if (size == 1 && write == Write::overwrite && full.data == own.data) return;
  const auto collective = [=, this](Kernels& on) {
    if (!counts() && size > 1) {
      const View sum = received.part(0, own.size);
      transport_->reduce_scatter_sum(on, full, sum);
      on.divide(sum, size);
      return on.ordered_mean(sum, 0, sum.part(0, 0), own, write);  // of one: writes or adds
    }
    // Elements [at, at + piece) of a part, and the other ranks', which lie one behind the other.
    const auto cut = [&](View part, std::int64_t at) {
      return part.part(at, std::min(piece, part.size - at));
    };
    const auto others = [&](std::int64_t at) {
      return received.part(at / piece % 2 * (size - 1) * piece, (size - 1) * cut(own, at).size);
    };
    const auto incoming = [&](std::int64_t at) {
      const std::int64_t count = cut(own, at).size;
      return parts([&](int peer) {
        return others(at).part((peer < rank ? peer : peer - 1) * count, count);
      });
    };
    // All pieces leave at once: else the others would wait for the sums of a rank without a core.
    std::vector<Part> outgoing;
    for (std::int64_t at = 0; at < own.size; at += piece) {
      const auto pieces = parts([&](int peer) { return cut(slice(full, peer), at); });
      outgoing.insert(outgoing.end(), pieces.begin(), pieces.end());
    }
    const auto of = Collective::reduce_scatter;
    start(on, of, outgoing, incoming(0));
    for (std::int64_t at = 0; at < own.size; at += piece) {
      if (at + piece < own.size) start(on, of, {}, incoming(at + piece));
      finish();  // with piece `at`, begun a turn before
      on.ordered_mean(cut(slice(full, rank), at), rank, others(at), cut(own, at), write);
    }
  };
  run(stream, sending("reduce_scatter", full, own), full.bytes(), collective);
}

void Communicator::all_gather(Stream& stream, View own, View full, CallSite) {
  expect(full.size == own.size * size, "full holds one part a rank");
  if (own.data != slice(full, rank).data) copy(stream, own, slice(full, rank));
  if (size == 1) return;
  run(stream, sending("all_gather", own, full), full.bytes(), [=, this](Kernels& on) {
    if (!counts()) return transport_->all_gather(on, slice(full, rank), full);
    start(on, Collective::all_gather, parts([&](int) { return slice(full, rank); }),
          parts([&](int peer) { return slice(full, peer); }));
    finish();
  });
}

Totals Communicator::await_all_reduced(Stream& stream, Sums& sums, CallSite) {
  std::vector<std::uint64_t> all;
  const std::int64_t sent = 2 * (size - 1);
  const Work work{"sums", Work::Sort::message, -1, sent, sent * std::int64_t{sizeof(double)}};
  run(stream, work, size * sizeof(sums.totals), [&](Kernels& on) {
    on.fetch(sums);
    all = gather(std::bit_cast<std::array<std::uint64_t, 2>>(sums.totals), Collective::sums);
  });
  stream.synchronise();
  Totals totals;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    totals.loss += std::bit_cast<double>(all[i]);
    totals.squares += std::bit_cast<double>(all[i + 1]);
  }
  return totals;
}

std::vector<std::uint64_t> Communicator::gather(std::span<const std::uint64_t> values,
                                                Collective as) {
  const std::int64_t count = std::ssize(values);
  std::vector<std::uint64_t> all(count * size);
  std::copy(values.begin(), values.end(), all.begin() + rank * count);
  const auto of = [&](int r) -> View {  // each as two fp32
    return {reinterpret_cast<std::byte*>(all.data() + r * count), 2 * count, 2 * count};
  };
  if (size == 1) return all;
  start(*on_host_, as, parts([&](int) { return of(rank); }), parts(of));
  finish();
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
