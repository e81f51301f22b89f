// SPDX-License-Identifier: MIT
// What carries bytes from rank to rank. How a vector is cut, in which order it is added and what is
// counted stands once in Communicator; a transport moves parts.
#pragma once
#include <limits>

#include "compute/kernels.hpp"
#include "train/options.hpp"

namespace zero {
/// A part of a vector on its way to one other rank, or from one.
struct Part {
  View elements;
  int rank;
};

class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Begins to send all of `outgoing` to their ranks and to receive all of `incoming`, at least
  /// one, from theirs: over all calls together, between two ranks the same parts in the same order.
  /// All lie on one device, host memory too; a GPU's have one size, and as many leave as come.
  /// Called from within a stream's task, one call at a time. Throws Error (communication).
  virtual void start(Kernels& on, std::span<const Part> outgoing,
                     std::span<const Part> incoming) = 0;
  /// Ends what was begun first of all that is under way, within the same task: the host's
  /// `incoming` has arrived, and with the last one all of `outgoing` has left. A GPU's parts arrive
  /// and leave in the order of the kernels' queue. Throws as start() does.
  virtual void finish() {}

  /// True when the transport's library adds by itself, in an order of its own: then the two below
  /// take the place of the two above for collectives, and nobody can count what they send.
  virtual bool adds() const { return false; }
  /// sum = this rank's 1/N of the sum of all ranks' `full`, in the storage type.
  virtual void reduce_scatter_sum(Kernels&, View /*full*/, View /*sum*/) {}
  /// full = all ranks' `mine`; this rank's lies in its place there.
  virtual void all_gather(Kernels&, View /*mine*/, View /*full*/) {}

  /// Names and versions of the libraries, as "MPICH 4.0.2".
  virtual std::string library() const = 0;
};

/// A GPU's bytes that MPI moves pass through the host's memory, so many each way at once.
constexpr std::int64_t wave_bytes = std::int64_t{4} << 20;
/// MPI counts bytes in int, so what is longer goes in pieces.
constexpr std::int64_t longest_message = std::int64_t{1} << 30;
static_assert(longest_message <= std::numeric_limits<int>::max());
/// By MPI, in messages of up to `longest` bytes. tag: of those that are there at once each has its
/// own, the same on every rank.
std::unique_ptr<Transport> make_mpi_transport(Device& device, int size, int tag,
                                              std::int64_t longest = longest_message);
class Communicator;
/// By NCCL, one GPU a rank; by MPI what lies in host memory. Throws Error (resources) without NCCL.
/// everybody: by which the ranks meet.
std::unique_ptr<Transport> make_nccl_transport(Device& gpu, Reduce reduce, Communicator& everybody,
                                               int tag);
/// False in a build without NCCL.
bool nccl_is_built();
}  // namespace zero
