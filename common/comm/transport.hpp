// SPDX-License-Identifier: MIT
// Moves vectors from rank to rank. The Communicator decides which, adds them, counts elements.
#pragma once
#include "compute/kernels.hpp"
#include "train/options.hpp"

namespace zero {
enum class Collective { reduce_scatter, all_gather, sums, gather };
template <>
inline constexpr std::array names_of<Collective>{"reduce_scatter", "all_gather", "sums", "gather"};
/// Whether a collective moves numbers or texts of the host, not parameters or gradients.
constexpr bool moves_host_values(Collective of) {
  return of == Collective::sums || of == Collective::gather;
}

/// Another rank, the elements that go to it, and the place of those that come from it.
struct Peer {
  int rank;
  ConstView out;
  View in;
};

/// Passes messages. A Communicator owns it and calls it in a stream's task, one call at a time.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Sends each peer's `out` and fills its `in`. All ranks call it together, with all others as
  /// peers. An `out` has as many elements as the receiver's `in`. All views are in host memory, or
  /// all on the GPU and of one size. Messages of host memory are complete when it returns; a GPU's
  /// `in` is filled when work queued with `on` until then is done. Throws Error (communication) if
  /// a message fails or, with MPI, belongs to another collective or layer.
  virtual void exchange(Kernels& on, Collective of, std::span<const Peer> peers) = 0;

  /// Returns names and versions of the libraries, as "MPICH 4.0.2".
  virtual std::string library() const = 0;
};

/// Uses MPI. room: most bytes that one exchange() sends from a GPU; two host buffers have so many.
std::unique_ptr<Transport> make_mpi_transport(Device& device, std::int64_t room = 0);
}  // namespace zero
