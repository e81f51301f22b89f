// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/launcher.hpp"
#include "compute/generator.hpp"
#include "memory/throw_error.hpp"
#include "report/report.hpp"

namespace zero {
namespace {
namespace fs = std::filesystem;

Json run_json(const Run& run, const Communicator& comm) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json named;
  for (const auto& [name, value] : run.values) {
    named[name] = std::visit([](const auto& held) { return Json(held); }, value);
  }
  return {{"chapter", run.card.name},
          {"ranks", comm.size},
          {"dtype", name_of(run.options.dtype)},
          {"family", reduction_schedule(run.card)},  // its key in logs since the first version
          {"mpi", or_null(comm.library())},
          {"device", name_of(run.choice.device)},
          {"gpu", or_null(run.device.name())},
          {"comm", or_null(run.card.ranks ? name_of(run.choice.comm) : "")},
          {"options", named},
          {"parameters", run.layout.parameters()},
          {"padded_parameters", run.layout.full_size()},
          {"layers", run.layout.layers()}};
}

/// Opens a file to append to it; none for an empty path. Throws Error (usage) if that fails.
File open_output(const char* option, const std::string& path) {
  if (path.empty()) return {nullptr, std::fclose};
  File file(std::fopen(path.c_str(), "a"), std::fclose);
  if (!file)
    throw_error(ExitCode::usage, "{} {}: cannot be written: {}", option, path,
                std::strerror(errno));
  return file;
}

/// Returns how many bytes of the old log to keep: up to the step after which the run is resumed.
/// Throws Error (usage) unless the log is of a run like this one and has that step.
std::uintmax_t bytes_to_keep(const Run& run, const Communicator& comm) {
  std::ifstream file(run.options.log);
  std::string line, why = file ? "" : std::strerror(errno);
  std::getline(file, line);
  const bool begins = line.starts_with(R"({"run":{)");
  using Sorted = nlohmann::json;  // ordered_json takes quadratic time for many keys
  const auto shallow = [](int depth, auto, const auto&) { return depth < 4; };
  const Sorted theirs = Sorted::parse(begins ? line : "", shallow, false).flatten();
  const Sorted ours = Sorted(Json{{"run", run_json(run, comm)}}).flatten();
  for (const char* name : {"/run/dtype", "/run/parameters", "/run/layers", "/run/options/task",
                           "/run/options/heads", "/run/options/seed"}) {
    if (why.empty() && theirs.value(name, Sorted()) != ours[name])
      why = fmt::format("it is no log of a run with {} {}", std::strrchr(name, '/') + 1,
                        ours[name].dump());
  }
  std::uintmax_t kept = line.size() + 1;
  double last = 0;
  while (std::getline(file, line) && !file.eof()) {  // at eof() the line lacks its newline
    const double step = number_after(R"("step":)", line, last);
    if (step > run.options.begin.steps) break;
    last = step, kept += line.size() + 1;
  }
  if (why.empty() && last != run.options.begin.steps)
    why = fmt::format("it has no step {}, after which this run goes on", run.options.begin.steps);
  if (why.empty()) return kept;
  throw_error(ExitCode::usage, "--log {}: {}: name another file", run.options.log, why);
}

void write(std::FILE* file, const std::string& path, const std::string& text) {
  if (std::fputs(text.c_str(), file) >= 0 && std::fflush(file) == 0) return;
  throw_errno(path);
}

void print_header(const Run& run, const Communicator& comm) {
  const Options& o = run.options;
  const std::string library = comm.library(), gpu_name = run.device.name();
  fmt::print(
      "{}: {}, {}, task {}\n{} parameters, {} with padding\n{}{}\n", run.card.name,
      library.empty() ? "one process" : fmt::format("{} ({})", counted(comm.size, "rank"), library),
      name_of(o.dtype), name_of(o.task), grouped(run.layout.parameters()),
      grouped(run.layout.full_size()), run.choice.why,
      gpu_name.empty() ? "" : fmt::format(" ({})", gpu_name));
  if (run.card.offloads() && run.device.type == DeviceType::cpu) {
    fmt::print("the device is modelled, its memory in a ledger of its own\n");
  }
  const std::int64_t allowed = o.device_memory;
  if (allowed > 0) fmt::print("{} bytes of device memory allowed\n", grouped(allowed));
  if (o.bus > 0) fmt::print("a bus of {:g} GB/s\n", o.bus);
  if (o.disk > 0) fmt::print("a disk of {:g} GB/s\n", o.disk);
  const bool several = o.accumulate > 1;
  const std::string added =
      several && comm.size > 1 ? "; the ranks are added " + reduction_schedule(run.card) : "";
  fmt::print("{} micro-batch{} of {} per rank and step{}\n\n", o.accumulate, several ? "es" : "",
             o.batch, added);
  fmt::print("{:>8}{:>12}{:>12}{:>12}{}\n", "step", "loss", "norm", "ms per step",
             o.dtype == Dtype::fp16 ? "     scale" : "");
  flush_output();
}
}  // namespace

LayerDigests layer_digests(const Device& device, const Layout& layout,
                           const std::function<ConstView(int)>& weights) {
  const int layers = layout.layers();
  const Digests none(layers);
  LayerDigests digests{{}, false, {{Kind::parameters, none}, {Kind::optimizer, none}}};
  for (int l = 0; l < layers; ++l) {
    const ConstView part = weights(l);
    digests.weights.push_back(digest(part, layout.first_parameter(l) + part.start));
    digests.replicated = part.size == layout.layer_size(l);
  }
  for (const StateTensor* held : device.state_tensors()) {
    const auto* whole = dynamic_cast<const Replicated*>(held);
    const auto copies = digests.copies.find(kind_of(held->state));
    if (!whole || layout.ranks() == 1 || copies == digests.copies.end()) continue;
    for (int l = 0; l < layers; ++l) {
      copies->second[l] += digest(whole->layer(l), layout.first_parameter(l));
    }
  }
  return digests;
}

Digests digests_over_ranks(const LayerDigests& mine, Communicator& comm) {
  const std::size_t layers = mine.weights.size();
  for (const auto& [kind, copies] : mine.copies) {
    const Digests all = comm.gather(copies);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t l = i % layers;
      if (all[i] != all[l])
        throw_error(ExitCode::numerics,
                    "the {} of layer {} differ between rank 0 ({:016x}) and rank {} ({:016x}), "
                    "which should hold the same",
                    kind == Kind::optimizer ? "optimizer state" : name_of(kind), l, all[l],
                    i / layers, all[i]);
    }
  }
  if (mine.replicated) return mine.weights;
  Digests sums(layers);
  const Digests all = comm.gather(mine.weights);
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % layers] += all[i];
  return sums;
}

namespace {
/// Returns lines that say which of the ranks' copies were compared.
std::string compared(const LayerDigests& mine, int ranks, std::int64_t step) {
  std::string text;
  for (const auto& [kind, copies] : mine.copies) {
    if (std::ranges::count(copies, 0) == std::ssize(copies)) continue;  // nothing was compared
    text += fmt::format("replicas: all {} ranks hold equal {}, compared after step {}\n", ranks,
                        kind == Kind::optimizer ? "optimizer state" : name_of(kind), step);
  }
  return text.empty() && ranks > 1 ? "replicas: none, each rank holds shards\n" : text;
}
}  // namespace

Report::Report(const Run& run, Communicator& comm)
    : run_(run),
      comm_(comm),
      predicted_(predict(run.card, run.options, run.device.type, run.layout)),
      // Some launchers give the ranks terminals of their own, which nobody looks at.
      shows_progress_(prints_ && !launcher().started && isatty(fileno(stdout))) {
  if (comm.rank == 0) open_outputs();
  log({{"run", run_json(run, comm)}});
  if (prints_) print_header(run, comm);
}

void Report::open_outputs() {
  const std::string &log = run_.options.log, &trace = run_.options.trace;
  std::error_code none;
  const fs::file_type type = fs::symlink_status(trace, none).type();
  const bool is_new = type == fs::file_type::not_found;
  trace_ = open_output("--trace", trace);
  const bool same = fs::equivalent(log, trace, none);
  if (is_new) fs::remove(trace, none);  // opening it was a trial; only write_trace() makes it
  if (same) throw_error(ExitCode::usage, "--trace and --log name one file, {}", log);
  const std::int64_t steps = run_.options.begin.steps;
  const auto goes_on = [&](const std::string& path) {
    return steps > 0 && fs::is_regular_file(path, none) && !fs::is_empty(path);
  };
  if (goes_on(trace)) earlier_ = read_trace(trace, steps, run_.card, run_.layout, run_.device);
  log_ = open_output("--log", log);
  fs::resize_file(log, goes_on(log) ? bytes_to_keep(run_, comm_) : 0, none);
  if (is_new || type == fs::file_type::regular) trace_.reset();
}

void Report::write_trace(const std::string& text) {
  const std::string& path = run_.options.trace;
  std::error_code none;
  if (trace_) {
    fs::resize_file(path, 0, none);
    return write(trace_.get(), path, text);
  }
  const std::string beside = fmt::format("{}.{}", path, getpid());
  try {
    const File whole{std::fopen(beside.c_str(), "w"), std::fclose};
    if (!whole) throw_errno(beside);
    write(whole.get(), path, text);
    fs::rename(beside, path);
  } catch (...) {
    fs::remove(beside, none);
    throw;
  }
}

void Report::add(const StepResult& step) {
  const auto now = Clock::now();
  time_ = std::chrono::round<std::chrono::microseconds>(now - step_began_);
  times_.add(time_);
  take_slices(here.step);
  last_ = step;
  skipped_ += step.skipped;
  skipped_in_a_row_ = step.skipped ? skipped_in_a_row_ + 1 : 0;
  if (prints_) print_step();
  if (log_) {
    Json line = {{"step", step_number()},
                 {"loss", step.loss},
                 {"grad_norm", step.grad_norm},
                 {"skipped", step.skipped},
                 {"ms", milliseconds(time_)}};
    if (run_.options.dtype == Dtype::fp16) line["loss_scale"] = step.loss_scale;
    log(line);
  }
  step_began_ = Clock::now();  // the time of this report counts for no step
}

void Report::take_slices(int present) {
  const std::vector<Slice> slices = run_.recorder.take();
  if (run_.recorder.sees_streams) overlap_.add(slices, present);
  std::ranges::copy_if(slices, std::back_inserter(kept_),
                       [&](const Slice& slice) { return run_.recorder.keeps(slice.step); });
}

void Report::log(const Json& line) {
  if (!log_) return;
  // A path need not be UTF-8: what is not becomes U+FFFD. Numbers that are not finite become null.
  write(log_.get(), run_.options.log,
        line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Report::tell(const char* what, const std::string& path, Clock::time_point since,
                  const std::string& failure, const std::vector<std::string>& notes) {
  const double ms = milliseconds(Clock::now() - since);
  Json told = {{"step", step_number()}, {"path", path}, {"ms", ms}};
  if (!failure.empty()) told["failure"] = failure;
  if (!notes.empty()) told["notes"] = notes;
  log({{what, told}});
  if (shows_progress_) fmt::print("\r\033[K");  // erases the line of progress
  flush_output();
  if (!failure.empty() && comm_.rank == 0) {
    std::fprintf(stderr, "%s: step %s is not saved: %s\n", run_.card.name,
                 fmt::to_string(step_number()).c_str(), failure.c_str());
  } else if (prints_) {
    fmt::print("{} {} in {:.2f} ms\n", what, path, ms);
    flush_output();
  }
  if (comm_.rank == 0)
    for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  step_began_ = Clock::now();  // the time since the last step counts for no step
}

Digests Report::check(const LayerDigests& digests) {
  Digests all = digests_over_ranks(digests, comm_);
  step_began_ = Clock::now();  // the time since the last step counts for no step
  return all;
}

void Report::finish(const LayerDigests& digests) {
  const Prediction::Steps steps{times_.steps, skipped_, skipped_in_a_row_ > 0};
  std::uint64_t digest = 0;
  Json layers = Json::array();
  for (const std::uint64_t layer : check(digests)) {
    digest += layer;
    layers.push_back(fmt::format("{:016x}", layer));
  }
  take_slices(here.step + 2);  // measures the last step, too: see OverlapMeter
  const Json outcome = {{"skipped_steps", skipped_},
                        {"median_ms", median_ms(times_.kept)},
                        {"digest", fmt::format("{:016x}", digest)},
                        {"layer_digests", layers}};
  const Json summary = summarise(run_, predicted_, steps, overlap_.times.kept, outcome, comm_);
  std::string trace;  // all ranks make it together, before one may fail alone
  if (run_.recorder.traced) {
    trace =
        chrome_trace(run_.recorder, kept_, earlier_, run_.card, run_.layout, run_.device, comm_);
  }
  if (prints_) {
    print_table(summary, comm_.size == 1);
    fmt::print("\n{}parameters {:016x}   median {:.2f} ms per step   {} skipped\n",
               compared(digests, comm_.size, step_number()), digest,
               summary["median_ms"].get<double>(), counted(skipped_, "step"));
    if (skipped_ == steps.all) fmt::print("no step was taken: all of them were skipped\n");
  }
  flush_output();
  log({{"summary", summary}});
  if (!trace.empty()) write_trace(trace);
  check_counts(summary);
  if (!std::isfinite(last_.loss))
    throw_error(ExitCode::numerics,
                "the loss of the last step, {}, is not finite: a lower --lr than {:g} may help",
                step_number(), run_.options.lr);
}

void Report::print_step() {
  const auto now = Clock::now();
  const std::int64_t done = step_number(), to_do = run_.options.steps - done;
  const bool tenth = done % std::max(1, run_.options.steps / 10) == 0;
  const bool stays = last_.skipped || tenth || to_do == 0 || times_.steps == 1;
  if (!stays && (!shows_progress_ || now - line_began_ <= std::chrono::milliseconds(200))) return;
  line_began_ = now;
  const auto cell = [](float x) {
    if (!std::isfinite(x)) return std::string("not finite");
    return x < 1e5f ? fmt::format("{:.5f}", x) : fmt::format("{:.4e}", x);
  };
  fmt::print("{}{:>8} {:>11} {:>11} {:>11.2f}", shows_progress_ ? "\r\033[K" : "", done,
             cell(last_.loss), cell(last_.grad_norm), milliseconds(time_));
  const bool fp16 = run_.options.dtype == Dtype::fp16;
  if (fp16) fmt::print(" {:>9g}", last_.loss_scale);
  if (stays) {
    fmt::print("{}\n", last_.skipped ? "  skipped: a gradient is not finite" : "");
  } else {
    fmt::print("  {:.0f} s left", median_ms(times_.kept) * to_do / 1000);
  }
  const char* const advice =
      fp16 ? "try a lower --lr, or --dtype bf16, which needs no loss scale" : "try a lower --lr";
  if (skipped_in_a_row_ == 8) fmt::print("8 steps in a row were skipped: {}\n", advice);
  const bool least = last_.skipped && fp16 && last_.loss_scale == 1;
  if (least && !told_least_) fmt::print("the loss scale cannot be less than 1: {}\n", advice);
  told_least_ |= least;
  flush_output();
}
}  // namespace zero
