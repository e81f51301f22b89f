// SPDX-License-Identifier: MIT
// The field's file of tensors, safetensors: 8 bytes that say how long the header is, the header in
// JSON, the tensors. All of ours are fp32. An element has one place, whoever holds it: each rank
// moves its own.
#pragma once
#include <map>
#include <numeric>

#include "compute/cpu/team.hpp"
#include "memory/state.hpp"

namespace zero {
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  State state;  // whose values it has
  int layer;
  std::int64_t start;  // position of its first element within the layer
  std::int64_t begin = 0;  // its first byte within the file
  std::string digest = "0000000000000000";  // of all of it; empty: the file says none

  std::int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
  }
};

/// What a header says beside tensors and their digests.
using Metadata = std::map<std::string, std::string>;

/// What stands before the tensors, which follow in this order; sets where each begins.
std::string write_header(std::vector<StoredTensor>& tensors, Metadata metadata);

/// Puts the tensors in the file's order, and sets where each begins and its digest. Calls
/// check(metadata) before it looks at tensors. Throws Error (data), naming `path`, unless the file
/// consists of exactly these. No allocation is larger than the file.
void read_header(int fd, const std::string& path, std::vector<StoredTensor>& tensors,
                 const std::function<void(const Metadata&)>& check);

/// check: what the file holds is to be what memory does.
enum class Move { write, check, read };

/// Moves those elements of the tensor that lie in `part`, which is a part of its layer; what is
/// read is rounded to the part's dtype. A GPU's pass through `staging`, page-locked memory for as
/// many fp32. first: the number of the layer's first element in the whole model. Returns the digest
/// of what was read. Throws Error (resources) in the system's words, naming `path`.
std::uint64_t move_part(Move how, int fd, const std::string& path, const StoredTensor& tensor,
                        View part, std::int64_t first, std::byte* staging, Team& team);
}  // namespace zero
