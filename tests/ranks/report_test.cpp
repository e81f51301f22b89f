// SPDX-License-Identifier: MIT
// The summary in the log: where ranks differ, it has the most bytes and the longest time of any. A
// count that is not as predicted ends the run.
#include "report/report.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
constexpr Card whole{.name = "whole",
                     .held = {.optimizer = Placement::sharded_on_host},
                     .copied = {.to_host = once_a_step(), .to_device = once_a_step()}};

/// A Report on all ranks. finish() reads its log; the destructor removes the log.
struct Reported {
  /// Ends the report. Returns the log's lines on rank 0, and none on the others.
  std::vector<Json> finish() {
    const auto finish = [&] { report.finish({{1}}); };
    // report.finish() writes the log, then refuses the counts, which no run of `whole` has made.
    check_refused(ExitCode::numerics, {"bytes of parameters held: 0 counted, "}, finish);
    std::vector<Json> lines;
    std::ifstream log(options.log);
    for (std::string line; ranks().rank == 0 && std::getline(log, line);) {
      lines.push_back(Json::parse(line));
    }
    return lines;
  }
  ~Reported() { std::filesystem::remove(options.log); }

  const Options options = [] {
    Options o = mlp_options(8, 1);
    o.quiet = true;
    o.log = fmt::format("{}/report-{}", std::filesystem::temp_directory_path().string(), getpid());
    return o;
  }();
  const Layout layout = layout_here(options);
  const std::unique_ptr<Device> device = make_cpu();  // with an empty ledger
  Recorder recorder{*device, true, false, false};
  const std::unique_ptr<Communicator> owned = ranks().communicator(options, layout);
  Communicator& comm = *owned;
  const OptionValues values{};
  Report report{{whole, options, values, ranks().choice, *device, layout, recorder}, comm};
};

bool last() { return ranks().rank + 1 == ranks().size; }
}  // namespace

TEST_CASE("the median is the slowest rank's, and not of its first three steps") {
  for (const int slow : {ranks().size - 1, 0}) {
    Reported run;
    for (const int ms : {20, 20, 20, 0, 10, 40, 0, 20}) {
      if (ranks().rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      run.report.add({});
    }
    const std::vector<Json> lines = run.finish();
    if (ranks().rank > 0) continue;
    REQUIRE(lines.size() == 10);
    std::vector<double> mine;
    for (int step = 4; step <= 8; ++step) mine.push_back(lines[step]["ms"]);
    std::ranges::sort(mine);
    const double median = lines.back()["summary"]["median_ms"];
    CHECK(median >= 10);  // a sleep is never shorter
    if (slow == 0) CHECK(median == mine[2]);
  }
}

TEST_CASE("bytes are of the rank that has most, padding is of all ranks") {
  Reported run;
  Tensor data(*run.device, Kind::data, Dtype::fp32, last() ? 1000 : 10);
  Tensor workspace(*run.device, Kind::workspace, Dtype::fp32, last() ? 10 : 500);
  Scratch scratch(*run.device, Kind::activations, Dtype::fp32, 1500);
  if (ranks().rank == 0) scratch.borrow();
  const std::int64_t n = ranks().size;
  Tensor full(device(), Kind::gradients, Dtype::fp32, 8 * n);
  View padded = full.view();  // padding: 8 elements of the last rank, 3 of the one before
  padded.used = std::max<std::int64_t>(padded.size - 11, 0);
  const PhaseScope phase(Phase::forward);
  Stream stream("test", device());
  run.comm.all_gather(stream, padded.part(8 * ranks().rank, 8), padded);
  stream.synchronise();
  run.report.add({});
  const std::vector<Json> lines = run.finish();
  if (ranks().rank > 0) return;
  const Json& summary = lines.back()["summary"];
  const auto check = [&](const char* kind, std::int64_t resident, std::int64_t reserved,
                         std::int64_t peak) {
    const Json& row = summary["memory"][kind];
    CHECK(row["resident"] == resident);
    CHECK(row["reserved"] == reserved);
    CHECK(row["peak"] == peak);
  };
  const std::int64_t most = n > 1 ? 2000 : 40;
  check("data", 4000, 4000, 4000);
  check("workspace", most, most, most);
  check("activations", 0, 6000, 6000);
  check("total", 4040, 10040, n > 1 ? 8040 : 10040);
  const Json& passed = summary["traffic"];
  if (run.comm.counts()) {
    CHECK(passed["padding"]["counted"] == 11 * (n - 1));
    CHECK(passed["phases"]["forward"]["counted"] == 8 * (n - 1));
  }
  // The predictions come from the card, which knows nothing of what this test did.
  CHECK(passed["padding"]["predicted"] == 0);
  CHECK(passed["phases"]["forward"]["predicted"] == 0);
  CHECK(passed["scalars"]["predicted"] == 2 * (n - 1));
  CHECK(summary["bus"]["to_device"]["predicted"] > 0);
  const auto held = 4 * run.layout.full_size();
  CHECK(summary["memory"]["parameters"]["predicted"] == held);
}

TEST_CASE("each figure that is not as predicted is refused, with both numbers") {
  Json right = Json::parse(R"({
    "memory": {"data": {"predicted": 40, "reserved": 40, "peak": 40,
                        "predicted_resident": 40, "resident": 40}},
    "host_memory": {"optimizer": {"predicted_resident": 40, "resident": 40}},
    "disk_memory": {"optimizer": {"predicted_resident": 40, "resident": 40}},
    "disk": {"read": {"predicted": 40, "counted": 40}},
    "bus": {"to_device": {"predicted": 40, "counted": 40}},
    "traffic": {"phases": {"forward": {"predicted": 40, "counted": 40}},
                "padding": {"predicted": 40, "counted": 40},
                "scalars": {"predicted": 40, "counted": 40}}})");
  CHECK_NOTHROW(check_counts(right));
  for (const auto& [figure, what] :
       {std::array{"/memory/data/resident", "bytes of data held"},
        {"/memory/data/peak", "bytes of data at the peak"},
        {"/memory/data/reserved", "bytes of data reserved"},
        {"/host_memory/optimizer/resident", "bytes of optimizer on the host held"},
        {"/disk_memory/optimizer/resident", "bytes of optimizer on the disk held"},
        {"/disk/read/counted", "bytes read"},
        {"/bus/to_device/counted", "bytes copied to_device"},
        {"/traffic/phases/forward/counted", "elements sent in forward"},
        {"/traffic/padding/counted", "elements sent in padding"},
        {"/traffic/scalars/counted", "elements sent in scalars"}}) {
    Json wrong = right;
    wrong[Json::json_pointer(figure)] = 41;
    check_refused(ExitCode::numerics, {fmt::format("{}: 41 counted, 40 predicted", what)},
                  [&] { check_counts(wrong); });
  }
  right["traffic"]["padding"]["counted"] = nullptr;  // NCCL's own collectives count nothing
  CHECK_NOTHROW(check_counts(right));
}
}  // namespace zero::test
