// SPDX-License-Identifier: MIT
// Collectives from point-to-point messages: MPI's own reductions add in another order for another
// size or N, and do not say which.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>

#include "comm/mpi_support.hpp"
#include "memory/error.hpp"
#include "run/session.hpp"

namespace zero {

namespace {

/// Part of a vector on its way to other ranks, or from one.
struct Outgoing {
  View part;
  std::vector<int> to;
};
struct Incoming {
  View part;
  int from;
};

/// Host memory through which a GPU's bytes pass, wave by wave: while one wave is exchanged, the
/// next is copied out and the one before it is copied in.
struct Staging {
  static constexpr std::int64_t bytes = std::int64_t{4} << 20;  // of a wave, one direction
  struct Wave {
    HostBuffer out{Device::cuda, bytes};
    HostBuffer in{Device::cuda, bytes};
    MomentPointer copied_out;
    MomentPointer copied_in;
  };
  std::array<Wave, 2> waves;
};

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(const Session& session)
      : Communicator(
            session.rank(), session.size(), mpi_library(), session.process_bytes_at_start()) {}

  void reserve(Dtype dtype, std::int64_t largest) override {
    Communicator::reserve(dtype, largest);
    if (current_device() == Device::cuda && size > 1) staging_ = std::make_unique<Staging>();
  }

  void reduce_scatter_mean(Stream& stream, View full, View shard, bool add) override {
    const Loan loan = lend_received(full, shard);
    const View received = places(loan, shard);
    if (is_its_mean(full, shard, add)) return;
    stream.run([=, this, &on = stream.kernels()] {
      const auto slice = [&](int of) { return full.part(of * shard.size, shard.size); };
      std::vector<Outgoing> outgoing;
      std::vector<Incoming> incoming;
      for (int peer : peers()) {
        const int place = peer < rank ? peer : peer - 1;
        outgoing.push_back({slice(peer), {peer}});
        incoming.push_back({received.part(place * shard.size, shard.size), peer});
      }
      exchange(on, outgoing, incoming, Collective::reduce_scatter);
      on.ordered_mean(slice(rank), rank, received, shard, add);
    });
  }

  void all_gather(Stream& stream, View full) override {
    expect(full.size % size == 0, "full holds one shard a rank");
    stream.run([=, this, &on = stream.kernels()] {
      const std::int64_t own = full.size / size;
      std::vector<Incoming> incoming;
      for (int from : peers()) incoming.push_back({full.part(from * own, own), from});
      exchange(on, {{full.part(rank * own, own), peers()}}, incoming, Collective::all_gather);
    });
  }

  Totals sum(Stream& stream, Sums& sums) override {
    Totals totals;
    stream.run([&, this, &on = stream.kernels()] {
      on.fetch(sums);
      std::vector<Totals> all(size);
      all[rank] = {sums.loss, sums.squares};
      for (int from : peers()) post_receive(&all[from], sizeof(Totals), from);
      for (int to : peers()) {
        post_send(&all[rank], sizeof(Totals), to);
        sent_.scalars += 2;
      }
      finish_requests();
      for (const Totals& of_rank : all) {
        totals.loss += of_rank.loss;
        totals.squares += of_rank.squares;
      }
    });
    stream.synchronise();
    return totals;
  }

  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values) override {
    return world_.gather(values);
  }

 private:
  /// All of `outgoing` to its ranks, and all of `incoming` from theirs. Parts are of one size.
  void exchange(Kernels& on,
                const std::vector<Outgoing>& outgoing,
                const std::vector<Incoming>& incoming,
                Collective collective) {
    if (incoming.empty()) return;
    if (incoming.front().part.device == Device::cuda) {
      return exchange_staged(on, outgoing, incoming, collective);
    }
    for (const auto& [part, from] : incoming) post_receive(part.data, part.bytes(), from);
    for (const auto& [part, ranks] : outgoing) {
      for (int to : ranks) send(part, part.data, to, collective);
    }
    finish_requests();
  }

  /// The same for parts in a GPU's memory. All ranks cut into the same waves, so a wave's messages
  /// find each other.
  void exchange_staged(Kernels& on,
                       const std::vector<Outgoing>& outgoing,
                       const std::vector<Incoming>& incoming,
                       Collective collective) {
    expect(staging_ != nullptr, "reserve() comes before the first collective");
    const std::int64_t width = bytes_of(incoming.front().part.dtype);
    const std::int64_t whole = incoming.front().part.size;
    const std::int64_t piece = Staging::bytes / width / (size - 1);  // elements of a part, a wave
    const std::int64_t waves = (whole + piece - 1) / piece;
    const auto wave_of = [&](std::int64_t w) -> Staging::Wave& { return staging_->waves[w % 2]; };
    const auto cut = [&](View part, std::int64_t w) {
      return part.part(w * piece, std::min(piece, whole - w * piece));
    };
    const auto place = [&](const HostBuffer& buffer, std::size_t i) {
      return buffer.data() + static_cast<std::int64_t>(i) * piece * width;
    };
    const auto copy_out = [&](std::int64_t w) {
      Staging::Wave& wave = wave_of(w);
      for (std::size_t i = 0; i < outgoing.size(); ++i) {
        const View part = cut(outgoing[i].part, w);
        on.copy_bytes(place(wave.out, i), part.data, part.bytes());
      }
      wave.copied_out = on.record();
    };
    copy_out(0);
    for (std::int64_t w = 0; w < waves; ++w) {
      if (w + 1 < waves) copy_out(w + 1);
      Staging::Wave& wave = wave_of(w);
      wait_for(wave.copied_in);  // of the wave that used this memory before
      for (std::size_t i = 0; i < incoming.size(); ++i) {
        post_receive(place(wave.in, i), cut(incoming[i].part, w).bytes(), incoming[i].from);
      }
      wait_for(wave.copied_out);
      for (std::size_t i = 0; i < outgoing.size(); ++i) {
        for (int to : outgoing[i].to) {
          send(cut(outgoing[i].part, w), place(wave.out, i), to, collective);
        }
      }
      finish_requests();
      for (std::size_t i = 0; i < incoming.size(); ++i) {
        const View part = cut(incoming[i].part, w);
        on.copy_bytes(part.data, place(wave.in, i), part.bytes());
      }
      wave.copied_in = on.record();
    }
  }

  /// The one place where tensor elements leave this rank, and where they are counted. `memory`:
  /// where MPI finds the part's bytes.
  void send(View part, const std::byte* memory, int to, Collective collective) {
    post_send(memory, part.bytes(), to);
    count(part, collective);
  }

  void finish_requests() {
    finish(requests_);
    requests_.clear();
  }

  /// MPI counts in int, so a long message goes in pieces of 1 GiB.
  static constexpr std::int64_t longest = std::int64_t{1} << 30;

  void post_send(const void* data, std::int64_t bytes, int to) {
    const auto* start = static_cast<const std::byte*>(data);
    for (std::int64_t at = 0; at < bytes; at += longest) {
      const auto count = static_cast<int>(std::min(longest, bytes - at));
      check_mpi(
          MPI_Isend(start + at, count, MPI_BYTE, to, 0, world_.comm(), &requests_.emplace_back()));
    }
  }

  void post_receive(void* data, std::int64_t bytes, int from) {
    auto* start = static_cast<std::byte*>(data);
    for (std::int64_t at = 0; at < bytes; at += longest) {
      const auto count = static_cast<int>(std::min(longest, bytes - at));
      check_mpi(MPI_Irecv(
          start + at, count, MPI_BYTE, from, 0, world_.comm(), &requests_.emplace_back()));
    }
  }

  MpiWorld world_;
  std::unique_ptr<Staging> staging_;  // on a GPU
  std::vector<MPI_Request> requests_;  // of the collective under way
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const Session& session) {
  return std::make_unique<MpiCommunicator>(session);
}

}  // namespace zero
