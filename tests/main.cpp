// SPDX-License-Identifier: MIT
// The main function of tests without ranks: PROGRAM [cuda] [doctest options]. Exits with 1 if a
// case fails or none runs; with 77, skipped, and the reason, if with `cuda` it finds no GPU.
#include <doctest/doctest.h>

#include <cstdio>
#include <string_view>

#include "memory/device.hpp"
#include "tests/count_listener.hpp"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "cuda") {
    const zero::Gpus gpus = zero::visible_gpus();
    if (gpus.count == 0) {
      std::printf("%s\n", gpus.why_none.c_str());
      return 77;
    }
  }
  const int failed = doctest::Context(argc, argv).run();
  if (failed != 0 || zero::test::cases_run() == 0) return 1;
  if (zero::test::why_skipped.empty()) return 0;
  std::printf("%s\n", zero::test::why_skipped.c_str());
  return 77;
}
