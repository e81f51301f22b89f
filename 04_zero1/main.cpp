// SPDX-License-Identifier: MIT
#include "run/train.hpp"
#include "trainer.hpp"

int main(int argc, char** argv) { return zero::run_on_ranks<zero::Trainer>(argc, argv); }
