// SPDX-License-Identifier: MIT
// Errors, and the exit codes with which they end the program.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>

namespace zero {
enum class ExitCode { usage = 2, data = 3, communication = 4, numerics = 5, resources = 6 };

/// Says in one sentence what is wrong, with numbers, and what to do. The program ends with `code`.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code(code) {}
  const ExitCode code;
};

/// If a precondition of our own code does not hold, throws std::logic_error with the caller's name.
void expect(bool holds, const char* what,
            std::source_location where = std::source_location::current());

/// Flushes standard output. Throws Error (resources) if what was printed cannot be written.
void flush_output();
}  // namespace zero
