// SPDX-License-Identifier: MIT
#include "report/report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "comm/launcher.hpp"
#include "memory/throw_if.hpp"

namespace zero {
namespace {
using Json = nlohmann::ordered_json;
using Digests = std::vector<std::uint64_t>;

/// Without the first three, where there are more: caches and pages are cold. times: not empty.
std::int64_t median_after_warm_up(std::vector<std::int64_t> times) {
  const auto first = times.begin() + (times.size() > 3 ? 3 : 0);
  const auto middle = first + (times.end() - first) / 2;
  std::nth_element(first, middle, times.end());
  return *middle;
}

/// Every rank's figure; all ranks must call it.
std::vector<std::uint64_t> gather(Communicator& comm, std::int64_t figure) {
  const auto mine = static_cast<std::uint64_t>(figure);
  return comm.gather({&mine, 1});
}

/// The largest of the ranks' figures, which is what is told; all ranks must call it.
std::int64_t largest(Communicator& comm, std::int64_t figure) {
  const std::vector<std::uint64_t> all = gather(comm, figure);
  return static_cast<std::int64_t>(*std::max_element(all.begin(), all.end()));
}

/// Of the elements of one layer, or of a part of it, that begins with that global number.
std::uint64_t digest_of(View view, std::int64_t number) {
  const OnHost host(view);
  return with_type(view.dtype, [&]<class T>(T) {
    const auto elements = host.as<T>();
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < view.used; ++i) {
      sum += mix(mix(number + i) ^ std::bit_cast<std::uint32_t>(widen(elements[i])));
    }
    return sum;
  });
}

/// Bytes of a rank: of each kind, and of all together; of the process above its peak at the start.
Json memory_json(const Run& run, const Prediction& predicted, Communicator& comm) {
  Json memory, beyond;
  std::int64_t resident = 0;
  for (int k = 0; k < kind_count; ++k) {
    const auto kind = static_cast<Kind>(k);
    const KindBytes& booked = ledger().of(kind);
    resident += booked.resident;
    memory[name_of(kind)] = {{"predicted", predicted.bytes[k].peak},
                             {"predicted_resident", predicted.bytes[k].resident},
                             {"resident", largest(comm, booked.resident)},
                             {"reserved", largest(comm, booked.reserved)},
                             {"peak", largest(comm, booked.peak)}};
  }
  // In use on a GPU beside what is reserved: its context, cuBLAS, NCCL. None on the CPU, nor where
  // other ranks may use the same GPU.
  if (run.choice.device == Device::cuda && comm.size == 1) {
    DeviceMemory& gpu = memory_of(Device::cuda);
    beyond = gpu.total() - gpu.available() - ledger().reserved();
  }
  memory["total"] = {{"resident", largest(comm, resident)},
                     {"reserved", largest(comm, ledger().reserved())},
                     {"peak", largest(comm, ledger().peak_of_total())},
                     {"process_peak", largest(comm, process_peak_bytes() - run.bytes_at_start)},
                     {"beyond", beyond}};
  return memory;
}

/// Elements sent: by the rank that sends most, but padding by all together.
Json traffic_json(const Prediction& predicted, Prediction::Steps steps, Communicator& comm) {
  // What a library sends within its own collectives, nobody else can count.
  const auto if_counted = [&](auto sent) { return comm.counts() ? Json(sent) : Json(); };
  const auto row = [](std::int64_t plan, const Json& sent) -> Json {
    return {{"predicted", plan}, {"counted", sent}};
  };
  Json phases, collectives;
  for (const Phase phase : step_phases) {
    std::int64_t in_phase = 0;
    for (int c = 0; c < collective_count; ++c) {
      const std::int64_t sent = largest(comm, comm.sent().elements[c][static_cast<int>(phase)]);
      collectives[name_of(static_cast<Collective>(c))][name_of(phase)] = if_counted(sent);
      in_phase += sent;
    }
    phases[name_of(phase)] = row(predicted.sent(phase, steps), if_counted(in_phase));
  }
  std::uint64_t padding = 0;
  for (const std::uint64_t of_rank : gather(comm, comm.sent().padding)) padding += of_rank;
  return {{"phases", phases},
          {"collectives", collectives},
          {"padding", row(predicted.padding_sent(steps), if_counted(padding))},
          {"scalars", row(predicted.scalars_sent(steps), largest(comm, comm.sent().scalars))}};
}

/// Throws Error (numerics), on all ranks, when a count is not as predicted: a bug, of ours or of
/// the formula.
void check_counts(const Json& summary) {
  const auto check = [](const std::string& what, const Json& predicted, const Json& counted) {
    throw_if(!counted.is_null() && predicted != counted, ExitCode::numerics,
             "{}: {} counted, {} predicted", what, counted.dump(), predicted.dump());
  };
  for (const auto& [kind, bytes] : summary["memory"].items()) {
    if (kind == "total") continue;
    check("bytes of " + kind + " held", bytes["predicted_resident"], bytes["resident"]);
    check("bytes of " + kind + " at the peak", bytes["predicted"], bytes["peak"]);
    check("bytes of " + kind + " reserved", bytes["predicted"], bytes["reserved"]);
  }
  const Json& traffic = summary["traffic"];
  const auto elements = [&](const std::string& where, const Json& sent) {
    check("elements sent in " + where, sent["predicted"], sent["counted"]);
  };
  for (const auto& [phase, sent] : traffic["phases"].items()) elements(phase, sent);
  elements("padding", traffic["padding"]);
  elements("scalars", traffic["scalars"]);
}

/// The closing tables: figures of the log's summary.
void print_tables(const Json& summary, bool alone) {
  fmt::print("\n{:<18}{:>15}{:>15}{:>15}{:>15}\n", "bytes of a rank", "predicted", "peak",
             "resident", "reserved");
  for (const auto& [name, bytes] : summary["memory"].items()) {
    const bool kind = name != "total";
    if (name == name_of(Kind::workspace) && bytes["reserved"] == 0) continue;  // a GPU's alone
    fmt::print("  {:<16}{:>15}{:>15}{:>15}{:>15}\n", kind ? name : "all together",
               kind ? grouped(bytes["predicted"]) : "", grouped(bytes["peak"]),
               grouped(bytes["resident"]), grouped(bytes["reserved"]));
  }
  if (const Json& beyond = summary["memory"]["total"]["beyond"]; !beyond.is_null()) {
    fmt::print("  {:<61}{:>15}\n", "beyond the formulas: context, libraries", grouped(beyond));
  }
  if (alone) return;
  fmt::print("\n{:<22}{:>24}{:>24}\n", "elements sent", "predicted", "counted");
  Json rows = summary["traffic"]["phases"];
  rows["padding, all ranks"] = summary["traffic"]["padding"];
  rows["scalars"] = summary["traffic"]["scalars"];
  for (const auto& [name, sent] : rows.items()) {
    const Json& figure = sent["counted"];
    fmt::print("  {:<20}{:>24}{:>24}\n", name, grouped(sent["predicted"]),
               figure.is_null() ? "by formula" : grouped(figure));
  }
}

double milliseconds(std::int64_t microseconds) { return static_cast<double>(microseconds) / 1000; }

Json run_json(const Run& run, const Communicator& comm) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json named;
  for (const auto& [name, value] : run.values) {
    named[name] = std::visit([](const auto& held) { return Json(held); }, value);
  }
  return {{"chapter", run.chapter.name},
          {"ranks", comm.size},
          {"dtype", name_of(run.options.dtype)},
          {"family", family(run.chapter)},
          {"mpi", or_null(comm.library())},
          {"device", name_of(run.choice.device)},
          {"gpu", or_null(memory_of(run.choice.device).words())},
          {"comm", or_null(run.chapter.ranks ? name_of(run.choice.comm) : "")},
          {"options", named},
          {"parameters", run.layout.parameters()},
          {"padded_parameters", run.layout.full_size()},
          {"layers", run.layout.layers()}};
}

/// A path in the options need not be UTF-8; what is not becomes U+FFFD. Numbers that are not finite
/// become null; the others read back to the same bits.
void write(std::FILE* log, const Run& run, const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::fputs(text.c_str(), log) >= 0 && std::fflush(log) == 0) return;
  throw Error(ExitCode::resources, fmt::format("{}: {}", run.options.log, std::strerror(errno)));
}

void print_header(const Run& run, const Communicator& comm) {
  const Options& o = run.options;
  const std::string library = comm.library(), words = memory_of(run.choice.device).words();
  fmt::print(
      "{}: {}, {}, task {}\n{} parameters, {} with padding\n{}{}\n", run.chapter.name,
      library.empty() ? "one process" : fmt::format("{} ({})", counted(comm.size, "rank"), library),
      name_of(o.dtype), name_of(o.task), grouped(run.layout.parameters()),
      grouped(run.layout.full_size()), run.choice.why,
      words.empty() ? "" : fmt::format(" ({})", words));
  const bool several = o.accumulate > 1;
  fmt::print("{} micro-batch{} of {} a rank and step{}\n\n", o.accumulate, several ? "es" : "",
             o.batch,
             several && comm.size > 1 ? "; the ranks are added " + family(run.chapter) : "");
  fmt::print("{:>8}{:>12}{:>12}{:>12}{}\n", "step", "loss", "norm", "ms a step",
             o.dtype == Dtype::fp16 ? "     scale" : "");
  std::fflush(stdout);
}
}  // namespace

LayerDigests layer_digests(const Layout& layout, const std::function<View(int)>& weights) {
  const int layers = layout.layers();
  LayerDigests digests{{}, false, Digests(layers), Digests(layers)};
  for (int l = 0; l < layers; ++l) {
    const View part = weights(l);
    digests.weights.push_back(digest_of(part, layout.layer_start(l) + part.start));
    digests.replicated = part.size == layout.layer_size(l);
  }
  for (const auto& [kind, view] : Tensor::held) {
    if (view.size != layout.full_size() || layout.ranks() == 1) continue;
    if (kind != Kind::parameters && kind != Kind::optimizer) continue;
    Digests& copies = kind == Kind::parameters ? digests.parameters : digests.optimizer;
    for (int l = 0; l < layers; ++l) {
      copies[l] += digest_of(layout.layer(view, l), layout.layer_start(l));
    }
  }
  return digests;
}

Digests digests_over_ranks(const LayerDigests& mine, Communicator& comm) {
  const auto gather_alike = [&](const char* what, const Digests& copies) {
    const Digests all = comm.gather(copies);
    for (std::size_t i = copies.size(); i < all.size(); ++i) {
      const std::size_t l = i % copies.size();
      throw_if(all[i] != all[l], ExitCode::numerics,
               "the {} of layer {} differ between rank 0 ({:016x}) and rank {} ({:016x}), which "
               "should hold the same",
               what, l, all[l], i / copies.size(), all[i]);
    }
  };
  gather_alike("parameters", mine.parameters);
  gather_alike("optimizer state", mine.optimizer);
  if (mine.replicated) return mine.weights;
  Digests sums(mine.weights.size());
  const Digests all = comm.gather(mine.weights);
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % sums.size()] += all[i];
  return sums;
}

Report::Report(const Run& run, Communicator& comm)
    : run_(run),
      comm_(comm),
      predicted_(predict(run.chapter, run.options, run.choice.device, run.layout)),
      // Some launchers give the ranks terminals of their own, which nobody looks at.
      shows_progress_(prints_ && !launcher().started && isatty(fileno(stdout))) {
  const std::string& path = run.options.log;
  if (comm.rank == 0 && !path.empty()) {
    // Without O_NONBLOCK a pipe that nobody reads would be waited for.
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0666);
    if (fd >= 0) fcntl(fd, F_SETFL, O_WRONLY);
    log_.reset(fd < 0 ? nullptr : fdopen(fd, "w"));
    if (!log_) {
      throw Error(ExitCode::usage,
                  fmt::format("--log {}: cannot be written: {}", path, std::strerror(errno)));
    }
    write(log_.get(), run, {{"run", run_json(run, comm)}});
  }
  if (prints_) print_header(run, comm);
}

void Report::add(const Verdict& step) {
  const auto now = Clock::now();
  times_.push_back(std::chrono::round<std::chrono::microseconds>(now - step_began_).count());
  step_began_ = now;
  last_ = step;
  skipped_ += step.skipped;
  skipped_in_a_row_ = step.skipped ? skipped_in_a_row_ + 1 : 0;
  if (prints_) print_step();
  if (!log_) return;
  Json line = {{"step", times_.size()},
               {"loss", step.loss},
               {"grad_norm", step.grad_norm},
               {"skipped", step.skipped},
               {"ms", milliseconds(times_.back())}};
  if (run_.options.dtype == Dtype::fp16) line["loss_scale"] = step.loss_scale;
  write(log_.get(), run_, line);
}

std::vector<std::uint64_t> Report::check(const LayerDigests& digests) {
  std::vector<std::uint64_t> all = digests_over_ranks(digests, comm_);
  step_began_ = Clock::now();  // this is no part of the next step
  return all;
}

int Report::finish(const LayerDigests& digests) {
  const Prediction::Steps steps{std::ssize(times_), skipped_};
  std::uint64_t digest = 0;
  Json layers = Json::array();
  for (const std::uint64_t layer : check(digests)) {
    digest += layer;
    layers.push_back(fmt::format("{:016x}", layer));
  }
  const double ms = milliseconds(largest(comm_, median_after_warm_up(times_)));
  const Json summary = {{"memory", memory_json(run_, predicted_, comm_)},
                        {"traffic", traffic_json(predicted_, steps, comm_)},
                        {"skipped_steps", skipped_},
                        {"median_ms", ms},
                        {"digest", fmt::format("{:016x}", digest)},
                        {"layer_digests", layers}};
  if (prints_) {
    print_tables(summary, comm_.size == 1);
    fmt::print("\nparameters {:016x}   median {:.2f} ms a step   {} skipped\n", digest, ms,
               counted(skipped_, "step"));
    if (skipped_ == steps.all) fmt::print("no step was taken: all of them were skipped\n");
  }
  flush_output();
  if (log_) write(log_.get(), run_, {{"summary", summary}});
  check_counts(summary);
  throw_if(!std::isfinite(last_.loss), ExitCode::numerics,
           "the loss of the last step, {}, is not finite: a lower --lr than {:g} may help",
           times_.size(), run_.options.lr);
  return 0;
}

void Report::print_step() {
  const auto now = Clock::now();
  const int done = static_cast<int>(times_.size()), to_do = run_.options.steps - done;
  const bool tenth = done % std::max(1, run_.options.steps / 10) == 0;
  const bool stays = last_.skipped || tenth || to_do == 0 || done == 1;
  if (!stays && (!shows_progress_ || now - line_began_ <= std::chrono::milliseconds(200))) return;
  line_began_ = now;
  const auto cell = [](float x) {
    return std::isfinite(x) ? fmt::format("{:.5f}", x) : "not finite";
  };
  fmt::print("{}{:>8}{:>12}{:>12}{:>12.2f}", shows_progress_ ? "\r\033[K" : "", done,
             cell(last_.loss), cell(last_.grad_norm), milliseconds(times_.back()));
  const bool fp16 = run_.options.dtype == Dtype::fp16;
  if (fp16) fmt::print("{:>10g}", last_.loss_scale);
  if (stays) {
    fmt::print("{}\n", last_.skipped ? "  skipped: a gradient is not finite" : "");
  } else {
    fmt::print("  {:.0f} s left", milliseconds(median_after_warm_up(times_)) * to_do / 1000);
  }
  const char* const advice =
      fp16 ? "try a lower --lr, or --dtype bf16, which needs no loss scale" : "try a lower --lr";
  if (skipped_in_a_row_ == 8) fmt::print("8 steps in a row were skipped: {}\n", advice);
  const bool least = last_.skipped && fp16 && last_.loss_scale == 1;
  if (least && !told_least_) fmt::print("the loss scale cannot be less than 1: {}\n", advice);
  told_least_ |= least;
  std::fflush(stdout);
}
}  // namespace zero
