// SPDX-License-Identifier: MIT
// Precompiled for the sources of tests/ranks, nearly all of which include this header.
#include "tests/ranks/ranks.hpp"
