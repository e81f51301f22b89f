// SPDX-License-Identifier: MIT
// Options in, one training run, a report out. One process, no MPI.
#include <cstdio>

#include "memory/error.hpp"
#include "report/report.hpp"
#include "run/choice.hpp"
#include "trainer.hpp"

int main(int argc, char** argv) {
  using namespace zero;
  const Chapter& chapter = Trainer::chapter;
  const Formulas formulas = formulas_of<Trainer>();
  const Command command = read_command(argc, argv, chapter);
  if (const auto exit_code = answer_alone(command, chapter, formulas)) return *exit_code;
  try {
    const Options options = choose_alone(command.options);
    Ranks alone;
    check_memory(formulas, options, 1, 1);
    const auto data = make_data(options);
    Trainer trainer(options);
    const auto report =
        std::make_unique<Report>(chapter, command, formulas, options, trainer.layout(), alone);
    for (int step = 0; step < options.steps; ++step) report->add(trainer.step(*data, step));
    report->finish(layer_digests(trainer));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", chapter.name, error.what());
    return exit_code_of(error);
  }
}
