// SPDX-License-Identifier: MIT
// Where in a run a thread is: step and phase. Traffic is counted under the phase that asked for it.
#pragma once

namespace zero {
enum class Phase { setup, forward, backward, update };
inline constexpr int phase_count = 4;
inline constexpr Phase step_phases[] = {Phase::forward, Phase::backward, Phase::update};

constexpr const char* name_of(Phase phase) {
  constexpr const char* names[] = {"setup", "forward", "backward", "update"};
  return names[static_cast<int>(phase)];
}

/// The calling thread's phase and step, which counts from 1. A Stream hands both on to its tasks.
inline thread_local Phase current_phase = Phase::setup;
inline thread_local int current_step = 0;

/// Sets the phase until the end of the scope.
struct PhaseScope {
  explicit PhaseScope(Phase phase) { current_phase = phase; }
  ~PhaseScope() { current_phase = before; }
  PhaseScope(const PhaseScope&) = delete;

  const Phase before = current_phase;
};
}  // namespace zero
