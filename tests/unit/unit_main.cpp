// SPDX-License-Identifier: MIT
// doctest's main for tests without ranks. A filter that matches no test case is a failure.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/unit/count_listener.hpp"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  return failed != 0 || zero::test::cases_run() == 0 ? 1 : 0;
}
