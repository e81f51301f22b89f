// SPDX-License-Identifier: MIT
// What a piece of work is, for whoever looks on, and where in a run a thread is: step and phase.
// Traffic is counted under the phase that needs what is sent; memory under the one in which the
// host books it, which for what is gathered ahead may be the phase before.
#pragma once
#include <functional>
#include <string>

#include "memory/tensor.hpp"

namespace zero {
/// A piece of a stream's work, as the watchdog and traces see it.
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

enum class Phase { setup, load, forward, backward, update };
template <>
inline constexpr std::array names_of<Phase>{"setup", "load", "forward", "backward", "update"};
/// Those in which ranks send.
inline constexpr Phase step_phases[] = {Phase::forward, Phase::backward, Phase::update};

/// The calling thread's phase and step, which counts from 1. A Stream hands both on to its tasks.
inline thread_local Phase current_phase = Phase::setup;
inline thread_local int current_step = 0;

/// Is told when a phase of the calling thread, or its waiting for a stream, begins and ends: a
/// piece of work of that name. Null: nobody looks on.
inline thread_local const std::function<void(const Work& work, bool begins)>* host_observer =
    nullptr;

inline void tell_host(const Work& work, bool begins) {
  if (host_observer) (*host_observer)(work, begins);
}

/// Sets the phase until the end of the scope.
struct PhaseScope {
  explicit PhaseScope(Phase phase) {
    current_phase = phase;
    tell(true);
  }
  ~PhaseScope() {
    tell(false);
    current_phase = before;
  }
  PhaseScope(const PhaseScope&) = delete;

  const Phase before = current_phase;

 private:
  /// Within a phase only `load` is one by itself; another says whose messages are counted.
  void tell(bool begins) const {
    const bool itself = before == Phase::setup || current_phase == Phase::load;
    if (itself && before != current_phase) tell_host({name_of(current_phase)}, begins);
  }
};
}  // namespace zero
