// SPDX-License-Identifier: MIT
// What carries vectors from rank to rank. Communicator says which, adds in order and counts.
#pragma once
#include "compute/kernels.hpp"
#include "train/options.hpp"

namespace zero {
enum class Collective { reduce_scatter, all_gather, sums, gather };  // the last two: of host values
template <>
inline constexpr std::array names_of<Collective>{"reduce_scatter", "all_gather", "sums", "gather"};
/// Whether a collective moves a few numbers of the host, not parameters or gradients.
constexpr bool moves_host_values(Collective of) {
  return of == Collective::sums || of == Collective::gather;
}

/// Another rank: what goes to it, and where what comes from it will lie.
struct Peer {
  int rank;
  View out, in;
};

/// Belongs to a Communicator, which calls it in a stream's task, one call at a time.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Sends each peer's `out` and receives its `in`: all of one size, of one layer, and all on the
  /// host or all on the device. Every rank does the same at the same time, but for its peers. The
  /// host's have come and left when it returns; a GPU's follow the kernels' queue. Throws Error
  /// (communication) when a message fails or is of another collective or layer.
  virtual void exchange(Kernels& on, Collective of, std::span<const Peer> peers) = 0;

  /// Names and versions of the libraries, as "MPICH 4.0.2".
  virtual std::string library() const = 0;
};

/// A GPU's elements pass through its host's memory, so many bytes each way at once.
std::unique_ptr<Transport> make_mpi_transport(Device& device, std::int64_t room = 0);
}  // namespace zero
