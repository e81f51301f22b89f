// SPDX-License-Identifier: MIT
#include "run/alone.hpp"
#include "trainer.hpp"

int main(int argc, char** argv) {
  return zero::run_alone<zero::Trainer>(argc, argv);
}
