// SPDX-License-Identifier: MIT
// Collectives between GPUs. `ordered`: sends and receives by NCCL, sums by our own kernel in rank
// order, so that the bits are those of every other communicator. `native`: NCCL's own collectives.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <exception>
#include <mutex>
#include <thread>

#include "comm/mpi_support.hpp"
#include "comm/nccl_patience.hpp"
#include "memory/error.hpp"
#include "run/session.hpp"

namespace zero {

namespace {

using Clock = std::chrono::steady_clock;

Clock::duration patience = std::chrono::minutes(5);

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

ncclDataType_t type_of(Dtype dtype) {
  constexpr ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
  return types[static_cast<int>(dtype)];
}

/// NCCL's own communicator, made without blocking so that it can be given up at any time. Safe to
/// use from several threads: one puts work on a stream while another waits and watches.
class NcclHandle {
 public:
  NcclHandle(const Session& session, const MpiWorld& world)
      : rank_(session.rank()),
        ranks_(session.size()) {
    ncclUniqueId id{};
    if (rank_ == 0) check(ncclGetUniqueId(&id));
    MPI_Request request;
    check_mpi(MPI_Ibcast(&id, sizeof(id), MPI_BYTE, 0, world.comm(), &request));
    finish({&request, 1});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(&comm_, ranks_, id, rank_, &config));
    settle();
    set_watch([this](Clock::duration waited) { watch(waited); });
  }

  ~NcclHandle() {
    set_watch({});
    if (!comm_) return;
    // When this rank fails, the others may never come to the end.
    if (std::uncaught_exceptions() == 0 && finalised()) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }

  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  /// Calls put(comm) as one group: all of its operations begin together. Returns when they lie on
  /// their stream.
  template <class Put>
  void group(Put put) {
    {
      const std::lock_guard lock(mutex_);
      expect_alive();
      check(ncclGroupStart());
      try {
        put(comm_);
      } catch (...) {
        ncclGroupEnd();  // else all that this thread asks of NCCL from now on would wait for it
        throw;
      }
      check(ncclGroupEnd());
    }
    settle();
  }

 private:
  bool finalised() const {
    ncclResult_t state = ncclCommFinalize(comm_);
    for (const auto start = Clock::now(); state == ncclInProgress;) {
      if (Clock::now() - start > patience) return false;
      std::this_thread::yield();
      if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess;
  }

  void expect_alive() const {
    if (comm_) return;
    throw Error(ExitCode::communication, "NCCL was given up after a failure");
  }

  void check(ncclResult_t code,
             std::source_location where = std::source_location::current()) const {
    if (code == ncclSuccess || code == ncclInProgress) return;
    throw Error(ExitCode::communication,
                fmt::format("{}: NCCL: {}: {}",
                            where.function_name(),
                            ncclGetErrorString(code),
                            ncclGetLastError(comm_)));
  }

  /// Waits until what was begun without blocking is under way.
  void settle() {
    for (const auto start = Clock::now(); look(Clock::now() - start) == ncclInProgress;) {
      if (Stream::cancelled()) throw Error(ExitCode::communication, "stopped waiting for NCCL");
      std::this_thread::yield();
    }
  }

  void watch(Clock::duration waited) { look(waited); }

  /// Throws Error (communication), and gives NCCL up, when it has failed or been too slow.
  ncclResult_t look(Clock::duration waited) {
    const std::lock_guard lock(mutex_);
    expect_alive();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress) {
      const std::string words = ncclGetLastError(comm_);
      give_up();
      // Whoever failed first is about to say why and to end the job.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      throw Error(ExitCode::communication,
                  fmt::format("NCCL: {}: {}", ncclGetErrorString(state), words));
    }
    if (waited > patience) {
      give_up();
      throw Error(ExitCode::communication,
                  fmt::format("NCCL: rank {} of {} has waited {} s for its GPU: a step takes that "
                              "long, or another rank is stuck or gone",
                              rank_,
                              ranks_,
                              std::chrono::duration_cast<std::chrono::seconds>(waited).count()));
    }
    return state;
  }

  /// What NCCL has put on streams ends; without that, nobody could even free memory.
  void give_up() {
    ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  int rank_;
  int ranks_;
  std::mutex mutex_;  // guards comm_
  ncclComm_t comm_ = nullptr;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const Session& session, Reduce reduce)
      : Communicator(session.rank(),
                     session.size(),
                     fmt::format("{}, {}", nccl_version(), mpi_library()),
                     session.process_bytes_at_start()),
        native_(reduce == Reduce::native),
        totals_(Device::cuda, size * bytes_of_sums),
        nccl_(session, world_) {
    expect(size <= most_gpu_ranks, "no more ranks than Sums have room for");
  }

  void reduce_scatter_mean(Stream& stream, View full, View shard, bool add) override {
    const Loan loan = lend_received(full, shard);
    const View received = places(loan, shard);
    if (is_its_mean(full, shard, add)) return;
    stream.run([=, this, &on = stream.kernels()] {
      if (native_ && size > 1) {
        reduce_scatter_natively(on, full, received.part(0, shard.size), shard, add);
      } else {
        reduce_scatter_in_order(on, full, received, shard, add);
      }
    });
  }

  void all_gather(Stream& stream, View full) override {
    expect(full.size % size == 0, "full holds one shard a rank");
    if (size == 1) return;
    stream.run([=, this, &on = stream.kernels()] {
      const std::int64_t own = full.size / size;
      const View mine = full.part(rank * own, own);
      const auto queue = static_cast<cudaStream_t>(on.queue());
      const ncclDataType_t type = type_of(full.dtype);
      nccl_.group([&](ncclComm_t comm) {
        if (native_) return check(ncclAllGather(mine.data, full.data, own, type, comm, queue));
        for (int peer : peers()) {
          check(ncclSend(mine.data, own, type, peer, comm, queue));
          count(mine, Collective::all_gather);
          check(ncclRecv(full.part(peer * own, own).data, own, type, peer, comm, queue));
        }
      });
    });
  }

  Totals sum(Stream& stream, Sums& sums) override {
    Totals totals;
    stream.run([&, this, &on = stream.kernels()] {
      std::byte* const all = sums.on_gpu.data() + bytes_of_sums;  // room for partial sums
      const auto of = [&](int r) { return all + r * bytes_of_sums; };
      on.copy_bytes(of(rank), sums.on_gpu.data(), bytes_of_sums);
      const auto queue = static_cast<cudaStream_t>(on.queue());
      if (size > 1) {
        nccl_.group([&](ncclComm_t comm) {
          for (int peer : peers()) {
            check(ncclSend(of(rank), 2, ncclFloat64, peer, comm, queue));
            sent_.scalars += 2;
            check(ncclRecv(of(peer), 2, ncclFloat64, peer, comm, queue));
          }
        });
      }
      on.copy_bytes(totals_.data(), all, totals_.bytes());
      on.finish();
      const auto* values = reinterpret_cast<const double*>(totals_.data());
      for (int r = 0; r < size; ++r) {
        totals.loss += values[2 * r];
        totals.squares += values[2 * r + 1];
      }
    });
    stream.synchronise();
    return totals;
  }

  std::vector<std::uint64_t> gather(std::span<const std::uint64_t> values) override {
    return world_.gather(values);
  }

  bool counts() const override { return !native_; }

 private:
  static constexpr std::int64_t bytes_of_sums = 2 * sizeof(double);

  /// Within a group: what fails here fails the group.
  static void check(ncclResult_t code) {
    if (code == ncclSuccess || code == ncclInProgress) return;
    throw Error(ExitCode::communication, fmt::format("NCCL: {}", ncclGetErrorString(code)));
  }

  void reduce_scatter_in_order(Kernels& on, View full, View received, View shard, bool add) {
    const auto slice = [&](int of) { return full.part(of * shard.size, shard.size); };
    const auto queue = static_cast<cudaStream_t>(on.queue());
    const ncclDataType_t type = type_of(full.dtype);
    if (size > 1) {
      nccl_.group([&](ncclComm_t comm) {
        for (int peer : peers()) {
          const int place = peer < rank ? peer : peer - 1;
          const View to = received.part(place * shard.size, shard.size);
          check(ncclSend(slice(peer).data, shard.size, type, peer, comm, queue));
          count(slice(peer), Collective::reduce_scatter);
          check(ncclRecv(to.data, shard.size, type, peer, comm, queue));
        }
      });
    }
    on.ordered_mean(slice(rank), rank, received, shard, add);
  }

  /// NCCL stores the sum in the storage type; it is divided, rounded, and then stored or added.
  void reduce_scatter_natively(Kernels& on, View full, View sum, View shard, bool add) {
    const auto queue = static_cast<cudaStream_t>(on.queue());
    nccl_.group([&](ncclComm_t comm) {
      check(ncclReduceScatter(
          full.data, sum.data, sum.size, type_of(sum.dtype), ncclSum, comm, queue));
    });
    on.divide(sum, size);
    on.ordered_mean(sum, 0, sum.part(0, 0), shard, add);  // of one rank: stores or adds
  }

  bool native_;
  HostBuffer totals_;  // the ranks' sums, where the host reads them
  MpiWorld world_;
  NcclHandle nccl_;
};

}  // namespace

void set_nccl_patience(std::chrono::milliseconds limit) {
  patience = limit;
}

std::unique_ptr<Communicator> make_nccl_communicator(const Session& session, Reduce reduce) {
  return std::make_unique<NcclCommunicator>(session, reduce);
}

bool nccl_is_built() {
  return true;
}

}  // namespace zero
