// SPDX-License-Identifier: MIT
#include "run/alone.hpp"

#include <cstdlib>

#include "memory/error.hpp"
#include "run/choice.hpp"
#include "run/failure.hpp"

namespace zero {

Alone::Alone(const Chapter& chapter) {
  fail_fast(chapter.name, [](int code) { std::_Exit(code); });
}

Choice Alone::agree(const Command& command, const Chapter&) {
  watchdog_.emplace(std::chrono::seconds(command.options.timeout),
                    [](const std::string& what) { fail(Error(ExitCode::communication, what)); });
  const Choice choice = choose(command.options, {visible_gpus()});
  if (choice.device == Device::cuda) use_gpu(choice.gpu);
  return choice;
}

}  // namespace zero
