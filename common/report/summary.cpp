// SPDX-License-Identifier: MIT
#include "report/summary.hpp"

#include "memory/throw_if.hpp"

namespace zero {
namespace {
/// Every rank's figure; all ranks must call it.
std::vector<std::uint64_t> gather(Communicator& comm, std::int64_t figure) {
  const auto mine = static_cast<std::uint64_t>(figure);
  return comm.gather({&mine, 1});
}

Json kind_json(const Prediction::Bytes& predicted, const KindBytes& booked, Communicator& comm) {
  return {{"predicted", predicted.peak},
          {"predicted_resident", predicted.resident},
          {"resident", largest(comm, booked.resident)},
          {"reserved", largest(comm, booked.reserved)},
          {"peak", largest(comm, booked.peak)}};
}
}  // namespace

std::int64_t largest(Communicator& comm, std::int64_t figure) {
  const std::vector<std::uint64_t> all = gather(comm, figure);
  return static_cast<std::int64_t>(*std::max_element(all.begin(), all.end()));
}

Json memory_json(const Run& run, const Prediction& predicted, Communicator& comm) {
  Json memory, beyond;
  const std::int64_t peak_before = run.footprints[0].process.peak;
  std::int64_t resident = 0;
  for (int k = 0; k < kind_count; ++k) {
    const KindBytes& booked = ledger().of(static_cast<Kind>(k));
    resident += booked.resident;
    memory[name_of(static_cast<Kind>(k))] = kind_json(predicted.bytes[k], booked, comm);
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
                     {"process_peak", largest(comm, process_bytes().peak - peak_before)},
                     {"beyond", beyond}};
  return memory;
}

Json host_memory_json(const Prediction& predicted, Communicator& comm) {
  Json memory;
  for (int k = 0; k < kind_count; ++k) {
    const KindBytes& booked = ledger(Place::host).of(static_cast<Kind>(k));
    if (booked.reserved == 0 && predicted.on_host[k].peak == 0) continue;
    memory[name_of(static_cast<Kind>(k))] = kind_json(predicted.on_host[k], booked, comm);
  }
  return memory;
}

Json bus_json(const Prediction& predicted, Prediction::Steps steps,
              const std::array<Timed, 2>& times, Communicator& comm) {
  Json bus_of_run;
  for (const Direction direction : {Direction::down, Direction::up}) {
    const Timed& time = times[static_cast<int>(direction)];
    bus_of_run[name_of(direction)] = {{"predicted", predicted.copied(direction, steps)},
                                      {"counted", largest(comm, bus().of(direction))},
                                      {"exposed_ms", time.exposed},
                                      {"hidden_ms", time.hidden}};
  }
  return bus_of_run;
}

Json traffic_json(const Prediction& predicted, Prediction::Steps steps,
                  const std::array<Timed, phase_count>& times, Communicator& comm) {
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
    Json& sent = phases[name_of(phase)] = row(predicted.sent(phase, steps), if_counted(in_phase));
    const Timed& time = times[static_cast<int>(phase)];
    sent["exposed_ms"] = time.exposed, sent["hidden_ms"] = time.hidden;
  }
  std::uint64_t padding = 0;
  for (const std::uint64_t of_rank : gather(comm, comm.sent().padding)) padding += of_rank;
  return {{"phases", phases},
          {"collectives", collectives},
          {"padding", row(predicted.padding_sent(steps), if_counted(padding))},
          {"scalars", row(predicted.scalars_sent(steps), largest(comm, comm.sent().scalars))}};
}

void check_counts(const Json& summary) {
  const auto check = [](const std::string& what, const Json& predicted, const Json& counted) {
    throw_if(!counted.is_null() && predicted != counted, ExitCode::numerics,
             "{}: {} counted, {} predicted", what, counted.dump(), predicted.dump());
  };
  const auto check_kind = [&](const std::string& kind, const Json& bytes) {
    check("bytes of " + kind + " held", bytes["predicted_resident"], bytes["resident"]);
    check("bytes of " + kind + " at the peak", bytes["predicted"], bytes["peak"]);
    check("bytes of " + kind + " reserved", bytes["predicted"], bytes["reserved"]);
  };
  for (const auto& [kind, bytes] : summary["memory"].items()) {
    if (kind != "total") check_kind(kind, bytes);
  }
  const Json none = Json::object();
  const Json host = summary.value("host_memory", none), bus = summary.value("bus", none);
  for (const auto& [kind, bytes] : host.items()) check_kind(kind + " on the host", bytes);
  for (const auto& [direction, copied] : bus.items()) {
    check("bytes copied " + direction, copied["predicted"], copied["counted"]);
  }
  for (const Json& row : summary["phases"]) {
    const int step = row["step"];
    const std::string phase = row["phase"];
    const std::string when = step == 0 ? phase : fmt::format("{} of step {}", phase, step);
    for (const auto& [kind, bytes] : row["bytes"].items()) {
      check("bytes of " + kind + " after " + when, row["predicted"][kind], bytes);
    }
    if (step == 0) check("bytes at the peak of the start", row["in_use"], row["peak"]);
  }
  const Json& traffic = summary["traffic"];
  const auto elements = [&](const std::string& where, const Json& sent) {
    check("elements sent in " + where, sent["predicted"], sent["counted"]);
  };
  for (const auto& [phase, sent] : traffic["phases"].items()) elements(phase, sent);
  elements("padding", traffic["padding"]);
  elements("scalars", traffic["scalars"]);
}

namespace {
void print_bytes(const std::string& name, const Json& bytes) {
  const auto cell = [&](const char* figure) {
    return bytes.contains(figure) ? grouped(bytes[figure]) : "";
  };
  fmt::print("  {:<16}{:>15}{:>15}{:>15}{:>15}\n", name, cell("predicted"), cell("peak"),
             cell("resident"), cell("reserved"));
}

/// sent: predicted and counted, and the times of a step, where there are any.
void print_sent(const std::string& name, const Json& sent) {
  const Json& figure = sent["counted"];
  const auto time = [&](const char* key) {
    return sent.value(key, Json()).is_null() ? "" : fmt::format("{:.2f}", sent[key].get<double>());
  };
  fmt::print("  {:<18}{:>17}{:>17}{:>13}{:>12}\n", name, grouped(sent["predicted"]),
             figure.is_null() ? "by formula" : grouped(figure), time("exposed_ms"),
             time("hidden_ms"));
}
}  // namespace

void print_tables(const Json& summary, bool alone) {
  const bool host = summary.contains("host_memory");
  fmt::print("\n{:<18}{:>15}{:>15}{:>15}{:>15}\n", host ? "bytes on a device" : "bytes of a rank",
             "predicted", "peak", "resident", "reserved");
  for (const auto& [name, bytes] : summary["memory"].items()) {
    if (name == name_of(Kind::workspace) && bytes["reserved"] == 0) continue;  // a GPU's alone
    print_bytes(name == "total" ? "all together" : name, bytes);
  }
  if (const Json& beyond = summary["memory"]["total"]["beyond"]; !beyond.is_null()) {
    fmt::print("  {:<61}{:>15}\n", "beyond the formulas: context, libraries", grouped(beyond));
  }
  if (host) {
    fmt::print("on its host\n");
    for (const auto& [name, bytes] : summary["host_memory"].items()) print_bytes(name, bytes);
  }
  if (!alone) {
    fmt::print("\n{:<54}{:>25}\n{:<20}{:>17}{:>17}{:>13}{:>12}\n", "elements sent in all steps",
               "ms of messages in a step", "", "predicted", "counted", "exposed", "hidden");
    for (const auto& [name, sent] : summary["traffic"]["phases"].items()) print_sent(name, sent);
    print_sent("padding, all ranks", summary["traffic"]["padding"]);
    print_sent("scalars", summary["traffic"]["scalars"]);
  }
  if (!host) return;
  fmt::print("\n{:<54}{:>25}\n{:<20}{:>17}{:>17}{:>13}{:>12}\n", "bytes copied in all steps",
             "ms of copies in a step", "", "predicted", "counted", "exposed", "hidden");
  print_sent("down, gradients", summary["bus"]["down"]);
  print_sent("up, parameters", summary["bus"]["up"]);
}
}  // namespace zero
