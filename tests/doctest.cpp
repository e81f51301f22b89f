// SPDX-License-Identifier: MIT
// doctest itself, compiled once for all programs of tests.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
