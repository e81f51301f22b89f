// SPDX-License-Identifier: MIT
// What carries parts from rank to rank. Communicator cuts vectors, adds in order and counts.
#pragma once
#include <limits>

#include "compute/kernels.hpp"
#include "train/options.hpp"

namespace zero {
enum class Collective { reduce_scatter, all_gather, sums, gather };  // the last two: of host values
template <>
inline constexpr std::array names_of<Collective>{"reduce_scatter", "all_gather", "sums", "gather"};

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

  /// Begins to send `outgoing` and receive `incoming`, at least one, all part `of` one collective
  /// and of their layer; over all calls, of any transport, two ranks give the same parts in one
  /// order. All lie on one device or the host; a GPU's have one size, and as many leave as come. In
  /// a stream's task, one call at a time. Throws Error (communication).
  virtual void start(Kernels& on, Collective of, std::span<const Part> outgoing,
                     std::span<const Part> incoming) = 0;
  /// Waits, in the same task, until the first start() under way has received, the last one also
  /// until all has left; a GPU's parts follow the kernels' queue. Throws as start() does.
  virtual void finish() {}

  /// True when the library adds, in its own order: then the two below are called, and none counts.
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
/// In messages of up to `longest` bytes. What comes and is part of something else throws.
std::unique_ptr<Transport> make_mpi_transport(Device& device, int size,
                                              std::int64_t longest = longest_message);
class Communicator;
/// NCCL for GPUs, one a rank; MPI for host memory. The ranks meet by `everybody`. Throws Error
/// (resources) in a build without NCCL.
std::unique_ptr<Transport> make_nccl_transport(Device& gpu, Reduce reduce, Communicator& everybody);
bool nccl_is_built();
}  // namespace zero
