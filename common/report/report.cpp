// SPDX-License-Identifier: MIT
#include "report/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "comm/launcher.hpp"
#include "memory/error.hpp"

namespace zero {
namespace {
using Json = nlohmann::ordered_json;

/// The run's figures over all ranks, ready to print and to log.
struct Summary {
  struct Bytes {  // maxima over ranks
    std::int64_t reserved, resident, peak;
  };
  std::array<Bytes, kind_count> kinds{};
  Bytes total{};  // its peak: of the sum, as measured
  /// In use on a GPU beside what is reserved: its context, cuBLAS, NCCL. None on the CPU, nor where
  /// other ranks may use the same GPU.
  std::optional<std::int64_t> beyond;
  std::int64_t process_peak = 0;  // VmHWM above its value at the start, maximum over ranks
  decltype(Sent::elements) sent{};  // by one rank, maximum
  std::int64_t padding = 0;  // all ranks together
  std::int64_t scalars = 0;  // by one rank, maximum
  double median_ms = 0;  // after the warm-up, maximum over ranks
  std::vector<std::uint64_t> layer_digests;

  std::uint64_t digest() const {
    return std::accumulate(layer_digests.begin(), layer_digests.end(), std::uint64_t{0});
  }
  std::int64_t sent_in(Phase phase) const {
    std::int64_t sum = 0;
    for (const auto& phases : sent) sum += phases[static_cast<int>(phase)];
    return sum;
  }
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Without the first steps, whose time says nothing: caches and pages are cold.
double median_after_warm_up(const std::vector<double>& ms) {
  constexpr std::size_t warm_up = 3;
  return median({ms.begin() + (ms.size() > warm_up ? warm_up : 0), ms.end()});
}

std::vector<std::uint64_t> digests_over_ranks(const LayerDigests& digests, Communicator& comm) {
  const std::size_t layers = digests.layers.size();
  std::vector<std::uint64_t> all = comm.gather(digests.layers);
  for (std::size_t i = layers; i < all.size(); ++i) {
    std::uint64_t& layer = all[i % layers];
    if (!digests.replicated) {
      layer += all[i];
    } else if (layer != all[i]) {
      throw Error(ExitCode::numerics,
                  fmt::format("the parameters of layer {} differ between rank 0 ({:016x}) and rank "
                              "{} ({:016x}), which should hold the same",
                              i % layers, layer, i / layers, all[i]));
    }
  }
  all.resize(layers);
  return all;
}

Summary summarise(const Run& run, Communicator& comm, double own_median) {
  Summary summary;
  const Sent& sent = comm.sent();
  for (int kind = 0; kind < kind_count; ++kind) {
    const KindBytes& booked = ledger().of(static_cast<Kind>(kind));
    summary.kinds[kind] = {booked.reserved, booked.resident, booked.peak};
    summary.total.resident += booked.resident;
  }
  summary.total.reserved = ledger().reserved();
  summary.total.peak = ledger().peak_of_total();
  if (run.choice.device == Device::cuda && comm.size == 1) {
    DeviceMemory& gpu = memory_of(Device::cuda);
    summary.beyond = gpu.total() - gpu.available() - summary.total.reserved;
  }
  summary.process_peak = process_peak_bytes() - run.process_bytes_at_start;
  summary.sent = sent.elements;
  summary.scalars = sent.scalars;
  // One list of what the ranks are asked for, maxima first, so that one gather brings it all.
  std::vector<std::int64_t*> maxima{&summary.process_peak, &summary.scalars};
  const auto add = [&](Summary::Bytes& bytes) {
    maxima.insert(maxima.end(), {&bytes.reserved, &bytes.resident, &bytes.peak});
  };
  add(summary.total);
  for (Summary::Bytes& bytes : summary.kinds) add(bytes);
  for (auto& phases : summary.sent) {
    for (std::int64_t& elements : phases) maxima.push_back(&elements);
  }
  std::vector<std::uint64_t> mine;
  for (const std::int64_t* figure : maxima) mine.push_back(static_cast<std::uint64_t>(*figure));
  mine.push_back(static_cast<std::uint64_t>(sent.padding));
  mine.push_back(static_cast<std::uint64_t>(own_median * 1e6));  // nanoseconds
  const std::vector<std::uint64_t> all = comm.gather(mine);
  for (auto of_rank = all.begin(); of_rank != all.end();) {
    for (std::int64_t* figure : maxima) {
      *figure = std::max(*figure, static_cast<std::int64_t>(*of_rank++));
    }
    summary.padding += static_cast<std::int64_t>(*of_rank++);
    summary.median_ms = std::max(summary.median_ms, static_cast<double>(*of_rank++) / 1e6);
  }
  return summary;
}

// ---- The closing table ----

void print_bytes(const Summary& summary, const Prediction& predicted) {
  const auto row = [](const auto&... cells) {
    fmt::print("{:<18}{:>15}{:>15}{:>15}{:>15}\n", cells...);
  };
  fmt::print("\n");
  row("bytes of a rank", "predicted", "peak", "resident", "reserved");
  const auto bytes = [&](const std::string& name, const std::string& plan, Summary::Bytes b) {
    row("  " + name, plan, grouped(b.peak), grouped(b.resident), grouped(b.reserved));
  };
  for (int kind = 0; kind < kind_count; ++kind) {
    bytes(name_of(static_cast<Kind>(kind)), grouped(predicted.bytes[kind].peak),
          summary.kinds[kind]);
  }
  bytes("all together", "", summary.total);
  if (!summary.beyond) return;
  fmt::print("  {:<61}{:>15}\n", "beyond the formulas: context, libraries",
             grouped(*summary.beyond));
}

void print_traffic(const Summary& summary, const Prediction& predicted, Prediction::Steps steps,
                   bool counts) {
  fmt::print("\n{:<22}{:>24}{:>24}\n", "elements sent", "predicted", "counted");
  const auto row = [&](const char* name, std::int64_t plan, std::int64_t counted, bool is_counted) {
    // What a library sends within its own collectives, nobody else can count.
    const std::string figure = is_counted ? grouped(counted) : "by formula";
    fmt::print("  {:<20}{:>24}{:>24}\n", name, grouped(plan), figure);
  };
  for (const Phase phase : step_phases) {
    row(name_of(phase), predicted.sent(phase, steps), summary.sent_in(phase), counts);
  }
  row("padding, all ranks", predicted.padding_sent(steps), summary.padding, counts);
  row("scalars", predicted.scalars_sent(steps), summary.scalars, true);
}

// ---- The log ----

/// A path in the options need not be UTF-8; what is not becomes U+FFFD.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Numbers that are not finite become null; the others read back to the same bits.
Json finite_or_null(float x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json if_counted(bool counts, std::int64_t figure) { return counts ? Json(figure) : Json(nullptr); }

Json to_microseconds(double ms) { return std::round(ms * 1000) / 1000; }

Json run_json(const Run& run, const Communicator& comm) {
  Json named;
  for (const auto& [name, value] : run.values) {
    named[name] = std::visit([](const auto& held) { return Json(held); }, value);
  }
  const std::string library = comm.library(), gpu = memory_of(run.choice.device).words();
  return {{"chapter", run.chapter.name},
          {"ranks", comm.size},
          {"dtype", name_of(run.options.dtype)},
          {"family", family(run.chapter)},
          {"mpi", library.empty() ? Json(nullptr) : Json(library)},
          {"device", name_of(run.choice.device)},
          {"gpu", gpu.empty() ? Json(nullptr) : Json(gpu)},
          {"comm", run.chapter.ranks ? Json(name_of(run.choice.comm)) : Json(nullptr)},
          {"options", named},
          {"parameters", run.layout.parameters()},
          {"padded_parameters", run.layout.full_size()},
          {"layers", run.layout.layers()}};
}

Json memory_json(const Summary& summary, const Prediction& predicted) {
  Json memory;
  for (int kind = 0; kind < kind_count; ++kind) {
    const Summary::Bytes& measured = summary.kinds[kind];
    memory[name_of(static_cast<Kind>(kind))] = {
        {"predicted", predicted.bytes[kind].peak},
        {"predicted_resident", predicted.bytes[kind].resident},
        {"resident", measured.resident},
        {"reserved", measured.reserved},
        {"peak", measured.peak}};
  }
  memory["total"] = {{"resident", summary.total.resident},
                     {"reserved", summary.total.reserved},
                     {"peak", summary.total.peak},
                     {"process_peak", summary.process_peak},
                     {"beyond", summary.beyond ? Json(*summary.beyond) : Json(nullptr)}};
  return memory;
}

Json traffic_json(const Summary& summary, const Prediction& predicted, Prediction::Steps steps,
                  bool counts) {
  Json phases, collectives;
  for (const Phase phase : step_phases) {
    for (int c = 0; c < collective_count; ++c) {
      collectives[name_of(static_cast<Collective>(c))][name_of(phase)] =
          if_counted(counts, summary.sent[c][static_cast<int>(phase)]);
    }
    phases[name_of(phase)] = {{"predicted", predicted.sent(phase, steps)},
                              {"counted", if_counted(counts, summary.sent_in(phase))}};
  }
  const Json padding = {{"predicted", predicted.padding_sent(steps)},
                        {"counted", if_counted(counts, summary.padding)}};
  const Json scalars = {{"predicted", predicted.scalars_sent(steps)}, {"counted", summary.scalars}};
  return {
      {"phases", phases}, {"collectives", collectives}, {"padding", padding}, {"scalars", scalars}};
}
}  // namespace

Report::Report(const Run& run, Communicator& comm)
    : run_(run),
      comm_(comm),
      predicted_(predict(run.chapter, run.options, run.choice.device, run.layout)),
      prints_(comm.rank == 0 && !run.options.quiet),
      // Some launchers give the ranks terminals of their own, which nobody looks at.
      shows_progress_(prints_ && !launcher().started && isatty(fileno(stdout))),
      log_(nullptr, std::fclose),
      step_began_(Clock::now()) {
  const std::string& path = run.options.log;
  if (comm.rank == 0 && !path.empty()) {
    log_.reset(std::fopen(path.c_str(), "w"));
    if (!log_) {
      throw Error(ExitCode::usage,
                  fmt::format("--log {}: cannot be written: {}", path, std::strerror(errno)));
    }
    write(line_of({{"run", run_json(run, comm)}}));
  }
  if (prints_) print_header();
}

void Report::write(const std::string& line) {
  const bool written = std::fputs(line.c_str(), log_.get()) >= 0;
  if (written && std::fflush(log_.get()) == 0) return;
  throw Error(ExitCode::resources, fmt::format("{}: {}", run_.options.log, std::strerror(errno)));
}

void Report::add(const Verdict& step) {
  const auto now = Clock::now();
  const double ms = std::chrono::duration<double, std::milli>(now - step_began_).count();
  step_began_ = now;
  ms_.push_back(ms);
  skipped_ += step.skipped;
  if (prints_) print_step(step, ms);
  if (!log_) return;
  write(line_of({{"step", ms_.size()},
                 {"loss", finite_or_null(step.loss)},
                 {"grad_norm", finite_or_null(step.grad_norm)},
                 {"skipped", step.skipped},
                 {"ms", to_microseconds(ms)}}));
}

void Report::finish(const LayerDigests& digests) {
  Summary summary = summarise(run_, comm_, median_after_warm_up(ms_));
  summary.layer_digests = digests_over_ranks(digests, comm_);
  const Prediction::Steps steps{std::ssize(ms_), skipped_};
  if (prints_) {
    print_bytes(summary, predicted_);
    if (comm_.size > 1) print_traffic(summary, predicted_, steps, comm_.counts());
    fmt::print("\nparameters {:016x}   median {:.2f} ms a step   {} step{} skipped\n",
               summary.digest(), summary.median_ms, skipped_, skipped_ == 1 ? "" : "s");
  }
  flush_output();
  if (!log_) return;
  Json layers = Json::array();
  for (const std::uint64_t layer : summary.layer_digests) {
    layers.push_back(fmt::format("{:016x}", layer));
  }
  const Json all = {{"memory", memory_json(summary, predicted_)},
                    {"traffic", traffic_json(summary, predicted_, steps, comm_.counts())},
                    {"skipped_steps", skipped_},
                    {"median_ms", to_microseconds(summary.median_ms)},
                    {"digest", fmt::format("{:016x}", summary.digest())},
                    {"layer_digests", layers}};
  write(line_of({{"summary", all}}));
}

void Report::print_header() const {
  const std::string library = comm_.library(), words = memory_of(run_.choice.device).words();
  const std::string where = library.empty() ? "one process"
                                            : fmt::format("{} rank{} ({})", comm_.size,
                                                          comm_.size == 1 ? "" : "s", library);
  fmt::print("{}: {}, {}, task {}\n{} parameters, {} with padding\n{}{}\n", run_.chapter.name,
             where, name_of(run_.options.dtype), name_of(run_.options.task),
             grouped(predicted_.parameters), grouped(predicted_.padded), run_.choice.why,
             words.empty() ? "" : fmt::format(" ({})", words));
  const bool several = run_.options.accumulate > 1;
  const std::string added =
      several && comm_.size > 1 ? "; the ranks are added " + family(run_.chapter) : "";
  fmt::print("{} micro-batch{} of {} a rank and step{}\n\n", run_.options.accumulate,
             several ? "es" : "", run_.options.batch, added);
  fmt::print("{:>8}{:>12}{:>12}{:>12}\n", "step", "loss", "norm", "ms a step");
  std::fflush(stdout);
}

void Report::print_step(const Verdict& step, double ms) {
  using namespace std::chrono_literals;
  const auto done = static_cast<int>(ms_.size());
  const int tenth = std::max(1, run_.options.steps / 10);
  const bool last = done == run_.options.steps;
  const std::string line =
      fmt::format("{:>8}{:>12.5f}{:>12.5f}{:>12.2f}", done, step.loss, step.grad_norm, ms);
  const char* erase = shows_progress_ ? "\r\033[K" : "";
  if (step.skipped || done % tenth == 0 || last || done == 1) {
    fmt::print("{}{}{}\n", erase, line, step.skipped ? "  skipped: a gradient is not finite" : "");
  } else if (shows_progress_ && Clock::now() - line_began_ > 200ms) {
    const double left = median_after_warm_up(ms_) * (run_.options.steps - done) / 1000;
    fmt::print("{}{}  {:.0f} s left", erase, line, left);
  } else {
    return;
  }
  std::fflush(stdout);
  line_began_ = Clock::now();
}
}  // namespace zero
