// SPDX-License-Identifier: MIT
// doctest's main for tests that need a GPU: without one they are skipped, with the reason.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "memory/device.hpp"
#include "tests/unit/count_listener.hpp"

int main(int argc, char** argv) {
  const zero::Gpus gpus = zero::visible_gpus();
  if (gpus.count == 0) {
    std::printf("%s\n", gpus.why_none.c_str());
    return 77;
  }
  zero::use_device(zero::Device::cuda);
  doctest::Context context(argc, argv);
  const int failed = context.run();
  return failed != 0 || zero::test::cases_run() == 0 ? 1 : 0;
}
