// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "checkpoint/safetensors.hpp"
#include "compute/cpu/matmul.hpp"
#include "compute/generator.hpp"
#include "memory/throw_if.hpp"

namespace zero {
namespace {
constexpr int differs = -1;  // beside errno's

/// Calls pread or pwrite until all bytes are moved. Returns 0 or errno.
int move_all(auto call, int fd, std::byte* data, std::int64_t bytes, std::int64_t at) {
  while (bytes > 0) {
    const std::int64_t moved = call(fd, data, bytes, at);
    if (moved <= 0) return moved < 0 ? errno : ENODATA;  // shorter than its header says
    data += moved, bytes -= moved, at += moved;
  }
  return 0;
}
}  // namespace

std::uint64_t move_part(Move how, int fd, const std::string& path, const StoredTensor& tensor,
                        View part, std::int64_t first, std::byte* staging, Team& team) {
  const std::int64_t from = std::max(part.start, tensor.start);
  const std::int64_t to = std::min(part.start + part.used, tensor.start + tensor.size());
  if (from >= to) return 0;
  const View ours = part.part(from - part.start, to - from);
  std::byte* const memory = ours.on_gpu() ? staging : ours.data;
  if (ours.on_gpu() && how != Move::read) ours.device->copy(memory, ours.data, ours.bytes());
  constexpr std::int64_t stored_bytes = sizeof(float);
  const std::int64_t begin = tensor.begin + (from - tensor.start) * stored_bytes;
  const auto check = [&](int failure) {
    throw_if(failure == differs, ExitCode::resources, "{} does not hold what was written", path);
    throw_if(failure != 0, ExitCode::resources, "{}: {}", path, std::strerror(failure));
  };
  if (how == Move::write) {  // by one thread, as the system lets only one write a file at a time
    check(move_all(pwrite, fd, memory, ours.bytes(), begin));
    // The disk begins now, and goes on while the next are written and all are checked.
    sync_file_range(fd, begin, ours.bytes(), SYNC_FILE_RANGE_WRITE);
    return 0;
  }
  // All of it at once: threads that ask for pieces in turns look like nobody who reads on.
  posix_fadvise(fd, begin, (to - from) * stored_bytes, POSIX_FADV_WILLNEED);
  std::atomic<std::uint64_t> sum = 0;
  std::atomic<int> failure = 0;
  team.each_piece(to - from, [&](std::int64_t offset, std::int64_t count) {
    static thread_local std::array<float, Team::piece> read;
    std::byte* const held = memory + offset * bytes_of(ours.dtype);
    const std::int64_t bytes = count * stored_bytes;
    const int code = move_all(pread, fd, reinterpret_cast<std::byte*>(read.data()), bytes,
                              begin + offset * stored_bytes);
    const bool same = how != Move::check || std::memcmp(read.data(), held, bytes) == 0;
    if (code != 0 || !same) failure = code != 0 ? code : differs;
    std::uint64_t digest_here = 0;
    on_wide_vectors([&] {
      digest_here = digest(std::span<const float>(read.data(), count), first + from + offset);
    });
    sum += digest_here;
    if (how == Move::check) return;
    with_type(ours.dtype, [&]<class T>(T) {
      const auto elements = reinterpret_cast<T*>(held);
      on_wide_vectors([&] {
        for (std::int64_t i = 0; i < count; ++i) elements[i] = narrow<T>(read[i]);
      });
    });
  });
  check(failure);
  if (ours.on_gpu() && how == Move::read) ours.device->copy(ours.data, memory, ours.bytes());
  return sum;
}
}  // namespace zero
