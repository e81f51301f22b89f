// SPDX-License-Identifier: MIT
#include "comm/launcher.hpp"

#include <cstdlib>

namespace zero {

namespace {

int from_environment(const char* const (&names)[2], int otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return otherwise;
}

}  // namespace

Launcher launcher() {
  // Open MPI's first: a batch system may have left PMI's in the environment that it starts in.
  const int ranks = from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0);
  const int rank = from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
  return {ranks > 0 ? ranks : 1, rank, ranks > 0};
}

}  // namespace zero
