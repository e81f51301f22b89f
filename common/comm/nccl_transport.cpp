// SPDX-License-Identifier: MIT
// Messages by NCCL, one GPU per rank. NCCL only sends; with --reduce native it adds, too.
#include <nccl.h>

#include <cstring>

#include "comm/communicator.hpp"
#include "compute/cuda/runtime.hpp"
#include "compute/watchdog.hpp"
#include "memory/throw_error.hpp"

namespace zero {
namespace {
ncclDataType_t type_of(Dtype dtype) {
  constexpr ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
  return types[static_cast<int>(dtype)];
}

void check_nccl(ncclResult_t code, std::source_location where = std::source_location::current()) {
  if (code == ncclSuccess) return;
  throw_error(ExitCode::communication, "{}: NCCL: {}: {}", where.function_name(),
              ncclGetErrorString(code), ncclGetLastError(nullptr));
}

cudaStream_t queue_of(Kernels& on) { return static_cast<cudaStream_t>(on.queue()); }

class NcclTransport : public Transport {
 public:
  NcclTransport(Device& gpu, Communicator& everybody)
      : gpu_(gpu), on_host_(make_mpi_transport(gpu.host())) {
    ncclUniqueId id{};
    if (everybody.rank == 0) check_nccl(ncclGetUniqueId(&id));
    const auto ids = everybody.gather(std::bit_cast<std::array<std::uint64_t, sizeof(id) / 8>>(id));
    std::memcpy(&id, ids.data(), sizeof(id));  // rank 0's
    const TaskScope scope({"the start of NCCL"});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = message_blocks;
    check_nccl(ncclCommInitRankConfig(&comm_, everybody.size, id, everybody.rank, &config));
    // When a peer is gone, NCCL's kernels never end, but its threads on the host may notice.
    gpu_.check_peers = [this] {
      ncclResult_t state = ncclSuccess;
      check_nccl(ncclCommGetAsyncError(comm_, &state));
      check_nccl(state);
    };
  }

  ~NcclTransport() override {
    gpu_.check_peers = nullptr;
    ncclCommDestroy(comm_);
  }

  void exchange(Kernels& on, Collective of, std::span<const Peer> peers) override {
    if (!peers[0].in.on_gpu()) return on_host_->exchange(on, of, peers);
    check_nccl(ncclGroupStart());
    for (const auto& [rank, out, in] : peers) {
      const ncclDataType_t type = type_of(out.dtype);
      check_nccl(ncclRecv(in.data, in.size, type, rank, comm_, queue_of(on)));
      check_nccl(ncclSend(out.data, out.size, type, rank, comm_, queue_of(on)));
    }
    check_nccl(ncclGroupEnd());
  }

  ncclComm_t comm() const { return comm_; }

  std::string library() const override {
    int version = 0;
    ncclGetVersion(&version);
    return fmt::format("NCCL {}.{}.{}, {}", version / 10000, version / 100 % 100, version % 100,
                       on_host_->library());
  }

 private:
  Device& gpu_;
  std::unique_ptr<Transport> on_host_;
  ncclComm_t comm_ = nullptr;
};

/// NCCL's own collectives. What NCCL sends within them, nobody else can count.
struct NativeCommunicator : Communicator {
  NativeCommunicator(ncclComm_t comm, auto&&... all)
      : Communicator(std::forward<decltype(all)>(all)...), comm(comm) {}

  bool counts() const override { return false; }
  void reduce_scatter(Kernels& on, ConstView full, View others, View own, Write write) override {
    if (size == 1) return Communicator::reduce_scatter(on, full, others, own, write);
    const View sum = others.part(0, own.size);
    check_nccl(ncclReduceScatter(full.data, sum.data, sum.size, type_of(sum.dtype), ncclSum, comm,
                                 queue_of(on)));
    on.divide(sum, size);
    on.ordered_mean(sum, 0, sum.part(0, 0), own, write);  // one term, which is only stored or added
  }
  void gather_parts(Kernels& on, View full) override {
    const ConstView mine = slice(full, rank);
    check_nccl(
        ncclAllGather(mine.data, full.data, mine.size, type_of(full.dtype), comm, queue_of(on)));
  }

  const ncclComm_t comm;  // the transport owns it
};
}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& gpu, const Options& options,
                                                     std::int64_t largest,
                                                     Communicator& everybody) {
  auto nccl = std::make_unique<NcclTransport>(gpu, everybody);
  const ncclComm_t comm = nccl->comm();
  const Link link{options.link, options.latency};
  if (options.reduce == Reduce::native)
    return std::make_unique<NativeCommunicator>(comm, everybody.rank, everybody.size,
                                                std::move(nccl), gpu, options.dtype, largest, link);
  return std::make_unique<Communicator>(everybody.rank, everybody.size, std::move(nccl), gpu,
                                        options.dtype, largest, link);
}

bool nccl_is_built() { return true; }
}  // namespace zero
