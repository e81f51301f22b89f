// SPDX-License-Identifier: MIT
// Collectives from point-to-point messages: MPI's own reductions add in another order for another
// size or N, and do not say which.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <optional>

#include "error.hpp"
#include "mpi_support.hpp"
#include "session.hpp"

namespace zero {

namespace {

std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, length);
  name = name.substr(0, name.find_first_of(",\n"));
  const std::string label = " Version:\t";  // MPICH Version:\t4.0.2
  const auto at = name.find(label);
  return at == std::string::npos
             ? name
             : fmt::format("{} {}", name.substr(0, at), name.substr(at + label.size()));
}

/// shard = mean of `sources` (in that order), or shard + mean, rounded as the header says.
template <class T>
void ordered_mean(std::span<const T* const> sources, std::span<T> shard, bool add) {
  constexpr std::size_t block = 1024;  // a block of sums stays in the first-level cache
  float sum[block];
  const auto ranks = static_cast<float>(sources.size());
  for (std::size_t start = 0; start < shard.size(); start += block) {
    const std::size_t count = std::min(block, shard.size() - start);
    for (std::size_t i = 0; i < count; ++i) sum[i] = widen(sources[0][start + i]);
    for (const T* source : sources.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i) sum[i] += widen(source[start + i]);
    }
    T* out = shard.data() + start;
    for (std::size_t i = 0; i < count; ++i) {
      store(out[i], sum[i] / ranks, add);
    }
  }
}

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(const Session& session)
      : Communicator(
            session.rank(), session.size(), library_name(), session.process_bytes_at_start()) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &ranks_));
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
  }

  ~MpiCommunicator() override { MPI_Comm_free(&ranks_); }

  void reserve(Dtype dtype, std::int64_t largest) override {
    received_.emplace(Kind::communication, dtype, largest / size * (size - 1));
  }

  void reduce_scatter_mean(Stream& stream, View full, View shard, bool add) override {
    expect(received_.has_value(), "reserve() comes before the first collective");
    expect(full.size == shard.size * size, "full holds one shard a rank");
    const Loan loan = received_->borrow();
    expect(full.dtype == shard.dtype && full.dtype == loan.view().dtype,
           "full, shard and what was reserved have one dtype");
    stream.run([=, this, received = loan.view().part(0, shard.size * (size - 1))] {
      for (int from = 0, i = 0; from < size; ++from) {
        if (from != rank) receive(received.part(i++ * shard.size, shard.size), from);
      }
      for (int to : peers())
        send(full.part(to * shard.size, shard.size), to, Collective::reduce_scatter);
      finish(requests_);
      requests_.clear();
      add_in_rank_order(full.part(rank * shard.size, shard.size), received, shard, add);
    });
  }

  void all_gather(Stream& stream, View full) override {
    expect(full.size % size == 0, "full holds one shard a rank");
    stream.run([=, this] {
      const std::int64_t own = full.size / size;
      for (int from : peers()) receive(full.part(from * own, own), from);
      for (int to : peers()) send(full.part(rank * own, own), to, Collective::all_gather);
      finish(requests_);
      requests_.clear();
    });
  }

  Totals sum(Stream& stream, const Sums& sums) override {
    Totals totals;
    stream.run([&, this] {
      std::vector<Sums> all(size);
      all[rank] = sums;
      for (int from : peers()) post_receive(&all[from], sizeof(Sums), from);
      for (int to : peers()) {
        post_send(&all[rank], sizeof(Sums), to);
        sent_.scalars += 2;
      }
      finish(requests_);
      requests_.clear();
      for (const Sums& of_rank : all) {
        totals.loss += of_rank.loss;
        totals.squares += of_rank.squares;
      }
    });
    stream.synchronise();
    return totals;
  }

  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values) override {
    const auto count = static_cast<int>(values.size());
    std::vector<std::uint64_t> all(values.size() * size);
    MPI_Request request;
    check_mpi(MPI_Iallgather(
        values.data(), count, MPI_UINT64_T, all.data(), count, MPI_UINT64_T, ranks_, &request));
    finish({&request, 1});
    return all;
  }

 private:
  /// The other ranks, beginning with the next: so that not all send to rank 0 first.
  std::vector<int> peers() const {
    std::vector<int> others;
    for (int i = 1; i < size; ++i) others.push_back((rank + i) % size);
    return others;
  }

  /// The one place where tensor elements leave this rank, and where they are counted.
  void send(View part, int to, Collective collective) {
    post_send(part.data, part.bytes(), to);
    const auto phase = static_cast<int>(current_phase);
    sent_.elements[static_cast<int>(collective)][phase] += part.size;
    sent_.padding += part.size - part.used;
  }

  void receive(View part, int from) { post_receive(part.data, part.bytes(), from); }

  /// MPI counts in int, so a long message goes in pieces of 1 GiB.
  static constexpr std::int64_t piece = std::int64_t{1} << 30;

  void post_send(const void* data, std::int64_t bytes, int to) {
    const auto* start = static_cast<const std::byte*>(data);
    for (std::int64_t at = 0; at < bytes; at += piece) {
      const auto count = static_cast<int>(std::min(piece, bytes - at));
      check_mpi(MPI_Isend(start + at, count, MPI_BYTE, to, 0, ranks_, &requests_.emplace_back()));
    }
  }

  void post_receive(void* data, std::int64_t bytes, int from) {
    auto* start = static_cast<std::byte*>(data);
    for (std::int64_t at = 0; at < bytes; at += piece) {
      const auto count = static_cast<int>(std::min(piece, bytes - at));
      check_mpi(MPI_Irecv(start + at, count, MPI_BYTE, from, 0, ranks_, &requests_.emplace_back()));
    }
  }

  /// received: the other ranks' parts, in rank order, without the own one.
  void add_in_rank_order(View own, View received, View shard, bool add) const {
    with_type(shard.dtype, [&]<class T>(T) {
      std::vector<const T*> sources;
      for (int from = 0, i = 0; from < size; ++from) {
        const View part = from == rank ? own : received.part(i++ * shard.size, shard.size);
        sources.push_back(part.as<T>().data());
      }
      ordered_mean<T>(sources, shard.as<T>(), add);
    });
  }

  MPI_Comm ranks_ = MPI_COMM_NULL;
  std::optional<Scratch> received_;
  std::vector<MPI_Request> requests_;  // of the collective under way
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const Session& session) {
  return std::make_unique<MpiCommunicator>(session);
}

}  // namespace zero
