// SPDX-License-Identifier: MIT
// Point-to-point messages: MPI's own reductions add in another order for another size or N, and do
// not say which.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <optional>

#include "comm/mpi.hpp"
#include "comm/transport.hpp"

namespace zero {
namespace {
/// Host memory through which a GPU's bytes pass, wave by wave: while one wave is exchanged, the
/// next is copied out and the one before it is copied in.
struct Staging {
  static constexpr std::int64_t bytes = std::int64_t{4} << 20;  // of a wave, one direction
  struct Wave {
    HostBuffer out{Device::cuda, bytes};
    HostBuffer in{Device::cuda, bytes};
    Mark copied_out;
    Mark copied_in;
  };
  std::array<Wave, 2> waves;
};

class MpiTransport : public Transport {
 public:
  MpiTransport(Device device, int size) {
    if (device == Device::cuda && size > 1) staging_.emplace();
  }

  void exchange(Kernels& on, std::span<const Part> outgoing,
                std::span<const Part> incoming) override {
    if (incoming.front().elements.device == Device::cuda) {
      return exchange_staged(on, outgoing, incoming);
    }
    for (const auto& [part, from] : incoming) receive(part.data, part.bytes(), from);
    for (const auto& [part, to] : outgoing) send(part.data, part.bytes(), to);
    messages_.finish();
  }

  std::string library() const override { return mpi_library(); }

 private:
  /// The same for parts in a GPU's memory. All ranks cut into the same waves, so a wave's messages
  /// find each other.
  void exchange_staged(Kernels& on, std::span<const Part> outgoing,
                       std::span<const Part> incoming) {
    const View first = incoming.front().elements;
    const std::int64_t width = bytes_of(first.dtype);
    const std::int64_t piece =
        Staging::bytes / width / std::ssize(incoming);  // elements of a part, a wave
    const std::int64_t waves = (first.size + piece - 1) / piece;
    const auto wave_of = [&](std::int64_t w) -> Staging::Wave& { return staging_->waves[w % 2]; };
    const auto cut = [&](const Part& part, std::int64_t w) {
      return part.elements.part(w * piece, std::min(piece, first.size - w * piece));
    };
    const auto place = [&](const HostBuffer& buffer, std::size_t i) {
      return buffer.data() + static_cast<std::int64_t>(i) * piece * width;
    };
    const auto copy_out = [&](std::int64_t w) {
      Staging::Wave& wave = wave_of(w);
      for (std::size_t i = 0; i < outgoing.size(); ++i) {
        const View part = cut(outgoing[i], w);
        on.copy_bytes(place(wave.out, i), part.data, part.bytes());
      }
      wave.copied_out = on.record();
    };
    copy_out(0);
    for (std::int64_t w = 0; w < waves; ++w) {
      if (w + 1 < waves) copy_out(w + 1);
      Staging::Wave& wave = wave_of(w);
      wait_for(wave.copied_in);  // of the wave that used this memory before
      for (std::size_t i = 0; i < incoming.size(); ++i) {
        receive(place(wave.in, i), cut(incoming[i], w).bytes(), incoming[i].rank);
      }
      wait_for(wave.copied_out);
      for (std::size_t i = 0; i < outgoing.size(); ++i) {
        send(place(wave.out, i), cut(outgoing[i], w).bytes(), outgoing[i].rank);
      }
      messages_.finish();
      for (std::size_t i = 0; i < incoming.size(); ++i) {
        const View part = cut(incoming[i], w);
        on.copy_bytes(part.data, place(wave.in, i), part.bytes());
      }
      wave.copied_in = on.record();
    }
  }

  /// MPI counts in int, so a long message goes in pieces of 1 GiB.
  static constexpr std::int64_t longest = std::int64_t{1} << 30;

  void send(const std::byte* data, std::int64_t bytes, int to) {
    for (std::int64_t at = 0; at < bytes; at += longest) {
      const auto count = static_cast<int>(std::min(longest, bytes - at));
      check_mpi(MPI_Isend(data + at, count, MPI_BYTE, to, 0, world_.comm(), &messages_.to(to)));
    }
  }

  void receive(std::byte* data, std::int64_t bytes, int from) {
    for (std::int64_t at = 0; at < bytes; at += longest) {
      const auto count = static_cast<int>(std::min(longest, bytes - at));
      check_mpi(MPI_Irecv(data + at, count, MPI_BYTE, from, 0, world_.comm(), &messages_.to(from)));
    }
  }

  MpiWorld world_;
  std::optional<Staging> staging_;  // on a GPU
  Messages messages_;  // of the exchange under way
};
}  // namespace

std::unique_ptr<Transport> make_mpi_transport(Device device, int size) {
  return std::make_unique<MpiTransport>(device, size);
}
}  // namespace zero
