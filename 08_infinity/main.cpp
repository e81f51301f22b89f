// SPDX-License-Identifier: MIT
#include "run/session.hpp"
#include "trainer.hpp"

int main(int argc, char** argv) { return zero::run_on_ranks<zero::Trainer>(argc, argv); }
