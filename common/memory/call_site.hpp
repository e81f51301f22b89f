// SPDX-License-Identifier: MIT
// The source lines of the calls that lead to an action of the trainer, for traces.
#pragma once
#include <source_location>
#include <utility>

namespace zero {
/// A function's last parameter, `CallSite = {}`, records the line of the call while the call lasts.
/// Nested calls form a list from the innermost one to the trainer's.
class CallSite {
 public:
  CallSite(std::source_location at = std::source_location::current())
      : at(at), within(std::exchange(innermost, this)) {}
  ~CallSite() { innermost = within; }
  CallSite(const CallSite&) = delete;

  static inline thread_local const CallSite* innermost = nullptr;  // of the calling thread
  const std::source_location at;
  const CallSite* const within;
};
}  // namespace zero
