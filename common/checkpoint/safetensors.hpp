// SPDX-License-Identifier: MIT
// The field's file of tensors, safetensors: 8 bytes that say how long the header is, the header in
// JSON, the tensors. All of ours are fp32.
#pragma once
#include <functional>
#include <map>

#include "memory/state.hpp"

namespace zero {
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  State state;  // what it is saved of
  int layer;
  std::int64_t start;  // position of its first element within the layer
  std::int64_t begin = 0;  // its first byte within the file
  std::string digest{};  // of all of it, in hexadecimal; empty: the file says none

  std::int64_t size() const {
    std::int64_t size = 1;
    for (const std::int64_t length : shape) size *= length;
    return size;
  }
};

/// What a header says beside tensors and their digests.
using Metadata = std::map<std::string, std::string>;

/// What stands before the tensors, which follow in this order; sets where each begins.
std::string write_header(std::vector<StoredTensor>& tensors, Metadata metadata);

/// Sets where each of these tensors begins, and its digest. Calls check(metadata) before it looks
/// at tensors. Throws Error (data), naming `path`, unless the file consists of exactly these, in
/// any order. Allocates no more at once than the file is long.
void read_header(int fd, const std::string& path, std::vector<StoredTensor>& tensors,
                 const std::function<void(const Metadata&)>& check);
}  // namespace zero
