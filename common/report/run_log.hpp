// SPDX-License-Identifier: MIT
// The run as JSON lines: one {"run"}, a line a step, one {"summary"}.
#pragma once
#include <cstdio>
#include <memory>
#include <string>

#include "report/report.hpp"

namespace zero {

class RunLog {
 public:
  /// Throws Error (usage) when the file cannot be opened for writing.
  explicit RunLog(const std::string& path);

  void run(const Chapter& chapter,
           const Command& command,
           const Options& options,
           const Formulas& formulas,
           const Layout& layout,
           const Ranks& ranks);
  /// Numbers that are not finite become null; the others read back to the same bits.
  void step(int number, const StepReport& report, double ms);
  /// counted: false where a library's own collectives hide what they send; then null is written.
  void summary(const Summary& summary, const Prediction& plan, bool counted);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write(const std::string& line);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace zero
