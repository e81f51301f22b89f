// SPDX-License-Identifier: MIT
// The ledger's figures, for tests to compare in one line.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "memory/ledger.hpp"

namespace zero::test {

/// "reserved resident now peak", in bytes.
inline std::string figures(const KindBytes& of) {
  return fmt::format("{} {} {} {}", of.reserved, of.resident, of.now, of.peak);
}

/// The process's books of one kind, counted from the construction of this on.
class Change {
 public:
  explicit Change(Kind kind)
      : kind_(kind),
        before_(ledger().of(kind)) {
    ledger().restart_peaks();
  }
  KindBytes bytes() const {
    const KindBytes& after = ledger().of(kind_);
    return {after.reserved - before_.reserved,
            after.resident - before_.resident,
            after.now - before_.now,
            after.peak - before_.now};
  }
  std::string figures() const { return test::figures(bytes()); }

 private:
  Kind kind_;
  KindBytes before_;
};

}  // namespace zero::test
