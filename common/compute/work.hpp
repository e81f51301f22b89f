// SPDX-License-Identifier: MIT
// What a piece of a stream's work is, for whoever looks on: the watchdog, traces.
#pragma once
#include <cstdint>
#include <string>

#include "memory/tensor.hpp"

namespace zero {
struct Work {
  enum class Sort { compute, copy, transfer, message, wait };  // transfer: over the bus

  const char* what = "a task";  // stays as long as the program; of a wait, what is waited for
  Sort sort = Sort::compute;
  int layer = -1;  // of the model; -1: no layer's
  std::int64_t elements = 0;  // that it makes or changes; of messages, that this rank sends
  std::int64_t bytes = 0;  // of those
  Place place = Place::device;  // where they lie
  View made{};  // what it leaves behind; empty: nothing to be shown
};

inline Work work_on(const char* what, View view, Work::Sort sort = Work::Sort::compute) {
  return {what, sort, view.layer, view.size, view.bytes(), place_of(view.device), view};
}

/// "all_gather of layer 3".
inline std::string words(const Work& work) {
  return work.what + (work.layer < 0 ? "" : " of layer " + std::to_string(work.layer));
}
}  // namespace zero
