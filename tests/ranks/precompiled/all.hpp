// SPDX-License-Identifier: MIT
// Precompiled for the sources of tests/ranks, all of which include ranks.hpp.
#include "tests/ranks/ranks.hpp"
