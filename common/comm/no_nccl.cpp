// SPDX-License-Identifier: MIT
#include "comm/nccl_patience.hpp"
#include "memory/error.hpp"
#include "run/session.hpp"

namespace zero {

std::unique_ptr<Communicator> make_nccl_communicator(const Session&, Reduce) {
  throw Error(ExitCode::resources, "this program was built without NCCL");
}

void set_nccl_patience(std::chrono::milliseconds) {}

bool nccl_is_built() {
  return false;
}

}  // namespace zero
