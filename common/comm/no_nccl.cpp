// SPDX-License-Identifier: MIT
#include "comm/communicator.hpp"
#include "memory/error.hpp"

namespace zero {
std::unique_ptr<Communicator> make_nccl_communicator(Device&, const Options&, std::int64_t,
                                                     Communicator&) {
  throw Error(ExitCode::resources, "this program was built without NCCL");
}

bool nccl_is_built() { return false; }
}  // namespace zero
