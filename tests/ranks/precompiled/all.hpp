// SPDX-License-Identifier: MIT
// Precompiled, as nearly all sources of this folder begin with it.
#include "tests/ranks/ranks.hpp"
