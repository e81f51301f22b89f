// SPDX-License-Identifier: MIT
// Where in a run a thread is: the step and its phase. Traffic is counted under the phase
// that asked for them.
#pragma once

namespace zero {
enum class Phase { setup, forward, backward, update };
inline constexpr int phase_count = 4;
inline constexpr Phase step_phases[] = {Phase::forward, Phase::backward, Phase::update};

constexpr const char* name_of(Phase phase) {
  constexpr const char* names[] = {"setup", "forward", "backward", "update"};
  return names[static_cast<int>(phase)];
}

/// The calling thread's phase and step, which counts from 1. A Stream hands both on to the tasks
/// that are put on it.
inline thread_local Phase current_phase = Phase::setup;
inline thread_local int current_step = 0;

/// Sets the phase until the end of the scope.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) : before_(current_phase) { current_phase = phase; }
  ~PhaseScope() { current_phase = before_; }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase before_;
};
}  // namespace zero
