// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "checkpoint/safetensors.hpp"
#include "compute/cpu/matmul.hpp"
#include "compute/generator.hpp"
#include "memory/throw_if.hpp"

namespace zero {
std::uint64_t move_part(Move how, int fd, const std::string& path, const StoredTensor& tensor,
                        View part, std::int64_t first, std::byte* staging, Team& team) {
  const std::int64_t from = std::max(part.start, tensor.start);
  const std::int64_t to = std::min(part.start + part.used, tensor.start + tensor.size());
  if (from >= to) return 0;
  const View ours = part.part(from - part.start, to - from);
  std::byte* const memory = ours.on_gpu() ? staging : ours.data;
  if (ours.on_gpu() && how == Move::write) ours.device->copy(memory, ours.data, ours.bytes());
  std::atomic<std::uint64_t> sum = 0;
  std::atomic<int> failure = 0;  // errno
  team.each_piece(to - from, [&](std::int64_t offset, std::int64_t count) {
    std::byte* const held = memory + offset * bytes_of(ours.dtype);
    std::array<float, Team::piece> read;  // what is in it is of no use
    auto* const stored = how == Move::write ? reinterpret_cast<float*>(held) : read.data();
    auto* byte = reinterpret_cast<std::byte*>(stored);
    std::int64_t at = tensor.begin + (from - tensor.start + offset) * std::int64_t{sizeof(float)};
    for (std::int64_t left = count * std::int64_t{sizeof(float)}; left > 0;) {
      const std::int64_t moved =
          how == Move::write ? pwrite(fd, byte, left, at) : pread(fd, byte, left, at);
      if (moved <= 0) {
        failure = moved < 0 ? errno : ENODATA;  // it is shorter than its header says
        return;
      }
      byte += moved, at += moved, left -= moved;
    }
    std::uint64_t digest_here = 0;
    on_wide_vectors([&] {
      digest_here = digest(std::span<const float>(stored, count), first + from + offset);
    });
    sum += digest_here;
    if (how != Move::read) return;
    with_type(ours.dtype, [&]<class T>(T) {
      const auto elements = reinterpret_cast<T*>(held);
      on_wide_vectors([&] {
        for (std::int64_t i = 0; i < count; ++i) elements[i] = narrow<T>(read[i]);
      });
    });
  });
  throw_if(failure != 0, ExitCode::resources, "{}: {}", path, std::strerror(failure));
  if (ours.on_gpu() && how == Move::read) ours.device->copy(ours.data, memory, ours.bytes());
  return sum;
}
}  // namespace zero
