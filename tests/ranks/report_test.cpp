// SPDX-License-Identifier: MIT
// What the log's summary says of ranks that differ; their clocks, which need not agree, and a trace
// by one of them.
#include "report/report.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/ranks/ranks.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
constexpr Card whole{
    .name = "whole", .held = {.optimizer = Held::sharded_on_host}, .copied = {1, 1}};

/// A report of ranks with a communicator; its log is read when it is finished, and goes with it.
struct Reported {
  /// The log's lines on rank 0, none on the others.
  std::vector<Json> finish() {
    const auto finish = [&] { report.finish({{1}}); };
    // Once all is logged: what was counted here is made up.
    check_refused(ExitCode::numerics, {"bytes of parameters held: 0 counted, "}, finish);
    std::vector<Json> lines;
    std::ifstream log(options.log);
    for (std::string line; ranks().rank == 0 && std::getline(log, line);) {
      lines.push_back(Json::parse(line));
    }
    return lines;
  }
  ~Reported() { std::filesystem::remove(options.log); }

  const std::int64_t bytes_at_start = 0;
  const std::array<Footprint, 3> footprints{Footprint{.peak = bytes_at_start}};
  const Options options = [] {
    Options o = mlp_options(8, 1);
    o.quiet = true;
    o.log = fmt::format("{}/report-{}", std::filesystem::temp_directory_path().string(), getpid());
    return o;
  }();
  const Layout layout = layout_here(options);
  const std::unique_ptr<Device> device = make_cpu();  // whose ledger is empty
  Recorder recorder{*device, true, 2};
  Communicator comm = ranks().communicator(options, layout);
  const OptionValues values{};
  Report report{{whole, options, values, ranks().choice, *device, layout, footprints, recorder},
                comm};
};

using std::chrono::nanoseconds;

/// Two hosts' clocks begin when the hosts do: here an hour later on each rank than on the one
/// before.
nanoseconds ahead() { return std::chrono::hours(ranks().rank); }
Clock::time_point shifted_clock() { return Clock::now() + ahead(); }

Communicator talk() { return ranks().communicator({}, layout_here({})); }

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
    CHECK(median >= 10);  // which a sleep does not fall short of
    if (slow == 0) CHECK(median == mine[2]);
  }
}

TEST_CASE("a check on the way is in no step's time") {
  Reported run;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  run.report.check({{1}});
  run.report.add({});
  const std::vector<Json> lines = run.finish();
  if (ranks().rank == 0) CHECK(lines.at(1)["ms"] < 500);
}

TEST_CASE("bytes are of the rank that has most, padding is of all ranks") {
  Reported run{.bytes_at_start = last() ? -(std::int64_t{1} << 40) : 0};
  const Tensor data(*run.device, Kind::data, Dtype::fp32, last() ? 1000 : 10);
  const Tensor workspace(*run.device, Kind::workspace, Dtype::fp32, last() ? 10 : 500);
  const Scratch scratch(*run.device, Kind::activations, Dtype::fp32, 1500);
  if (ranks().rank == 0) scratch.borrow();
  const std::int64_t n = ranks().size;
  const Tensor full(device(), Kind::gradients, Dtype::fp32, 8 * n);
  View padded = full.view();  // 8 of the last rank's, 3 of another's
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
  CHECK((summary["memory"]["total"]["process_peak"].get<std::int64_t>() >> 40) == 1);
  const Json& passed = summary["traffic"];
  if (run.comm.counts()) {
    CHECK(passed["padding"]["counted"] == 11 * (n - 1));
    CHECK(passed["phases"]["forward"]["counted"] == 8 * (n - 1));
  }
  // The card's figures know nothing of all that, and of what nobody holds.
  CHECK(passed["padding"]["predicted"] == 0);
  CHECK(passed["phases"]["forward"]["predicted"] == 0);
  CHECK(passed["scalars"]["predicted"] == 2 * (n - 1));
  CHECK(summary["bus"]["up"]["predicted"] > 0);
  const auto held = 4 * run.layout.full_size();
  CHECK(summary["memory"]["parameters"]["predicted"] == held);
  CHECK(summary["phases"][0]["predicted"]["parameters"] == held);
}

TEST_CASE("memory by phase is of the rank with the largest peak, and of all together") {
  here.step = 0;
  Reported run;
  const Tensor data(*run.device, Kind::data, Dtype::fp32, last() ? 1000 : 10);
  const Scratch scratch(*run.device, Kind::activations, Dtype::fp32, 500);
  if (ranks().rank == 0) scratch.borrow();
  run.report.add({});
  const std::vector<Json> lines = run.finish();
  if (ranks().rank > 0) return;
  const std::int64_t n = ranks().size, all = 4000 + 40 * (n - 1);
  const Json& phases = lines.back()["summary"]["phases"];
  REQUIRE(phases.size() == 5);
  for (const Json& row : phases) {
    const int start = row["phase"] == "start";
    CHECK(row["step"] == 1 - start);
    CHECK(row["rank"] == n - 1);
    CHECK(row["bytes"]["data"] == 4000);
    CHECK(row["in_use"] == 4000);
    CHECK(row["change"] == 4000 * start);
    CHECK(row["peak"] == 4000 + (n == 1 ? 2000 * start : 0));
    CHECK(row["all_ranks"]["in_use"] == all);
    CHECK(row["all_ranks"]["peak"] == all + 2000 * start);
  }
}

TEST_CASE("each figure that is not as predicted is refused, with both numbers") {
  Json right = Json::parse(R"({
    "memory": {"data": {"predicted": 40, "reserved": 40, "peak": 40,
                        "predicted_resident": 40, "resident": 40}},
    "host_memory": {"optimizer": {"predicted_resident": 40, "resident": 40}},
    "bus": {"up": {"predicted": 40, "counted": 40}},
    "phases": [{"step": 0, "phase": "start", "in_use": 40, "peak": 40,
                "bytes": {"data": 40}, "predicted": {"data": 40}},
               {"step": 2, "phase": "update", "in_use": 40, "peak": 50,
                "bytes": {"data": 40}, "predicted": {"data": 40}}],
    "traffic": {"phases": {"forward": {"predicted": 40, "counted": 40}},
                "padding": {"predicted": 40, "counted": 40},
                "scalars": {"predicted": 40, "counted": 40}}})");
  CHECK_NOTHROW(check_counts(right));
  for (const auto& [figure, what] :
       {std::array{"/memory/data/resident", "bytes of data held"},
        {"/memory/data/peak", "bytes of data at the peak"},
        {"/memory/data/reserved", "bytes of data reserved"},
        {"/host_memory/optimizer/resident", "bytes of optimizer on the host held"},
        {"/bus/up/counted", "bytes copied up"},
        {"/phases/0/bytes/data", "bytes of data after start"},
        {"/phases/0/peak", "bytes at the peak of the start"},
        {"/phases/1/bytes/data", "bytes of data after update of step 2"},
        {"/traffic/phases/forward/counted", "elements sent in forward"},
        {"/traffic/padding/counted", "elements sent in padding"},
        {"/traffic/scalars/counted", "elements sent in scalars"}}) {
    Json wrong = right;
    wrong[Json::json_pointer(figure)] = 41;
    check_refused(ExitCode::numerics, {fmt::format("{}: 41 counted, 40 predicted", what)},
                  [&] { check_counts(wrong); });
  }
  right["traffic"]["padding"]["counted"] = nullptr;  // by a library alone
  CHECK_NOTHROW(check_counts(right));
}

TEST_CASE("a run says in what its ranks are equal, and whether its digest is the recorded one") {
  Reported of;
  const int n = ranks().size;
  const Run run{whole,         of.options,  of.values, ranks().choice, *of.device, of.layout,
                of.footprints, of.recorder, "ab"};
  const std::string digest = "digest (a fingerprint of all parameters): ";
  LayerDigests held{{7, 8}, true, {{Kind::parameters, {7, 0}}, {Kind::optimizer, {0, 0}}}};
  CHECK(proofs(run, held, "ab", 20) ==
        fmt::format("replicas: all {} ranks hold equal parameters, compared after step 20\n{}the "
                    "recorded one of this run\n",
                    n, digest));
  held.copies[Kind::parameters] = {0, 0};
  CHECK(proofs(run, held, "cd", 20) == (n > 1 ? "replicas: none, each rank holds shards\n" : "") +
                                           digest + "not the recorded ab\n");
}

TEST_CASE("the offset of a clock is within its error, whoever comes late") {
  Communicator comm = talk();
  for (int late = 0; late < ranks().size; ++late) {
    if (ranks().rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const ClockOffset clock = clock_offset(comm, shifted_clock);
    CHECK(std::chrono::abs(clock.offset + ahead()) <= clock.error);
    CHECK(clock.error < std::chrono::seconds(1));
    if (ranks().rank == 0) CHECK(clock.error == nanoseconds(0));
  }
}

TEST_CASE("of many rounds the shortest counts") {
  Communicator comm = talk();
  std::vector<Clock::time_point> readings;  // two a round
  const ClockOffset clock = clock_offset(comm, [&] {
    // All but one of the rounds last long, on all ranks.
    if (readings.size() != 7) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return readings.emplace_back(shifted_clock());
  });
  nanoseconds shortest = nanoseconds::max();
  for (std::size_t i = 3; i < readings.size(); i += 2) {
    shortest = std::min(shortest, readings[i] - readings[i - 3]);
  }
  CHECK(clock.error == (ranks().rank == 0 ? nanoseconds(0) : shortest / 2));
  CHECK(std::chrono::abs(clock.offset + ahead()) <= clock.error);
}

TEST_CASE("a trace is by rank 0's clock, from the first event of all, without what comes late") {
  Communicator comm = talk();
  const auto start = [&] {  // the same moment on all ranks, by each one's clock
    const std::uint64_t mine = Clock::now().time_since_epoch().count();
    return Clock::time_point(nanoseconds(comm.gather({&mine, 1})[0])) + ahead();
  }();
  const auto at = [&](nanoseconds later) { return Moment{start + later, nullptr}; };
  using namespace std::chrono_literals;
  const auto slice = [](const Work& work, int step, const Moment& begin, const Moment& end) {
    return Slice{work, 1, Phase::forward, step, begin, end};
  };
  const Work task{.what = "a task"}, last_task{.what = "a last task"};
  const Work wait{"a long one", Work::Sort::wait}, short_wait{"a short one", Work::Sort::wait};
  const Moment mine = at(1s * (ranks().rank + 1));
  const Recording seen{
      {"host", "compute"},
      {slice(task, 1, mine, at(20s)), slice(last_task, 8, at(20s), at(21s)),
       slice(wait, 1, at(22s), at(22s + 1us)), slice(short_wait, 1, at(24s), at(24s + 999ns)),
       slice(task, 9, at(25s), at(26s))},
      {}};
  const std::string text =
      chrome_trace(seen, "a chapter", Dtype::bf16, clock_offset(comm, shifted_clock), comm);
  CHECK(text.empty() == (ranks().rank > 0));
  if (ranks().rank > 0) return;
  const auto read = nlohmann::json::parse(text);
  std::vector<double> errors = read["otherData"]["clock_error_us"];
  REQUIRE(errors.size() == static_cast<std::size_t>(ranks().size));
  std::vector<std::string> names(ranks().size);
  for (const auto& event : read["traceEvents"]) {
    if (event["ph"] == "M") continue;
    const int rank = event["pid"];
    const std::string name = event["name"];
    names[rank] += name + "; ";
    CHECK(event["ts"] >= 0);
    const double due = name == "a task" ? 1e6 * rank : name == "a last task" ? 19e6 : 21e6;
    CHECK(std::abs(event["ts"].get<double>() - due) <= 0.002 + errors[rank]);
  }
  for (const auto& told : names) CHECK(told == "a task; a last task; waits for a long one; ");
}
}  // namespace zero::test
