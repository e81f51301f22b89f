// SPDX-License-Identifier: MIT
// How this process was started.
#pragma once

namespace zero {

/// Number and place of this process as its launcher (mpirun) announces them; 1 and 0 without one.
struct Launcher {
  int ranks = 1;
  int rank = 0;
  bool started = false;  // by a launcher
};

Launcher launcher();

}  // namespace zero
