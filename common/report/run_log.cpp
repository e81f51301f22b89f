// SPDX-License-Identifier: MIT
#include "report/run_log.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "memory/error.hpp"

namespace zero {

namespace {

using Json = nlohmann::ordered_json;

/// A path in the options need not be UTF-8; what is not becomes U+FFFD.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json finite_or_null(float x) {
  return std::isfinite(x) ? Json(x) : Json(nullptr);
}

Json memory(const Summary& summary, const Prediction& plan) {
  Json kinds;
  for (int kind = 0; kind < kind_count; ++kind) {
    const Summary::Bytes& measured = summary.bytes[kind];
    kinds[name_of(static_cast<Kind>(kind))] = {{"predicted", plan.bytes[kind].peak},
                                               {"predicted_resident", plan.bytes[kind].resident},
                                               {"resident", measured.resident},
                                               {"reserved", measured.reserved},
                                               {"peak", measured.peak}};
  }
  kinds["total"] = {{"resident", summary.total.resident},
                    {"reserved", summary.total.reserved},
                    {"peak", summary.total.peak},
                    {"process_peak", summary.process_peak},
                    {"beyond", summary.beyond ? Json(*summary.beyond) : Json(nullptr)}};
  return kinds;
}

Json traffic(const Summary& summary, const Prediction& plan, bool is_counted) {
  Json phases, collectives;
  const auto if_counted = [&](std::int64_t figure) {
    return is_counted ? Json(figure) : Json(nullptr);
  };
  for (const Phase phase : step_phases) {
    std::int64_t counted = 0;
    for (int c = 0; c < collective_count; ++c) {
      const std::int64_t sent = summary.sent[c][static_cast<int>(phase)];
      collectives[name_of(static_cast<Collective>(c))][name_of(phase)] = if_counted(sent);
      counted += sent;
    }
    phases[name_of(phase)] = {{"predicted", plan.sent(phase, summary.steps, summary.skipped)},
                              {"counted", if_counted(counted)}};
  }
  return {
      {"phases", phases},
      {"collectives", collectives},
      {"padding",
       {{"predicted", plan.padding_sent(summary.steps, summary.skipped)},
        {"counted", if_counted(summary.padding)}}},
      {"scalars", {{"predicted", plan.scalars_sent(summary.steps)}, {"counted", summary.scalars}}}};
}

}  // namespace

RunLog::RunLog(const std::string& path)
    : path_(path),
      file_(std::fopen(path.c_str(), "w")) {
  if (file_) return;
  throw Error(ExitCode::usage,
              fmt::format("--log {}: cannot be written: {}", path, std::strerror(errno)));
}

void RunLog::write(const std::string& line) {
  const bool written = std::fputs(line.c_str(), file_.get()) >= 0;
  if (written && std::fflush(file_.get()) == 0) return;
  throw Error(ExitCode::resources, fmt::format("{}: {}", path_, std::strerror(errno)));
}

void RunLog::run(const Run& description, const Communicator& comm) {
  const auto& [chapter, options, choice, layout, start] = description;
  Json named;
  for (const auto& [name, value] : named_values(options, chapter)) {
    std::visit([&, &name = name](const auto& held) { named[name] = held; }, value);
  }
  const Json run = {
      {"chapter", chapter.name},
      {"ranks", comm.size},
      {"dtype", name_of(options.dtype)},
      {"family", family(chapter)},
      {"mpi", comm.library().empty() ? Json(nullptr) : Json(comm.library())},
      {"device", name_of(choice.device)},
      {"gpu",
       choice.device == Device::cuda ? Json(memory_of(choice.device).words()) : Json(nullptr)},
      {"comm", chapter.ranks ? Json(name_of(choice.comm)) : Json(nullptr)},
      {"options", named},
      {"parameters", layout.parameters()},
      {"padded_parameters", layout.full_size()},
      {"layers", layout.layers()}};
  write(line_of({{"run", run}}));
}

void RunLog::step(int number, const Verdict& report, double ms) {
  const Json step = {{"step", number},
                     {"loss", finite_or_null(report.loss)},
                     {"grad_norm", finite_or_null(report.grad_norm)},
                     {"skipped", report.skipped},
                     {"ms", std::round(ms * 1000) / 1000}};
  write(line_of(step));
}

void RunLog::summary(const Summary& summary, const Prediction& plan, bool counted) {
  Json layers = Json::array();
  for (const std::uint64_t layer : summary.layer_digests)
    layers.push_back(fmt::format("{:016x}", layer));
  const Json all = {{"memory", memory(summary, plan)},
                    {"traffic", traffic(summary, plan, counted)},
                    {"skipped_steps", summary.skipped},
                    {"median_ms", std::round(summary.median_ms * 1000) / 1000},
                    {"digest", fmt::format("{:016x}", summary.digest)},
                    {"layer_digests", layers}};
  write(line_of({{"summary", all}}));
}

}  // namespace zero
