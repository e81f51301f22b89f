// SPDX-License-Identifier: MIT
// What many tests say in one line: a refusal, the ledger's figures, a stream that is late; and the
// elements of views.
#pragma once
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "memory/error.hpp"
#include "tests/unit/elements.hpp"

namespace zero::test {
/// f() must throw an Error of that code, one sentence with all of these words in it.
inline void check_refused(ExitCode code, const std::vector<std::string>& words, auto f) {
  try {
    f();
    FAIL_CHECK("accepted");
  } catch (const Error& error) {
    const std::string what = error.what();
    INFO(what);
    CHECK(error.code == code);
    CHECK(what.find('\n') == what.npos);
    for (const std::string& word : words) CHECK_MESSAGE(what.find(word) != what.npos, word);
  }
}

/// "reserved resident now peak", in bytes.
inline std::string figures(const KindBytes& of) {
  return fmt::format("{} {} {} {}", of.reserved, of.resident, of.now, of.peak);
}

/// The process's books of one kind, counted from the construction of this on.
struct Change {
  explicit Change(Kind kind, Place place = Place::device)
      : kind(kind), place(place), before(ledger(place).of(kind)) {
    ledger(place).restart_peaks();
  }
  std::string figures() const {
    const KindBytes& after = ledger(place).of(kind);
    return test::figures({after.reserved - before.reserved, after.resident - before.resident,
                          after.now - before.now, after.peak - before.now});
  }

  const Kind kind;
  const Place place;
  const KindBytes before;
};

/// A stream with a thread of its own.
struct Worker : Stream {
  explicit Worker(const char* name) : Stream(name, Device::cpu, Mode::worker) {}
};

/// Every task of streams of that name starts so much later, waits not, which makes the schedule in
/// which a missing wait shows; of the streams that are constructed until the end of the scope.
struct Delay {
  Delay(const std::string& late, std::chrono::microseconds time) {
    Stream::observe([=](const std::string& stream) -> Stream::Observer {
      if (stream != late) return {};
      return [=](const Work& work, Kernels&, bool begins) {
        if (begins && work.sort != Work::Sort::wait) std::this_thread::sleep_for(time);
      };
    });
  }
  ~Delay() { Stream::observe({}); }
};
}  // namespace zero::test
