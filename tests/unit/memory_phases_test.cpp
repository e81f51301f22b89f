// SPDX-License-Identifier: MIT
// What was in use after each phase and at most within it, from made-up bookings.
#include "tests/unit/checks.hpp"
#include "trace/views.hpp"

namespace zero::test {
namespace {
using enum Phase;
using Row = std::array<std::int64_t, 3>;  // in use at the end, change, peak

/// A booking after which parameters and activations take so many bytes.
Booked booked(int step, Phase phase, std::int64_t parameters, std::int64_t activations = 0) {
  Booked now{{}, phase, step, {}};
  now.bytes[Kind::parameters] = parameters;
  now.bytes[Kind::activations] = activations;
  return now;
}

std::vector<Row> rows(const std::vector<Booked>& all, int steps = 1) {
  std::vector<Row> rows;
  for (const MemoryPhase& row : memory_phases(all, steps)) {
    rows.push_back({row.in_use, row.change, row.peak});
  }
  return rows;
}
}  // namespace

TEST_CASE("memory by phase: the start can have a peak of its own") {
  CHECK(rows({booked(0, setup, 500), booked(0, setup, 100), booked(1, load, 100, 1)})[0] ==
        Row{100, 100, 500});
  // What was there when the first of it was booked counts with it.
  CHECK(rows({booked(0, setup, 100, 20)})[0] == Row{120, 120, 120});
}

TEST_CASE("memory by phase: one without bookings ends as it began") {
  CHECK(rows({booked(0, setup, 10), booked(1, backward, 30)}) ==
        std::vector<Row>{{10, 10, 10}, {10, 0, 10}, {10, 0, 10}, {30, 20, 30}, {30, 0, 30}});
  CHECK(rows({}, 2) == std::vector<Row>(9, Row{0, 0, 0}));
}

TEST_CASE("memory by phase: of several micro-batches the end is the last, the peak is of all") {
  const std::vector<Booked> all = {
      booked(0, setup, 10),       booked(1, load, 10, 5),     booked(1, forward, 10, 80),
      booked(1, forward, 10, 60), booked(1, backward, 40, 0), booked(1, load, 40, 6),
      booked(1, forward, 40, 30), booked(1, backward, 20, 0), booked(1, update, 10, 0)};
  CHECK(rows(all) ==
        std::vector<Row>{{10, 10, 10}, {46, 36, 46}, {70, 24, 90}, {20, -50, 70}, {10, -10, 20}});
}

TEST_CASE("memory by phase: the second step goes on where the first ended, the third is left out") {
  std::vector<Booked> all = {booked(0, setup, 10),     booked(1, load, 10, 5),
                             booked(1, update, 12, 0), booked(2, load, 12, 5),
                             booked(2, update, 11, 0), booked(3, forward, 900, 0)};
  const std::vector<Row> both = rows(all, 3);
  CHECK(both[4] == Row{12, -3, 15});
  CHECK(both[5] == Row{17, 5, 17});
  CHECK(both[8] == Row{11, -6, 17});
  all.resize(3);
  CHECK(rows(all) == std::vector<Row>(both.begin(), both.begin() + 5));
}
}  // namespace zero::test
