// SPDX-License-Identifier: MIT
#include "checkpoint/parts.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "compute/cpu/matmul.hpp"
#include "compute/generator.hpp"
#include "memory/throw_if.hpp"

namespace zero {
namespace {
constexpr int too_short = -1, differs = -2;  // beside errno's

/// Calls pread or pwrite until all bytes are moved. Returns 0, errno, or too_short.
int move_all(auto call, int fd, std::byte* data, std::int64_t bytes, std::int64_t at) {
  while (bytes > 0) {
    const std::int64_t moved = call(fd, data, bytes, at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : too_short;
    data += moved, bytes -= moved, at += moved;
  }
  return 0;
}
}  // namespace

std::uint64_t move_part(Move how, int fd, const std::string& path, const StoredTensor& tensor,
                        View part, std::int64_t first, std::byte* staging, Team& team) {
  constexpr std::int64_t stored_bytes = sizeof(float);
  const std::int64_t from = std::max(part.start, tensor.start);
  const std::int64_t to = std::min(part.start + part.used, tensor.start + tensor.size());
  if (from >= to) return 0;
  const View ours = part.part(from - part.start, to - from);
  std::byte* const memory = ours.on_gpu() ? staging : ours.data;
  if (ours.on_gpu() && how != Move::read) ours.device->copy(memory, ours.data, ours.bytes());
  std::atomic<std::uint64_t> sum = 0;
  std::atomic<int> failure = 0;
  const auto move = [&](std::int64_t offset, std::int64_t count) {
    const std::int64_t at = tensor.begin + (from - tensor.start + offset) * stored_bytes;
    std::byte* const held = memory + offset * bytes_of(ours.dtype);
    std::array<float, Team::piece> read;  // what is in it is of no use
    auto* const stored = how == Move::write ? held : reinterpret_cast<std::byte*>(read.data());
    const int code = how == Move::write ? move_all(pwrite, fd, stored, count * stored_bytes, at)
                                        : move_all(pread, fd, stored, count * stored_bytes, at);
    if (code != 0) return code;
    if (how == Move::check) return std::memcmp(stored, held, count * stored_bytes) ? differs : 0;
    std::uint64_t digest_here = 0;
    on_wide_vectors([&] {
      const auto* const values = reinterpret_cast<const float*>(stored);
      digest_here = digest(std::span(values, count), first + from + offset);
    });
    sum += digest_here;
    if (how == Move::write) return 0;
    with_type(ours.dtype, [&]<class T>(T) {
      const auto elements = reinterpret_cast<T*>(held);
      on_wide_vectors([&] {
        for (std::int64_t i = 0; i < count; ++i) elements[i] = narrow<T>(read[i]);
      });
    });
    return 0;
  };
  team.each_piece(to - from, [&](std::int64_t offset, std::int64_t count) {
    for (const std::int64_t end = offset + count; offset < end; offset += Team::piece) {
      if (const int code = move(offset, std::min(Team::piece, end - offset))) failure = code;
    }
  });
  throw_if(failure == too_short, ExitCode::data, "{} is shorter than its header says", path);
  throw_if(failure == differs, ExitCode::resources, "{} does not hold what was written", path);
  throw_if(failure != 0, ExitCode::resources, "{}: {}", path, std::strerror(failure));
  if (ours.on_gpu() && how == Move::read) ours.device->copy(ours.data, memory, ours.bytes());
  return sum;
}
}  // namespace zero
