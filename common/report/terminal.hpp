// SPDX-License-Identifier: MIT
// Where somebody is watching.
#pragma once
#include <cstdio>

namespace zero {

/// The terminal that this program's output goes to, or nullptr when it goes elsewhere. A launcher
/// (mpirun) stands between a rank and the terminal, so under one it is the launcher's output that
/// is looked at. The caller closes the file.
std::FILE* open_terminal();

}  // namespace zero
