// SPDX-License-Identifier: MIT
#include "report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "memory/error.hpp"
#include "report/run_log.hpp"
#include "report/table.hpp"
#include "report/terminal.hpp"
#include "train/data.hpp"

namespace zero {

namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Steps whose time says nothing: caches and pages are cold.
constexpr std::size_t warm_up = 3;

double median_after_warm_up(const std::vector<double>& ms) {
  if (ms.size() <= warm_up) return median(ms);
  return median({ms.begin() + warm_up, ms.end()});
}

}  // namespace

Report::Report(const Run& run, Communicator& comm)
    : run_(run),
      comm_(comm),
      plan_(predict(run.chapter, run.options, run.choice.device, run.layout)),
      prints_(comm.rank == 0 && !run.options.quiet),
      terminal_(prints_ ? open_terminal() : nullptr),
      step_began_(Clock::now()) {
  if (comm.rank == 0 && !run.options.log.empty()) {
    log_ = std::make_unique<RunLog>(run.options.log);
    log_->run(run, comm);
  }
  if (prints_) print_header();
}

Report::~Report() {
  if (terminal_) std::fclose(terminal_);
}

void Report::add(const Verdict& step) {
  const auto now = Clock::now();
  const double ms = std::chrono::duration<double, std::milli>(now - step_began_).count();
  step_began_ = now;
  ms_.push_back(ms);
  skipped_ += step.skipped;
  if (prints_) print_step(step, ms);
  if (log_) log_->step(static_cast<int>(ms_.size()), step, ms);
}

void Report::finish(const LayerDigests& digests) {
  const Summary summary = summarise(digests);
  if (prints_) print_summary(summary);
  flush_output();
  if (log_) log_->summary(summary, plan_, comm_.counts());
}

void Report::print_header() const {
  const std::string where =
      comm_.library().empty()
          ? "one process"
          : fmt::format("{} rank{} ({})", comm_.size, comm_.size == 1 ? "" : "s", comm_.library());
  fmt::print("{}: {}, {}, task {}\n{} parameters, {} with padding\n",
             run_.chapter.name,
             where,
             name_of(run_.options.dtype),
             name_of(run_.options.task),
             grouped(plan_.parameters),
             grouped(plan_.padded));
  if (!run_.choice.why.empty()) {
    const std::string words = memory_of(run_.choice.device).words();
    fmt::print("{}{}\n", run_.choice.why, words.empty() ? "" : fmt::format(" ({})", words));
  }
  const bool several = run_.options.accumulate > 1;
  fmt::print("{} micro-batch{} of {} a rank and step{}\n\n",
             run_.options.accumulate,
             several ? "es" : "",
             run_.options.batch,
             several && comm_.size > 1
                 ? fmt::format("; the ranks are added {}", family(run_.chapter))
                 : "");
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
  if (step.skipped || done % tenth == 0 || last || done == 1) {
    if (terminal_) fmt::print(terminal_, "\r\033[K"), std::fflush(terminal_);
    fmt::print("{}{}\n", line, step.skipped ? "  skipped: a gradient is not finite" : "");
    std::fflush(stdout);
    terminal_written_ = Clock::now();  // a launcher takes its time to pass the line on
  } else if (terminal_ && Clock::now() - terminal_written_ > 200ms) {
    const double left = median_after_warm_up(ms_) * (run_.options.steps - done) / 1000;
    fmt::print(terminal_, "\r\033[K{}  {:.0f} s left", line, left);
    std::fflush(terminal_);
    terminal_written_ = Clock::now();
  }
}

Summary Report::summarise(const LayerDigests& digests) {
  Summary summary;
  summary.steps = static_cast<std::int64_t>(ms_.size());
  summary.skipped = skipped_;
  // One list of what the ranks are asked for, maxima first, so that one gather brings it all.
  std::vector<std::int64_t*> maxima{&summary.total.reserved,
                                    &summary.total.resident,
                                    &summary.total.peak,
                                    &summary.process_peak,
                                    &summary.scalars};
  for (auto& kind : summary.bytes) {
    maxima.insert(maxima.end(), {&kind.reserved, &kind.resident, &kind.peak});
  }
  for (auto& phases : summary.sent) {
    for (std::int64_t& elements : phases) maxima.push_back(&elements);
  }
  const Sent& sent = comm_.sent();
  for (int kind = 0; kind < kind_count; ++kind) {
    const KindBytes& booked = ledger().of(static_cast<Kind>(kind));
    summary.bytes[kind] = {booked.reserved, booked.resident, booked.peak};
    summary.total.resident += booked.resident;
  }
  summary.total.reserved = ledger().reserved();
  summary.total.peak = ledger().peak_of_total();
  if (run_.choice.device == Device::cuda && comm_.size == 1) {
    summary.beyond = memory_of(Device::cuda).total() - memory_of(Device::cuda).available() -
                     summary.total.reserved;
  }
  summary.process_peak = process_peak_bytes() - run_.process_bytes_at_start;
  summary.sent = sent.elements;
  summary.scalars = sent.scalars;

  const double own_median = median_after_warm_up(ms_);
  std::vector<std::uint64_t> mine;
  for (const std::int64_t* figure : maxima) mine.push_back(static_cast<std::uint64_t>(*figure));
  mine.push_back(static_cast<std::uint64_t>(sent.padding));
  mine.push_back(static_cast<std::uint64_t>(own_median * 1e6));  // nanoseconds
  const std::vector<std::uint64_t> all = comm_.gather(mine);
  for (std::size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
    const std::uint64_t* of_rank = all.data() + rank * mine.size();
    for (std::int64_t* figure : maxima) {
      *figure = std::max(*figure, static_cast<std::int64_t>(*of_rank++));
    }
    summary.padding += static_cast<std::int64_t>(*of_rank++);
    summary.median_ms = std::max(summary.median_ms, static_cast<double>(*of_rank) / 1e6);
  }
  add_digests(digests, summary);
  return summary;
}

void Report::add_digests(const LayerDigests& digests, Summary& summary) {
  const std::size_t layers = digests.layers.size();
  const std::vector<std::uint64_t> all = comm_.gather(digests.layers);
  summary.layer_digests.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(layers));
  for (std::size_t i = layers; i < all.size(); ++i) {
    std::uint64_t& layer = summary.layer_digests[i % layers];
    if (!digests.replicated) {
      layer += all[i];
    } else if (layer != all[i]) {
      throw Error(ExitCode::numerics,
                  fmt::format("the parameters of layer {} differ between rank 0 ({:016x}) and rank "
                              "{} ({:016x}), which should hold the same",
                              i % layers,
                              layer,
                              i / layers,
                              all[i]));
    }
  }
  summary.digest =
      std::accumulate(summary.layer_digests.begin(), summary.layer_digests.end(), std::uint64_t{0});
}

void Report::print_summary(const Summary& summary) const {
  fmt::print("\n{:<18}{:>15}{:>15}{:>15}{:>15}\n",
             "bytes of a rank",
             "predicted",
             "peak",
             "resident",
             "reserved");
  for (int kind = 0; kind < kind_count; ++kind) {
    const Summary::Bytes& bytes = summary.bytes[kind];
    fmt::print("  {:<16}{:>15}{:>15}{:>15}{:>15}\n",
               name_of(static_cast<Kind>(kind)),
               grouped(plan_.bytes[kind].peak),
               grouped(bytes.peak),
               grouped(bytes.resident),
               grouped(bytes.reserved));
  }
  fmt::print("  {:<16}{:>15}{:>15}{:>15}{:>15}\n",
             "all together",
             "",
             grouped(summary.total.peak),
             grouped(summary.total.resident),
             grouped(summary.total.reserved));
  if (summary.beyond) {
    fmt::print(
        "  {:<61}{:>15}\n", "beyond the formulas: context, libraries", grouped(*summary.beyond));
  }
  if (comm_.size > 1) {
    fmt::print("\n{:<22}{:>24}{:>24}\n", "elements sent", "predicted", "counted");
    // What a library sends within its own collectives, nobody else can count.
    const auto row = [&](const char* name, std::int64_t predicted, std::int64_t counted) {
      fmt::print("  {:<20}{:>24}{:>24}\n",
                 name,
                 grouped(predicted),
                 comm_.counts() ? grouped(counted) : "by formula");
    };
    for (const Phase phase : step_phases) {
      std::int64_t counted = 0;
      for (const auto& phases : summary.sent) counted += phases[static_cast<int>(phase)];
      row(name_of(phase), plan_.sent(phase, summary.steps, summary.skipped), counted);
    }
    row("padding, all ranks", plan_.padding_sent(summary.steps, summary.skipped), summary.padding);
    fmt::print("  {:<20}{:>24}{:>24}\n",
               "scalars",
               grouped(plan_.scalars_sent(summary.steps)),
               grouped(summary.scalars));
  }
  fmt::print("\nparameters {:016x}   median {:.2f} ms a step   {} step{} skipped\n",
             summary.digest,
             summary.median_ms,
             summary.skipped,
             summary.skipped == 1 ? "" : "s");
}

}  // namespace zero
