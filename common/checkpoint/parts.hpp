// SPDX-License-Identifier: MIT
// A layer's elements stand at one place of one file, whoever holds them: each rank moves its own.
#pragma once
#include "checkpoint/safetensors.hpp"
#include "compute/cpu/team.hpp"

namespace zero {
/// check: what the file holds is to be what memory does.
enum class Move { write, check, read };

/// Moves those elements of the tensor that lie in `part`, which is a part of its layer. They are
/// fp32 in the file; what is read is rounded to the part's dtype. A GPU's pass through `staging`,
/// page-locked memory for as many fp32. first: the number of the layer's first element in the whole
/// model. Returns the digest of what was moved. Throws Error, naming `path`: resources, in the
/// system's words, or when a check fails; data, when the file is too short.
std::uint64_t move_part(Move how, int fd, const std::string& path, const StoredTensor& tensor,
                        View part, std::int64_t first, std::byte* staging, Team& team);
}  // namespace zero
