// SPDX-License-Identifier: MIT
// Counts the test cases that ran, because doctest calls it success when none did.
#pragma once
#include <doctest/doctest.h>

#include <string>

namespace zero::test {
/// Why a case could test nothing here; else empty. If set, main.cpp exits with 77 unless one fails.
inline std::string why_skipped;

inline unsigned& cases_run() {
  static unsigned count = 0;
  return count;
}

struct CountListener : doctest::IReporter {
  explicit CountListener(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run() = stats.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("count", 1, CountListener);
}  // namespace zero::test
