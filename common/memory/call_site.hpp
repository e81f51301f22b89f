// SPDX-License-Identifier: MIT
// Which line of a program asks for what is recorded.
#pragma once
#include <source_location>
#include <utility>

namespace zero {
/// Where a call was made, while it lasts: a function whose last parameter is `CallSite = {}` is
/// named by the line that calls it. Calls within each other are a list, with the trainer's last.
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
