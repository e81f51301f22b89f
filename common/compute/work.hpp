// SPDX-License-Identifier: MIT
// The description of a task, for traces and for the watchdog.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "memory/tensor.hpp"

namespace zero {
/// A task of a stream, or a wait.
struct Work {
  enum class Type { compute, copy, transfer, message, wait };  // transfer: a copy over a bus

  const char* what = "a task";  // of a wait: what is waited for. Must never be freed
  Type type = Type::compute;
  int layer = -1;  // of the model; -1: of no layer
  std::int64_t elements = 0;  // see work_on(); of a message: sent by this rank
  std::int64_t bytes = 0;  // of these elements
  std::vector<ConstView> reads{}, writes{};  // for traces and bus(); most activations are left out

  /// Returns where the first written view lies; without one, the first read; without views: device.
  Place place() const {
    const std::vector<ConstView>& of = writes.empty() ? reads : writes;
    return of.empty() ? Place::device : of[0].place();
  }
  /// Call it for a transfer. Returns whose bus carries it, the device's or the disk's.
  Place bus() const {
    const Place from = reads.empty() ? Place::device : reads[0].place();
    return from == Place::host ? place() : from;
  }
};

/// Makes a task's Work. Layer, elements and bytes are those of writes[0]; of reads[0] if no writes.
inline Work work_on(const char* what, std::vector<ConstView> reads, std::vector<ConstView> writes,
                    Work::Type type = Work::Type::compute) {
  const ConstView of = writes.empty() ? reads.at(0) : writes[0];
  return {what, type, of.layer, of.size, of.bytes(), std::move(reads), std::move(writes)};
}

/// Describes work, as "all_gather of layer 3".
inline std::string describe(const Work& work) {
  return work.what + (work.layer < 0 ? "" : " of layer " + std::to_string(work.layer));
}
}  // namespace zero
