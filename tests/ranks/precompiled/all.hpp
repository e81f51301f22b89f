// SPDX-License-Identifier: MIT
// Precompiled, as nearly all sources of this folder begin with it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/ranks/ranks.hpp"
