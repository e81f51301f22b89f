// SPDX-License-Identifier: MIT
// What can go wrong, and the exit code it ends the program with.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>

namespace zero {
enum class ExitCode { usage = 2, data = 3, communication = 4, numerics = 5, resources = 6 };

/// One sentence with the numbers in it and what to do; the program ends with it and with `code`.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code(code) {}
  const ExitCode code;
};

/// A precondition of our own code: throws std::logic_error naming the caller when it does not hold.
void expect(bool holds, const char* what,
            std::source_location where = std::source_location::current());

/// Throws Error (resources) when standard output cannot take what was printed.
void flush_output();
}  // namespace zero
