// SPDX-License-Identifier: MIT
// Options in, one training run, a report out. The same text in 02 to 06.
#include "report/report.hpp"
#include "run/session.hpp"
#include "trainer.hpp"

int main(int argc, char** argv) {
  using namespace zero;
  const Chapter& chapter = Trainer::chapter;
  const Formulas formulas = formulas_of<Trainer>();
  const Command command = read_command(argc, argv, chapter);
  if (const auto exit_code = answer_alone(command, chapter, formulas)) return *exit_code;
  Session session(argc, argv);
  try {
    const Options options = session.agree(command, chapter);  // device and transport too
    session.agree(
        [&] { return check_memory(formulas, options, session.size(), session.sharing()); });
    const auto data =
        session.agree([&] { return make_data(options, session.rank(), session.size()); });
    const auto comm = make_communicator(session, options);
    Trainer trainer(options, *comm);
    const auto report = session.agree([&] {
      return std::make_unique<Report>(chapter, command, formulas, options, trainer.layout(), *comm);
    });
    for (int step = 0; step < options.steps; ++step) report->add(trainer.step(*data, step));
    report->finish(layer_digests(trainer));
    return 0;
  } catch (const Refusal& refusal) {
    return session.refuse(refusal);
  } catch (const std::exception& error) {
    session.abort(error);
  }
}
