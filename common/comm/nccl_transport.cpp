// SPDX-License-Identifier: MIT
// One GPU a rank. `ordered`: NCCL sends, our kernel adds in rank order; `native`: NCCL adds, too.
#include <nccl.h>

#include <cstring>

#include "comm/communicator.hpp"
#include "compute/cuda/runtime.hpp"
#include "compute/work.hpp"
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
  NcclTransport(Device& gpu, Reduce reduce, Communicator& everybody)
      : gpu_(gpu), adds_(reduce == Reduce::native), on_host_(make_mpi_transport(gpu.host())) {
    ncclUniqueId id{};
    if (everybody.rank == 0) check_nccl(ncclGetUniqueId(&id));
    const auto ids = everybody.gather(std::bit_cast<std::array<std::uint64_t, sizeof(id) / 8>>(id));
    std::memcpy(&id, ids.data(), sizeof(id));  // rank 0's
    const Working working({"the start of NCCL"});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = message_blocks;
    check_nccl(ncclCommInitRankConfig(&comm_, everybody.size, id, everybody.rank, &config));
    // Where a peer is gone the kernels never end, but NCCL's threads may know.
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

  bool adds() const override { return adds_; }

  void reduce_scatter_sum(Kernels& on, View full, View sum) override {
    check_nccl(ncclReduceScatter(full.data, sum.data, sum.size, type_of(sum.dtype), ncclSum, comm_,
                                 queue_of(on)));
  }

  void all_gather(Kernels& on, View mine, View full) override {
    check_nccl(
        ncclAllGather(mine.data, full.data, mine.size, type_of(full.dtype), comm_, queue_of(on)));
  }

  std::string library() const override {
    int version = 0;
    ncclGetVersion(&version);
    return fmt::format("NCCL {}.{}.{}, {}", version / 10000, version / 100 % 100, version % 100,
                       on_host_->library());
  }

 private:
  Device& gpu_;
  const bool adds_;
  std::unique_ptr<Transport> on_host_;
  ncclComm_t comm_ = nullptr;
};
}  // namespace

std::unique_ptr<Transport> make_nccl_transport(Device& gpu, Reduce reduce,
                                               Communicator& everybody) {
  return std::make_unique<NcclTransport>(gpu, reduce, everybody);
}

bool nccl_is_built() { return true; }
}  // namespace zero
