// SPDX-License-Identifier: MIT
#include "report/prediction.hpp"

#include "comm/communicator.hpp"
#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
Prediction predict_state(const Chapter& chapter, const Options& options, Device device,
                         const Layout& layout) {
  const std::int64_t w = bytes_of(options.dtype), k = optimizer_bytes(chapter, options.dtype);
  // Doubles are exact here: integers below 2^53, and what is divided is a multiple of n.
  const double n = layout.ranks();
  const auto full = [&](std::int64_t bytes) {
    return static_cast<double>(bytes * layout.full_size());
  };
  const std::int64_t layer = layout.largest_layer();
  // A run that uses fewer layers than a window has places for takes no more than it uses.
  const WholeLayers whole = chapter.whole_layers(options.prefetch);
  const std::int64_t uses = std::int64_t{layout.layers()} * options.accumulate;

  Prediction plan{.factors = by_phase(chapter.elements_sent(options.accumulate)),
                  .copies = {chapter.offload.copied.down * w, chapter.offload.copied.up * w},
                  .parameters = layout.parameters(),
                  .padded = layout.full_size(),
                  .ranks = layout.ranks()};
  const auto set = [&](Kind kind, double bytes, std::int64_t now_and_then) {
    const auto resident = static_cast<std::int64_t>(bytes);
    plan.bytes[static_cast<int>(kind)] = {resident, resident + now_and_then};
  };
  set(Kind::parameters, chapter.state_bytes(full(w), 0, 0, n),
      std::min<std::int64_t>(whole.params, 2 * uses) * w * layer);
  set(Kind::gradients, chapter.state_bytes(0, full(w), 0, n),
      std::min<std::int64_t>(whole.grads, uses) * w * layer);
  set(Kind::optimizer, chapter.state_bytes(0, 0, full(k), n), 0);
  set(Kind::communication, 0,
      w * received_elements(device, options.dtype, layer / plan.ranks, plan.ranks));
  if (!chapter.offloads()) return plan;
  const auto set_on_host = [&](Kind kind, double g, double k) {
    const auto bytes = static_cast<std::int64_t>(chapter.offload.bytes(0, g, k, n));
    plan.on_host[static_cast<int>(kind)] = {bytes, bytes};
  };
  set_on_host(Kind::communication, full(w), 0);
  set_on_host(Kind::optimizer, 0, full(k));
  return plan;
}

Prediction predict(const Chapter& chapter, const Options& options, Device device,
                   const Layout& layout) {
  const Architecture model = architecture(options);
  Prediction plan = predict_state(chapter, options, device, layout);
  plan.bytes[static_cast<int>(Kind::activations)].peak =
      model.activation_bytes(options.batch, options.dtype);
  const std::int64_t workspace = gpu_sums_bytes + blas_workspace_bytes + product_room_bytes;
  if (device == Device::cuda) {
    plan.bytes[static_cast<int>(Kind::workspace)] = {workspace, workspace};
  }
  const std::int64_t targets = options.batch * model.targets() * bytes_of(Dtype::fp32);
  const std::int64_t data = Data::bytes(options, file_bytes(options)) + targets;
  plan.bytes[static_cast<int>(Kind::data)] = {data, data};

  for (auto& kinds : plan.after) {
    for (int kind = 0; kind < kind_count; ++kind) kinds[kind] = plan.bytes[kind].resident;
  }
  const auto after = [&](Phase phase, Kind kind) -> std::int64_t& {
    return plan.after[static_cast<int>(phase)][static_cast<int>(kind)];
  };
  const std::int64_t w = bytes_of(options.dtype), layer = w * layout.largest_layer();
  const WholeLayers whole = chapter.whole_layers(options.prefetch);
  // What a window has gathered ahead, of the uses that are left, and gradients on their way, which
  // it gives back in the update. Without a window nothing whole outlives its phase.
  const std::int64_t layers = layout.layers(), earlier = options.accumulate - 1;
  const auto ahead = [&](std::int64_t left) {
    return std::clamp<std::int64_t>(whole.params - 1, 0, left) * layer;
  };
  const auto on_their_way = [&](std::int64_t formed) {
    return chapter.prefetch() ? std::min<std::int64_t>(whole.grads, formed) * layer : 0;
  };
  after(Phase::load, Kind::parameters) += earlier > 0 ? ahead(2 * layers) : 0;
  after(Phase::forward, Kind::parameters) += ahead(layers);
  after(Phase::load, Kind::gradients) += on_their_way(earlier * layers);
  after(Phase::forward, Kind::gradients) += on_their_way(earlier * layers);
  after(Phase::backward, Kind::gradients) += on_their_way(layers * options.accumulate);
  after(Phase::load, Kind::activations) += options.batch * model.widths[0] * w;
  after(Phase::forward, Kind::activations) += model.activation_bytes(options.batch, options.dtype);
  return plan;
}

namespace {
/// Of what one rank reserves.
struct Limit {
  bool device, host;  // whether the bytes in that place count
  std::int64_t bytes;  // that the rank may take
  std::string words;  // what these bytes are, and why there are no more
  const char* more;  // of which there could be

  std::int64_t needs(const Prediction& plan) const {
    const auto peak = &Prediction::Bytes::peak;
    return device * plan.sum(peak) + host * plan.sum(peak, Place::host);
  }
};

Limit asked_for(std::int64_t allowed) {
  return {true, false, allowed,
          fmt::format("bytes of device memory, --device-memory allows {}", grouped(allowed)),
          "rank"};
}

Limit shared(bool device, bool host, std::int64_t available, int sharing, const char* by) {
  return {device, host, available / sharing,
          fmt::format("bytes{}, {} on this {} share {} that are available",
                      device ? "" : " of the host's memory", sharing, by, grouped(available)),
          by};
}

/// What is short of what the plan needs, and what would do; empty when it fits.
std::string shortage(const Prediction& plan, const Options& options, Device device,
                     const Layout& layout, const std::vector<Limit>& limits) {
  const auto exceeded = [&](const Prediction& plan) {
    return std::ranges::find_if(limits, [&](const Limit& l) { return l.needs(plan) > l.bytes; });
  };
  const auto limit = exceeded(plan);
  if (limit == limits.end()) return "";
  const std::int64_t needs = limit->needs(plan);
  const std::string told = fmt::format("each rank needs {} {}: ", grouped(needs), limit->words);
  const std::int64_t data = plan.bytes[static_cast<int>(Kind::data)].peak;
  if (limit->device && 2 * data > needs) return told + "use a smaller --data or --batch";
  for (const Chapter* other : chapters_on_ranks()) {
    if (is_mixed(options.dtype) && !other->mixed_precision) continue;
    const Prediction of_other = predict(*other, options, device, layout);
    if (exceeded(of_other) != limits.end()) continue;
    const std::int64_t others = limit->needs(of_other);
    return told + (others == 0 ? fmt::format("{} takes none of it", other->name)
                               : fmt::format("{} would need {}", other->name, grouped(others)));
  }
  return told + fmt::format("no chapter fits, use fewer or smaller layers or batches, or more {}s",
                            limit->more);
}
}  // namespace

std::int64_t check_memory(const Chapter& chapter, const Options& options, const Choice& choice,
                          const Layout& layout) {
  const std::int64_t here = memory_of(Device::cpu).available();
  std::vector<Limit> limits;
  if (options.device_memory > 0) limits.push_back(asked_for(options.device_memory));
  if (choice.device == Device::cpu) {
    limits.push_back(shared(true, true, here, choice.sharing, "machine"));
  } else {
    const std::int64_t there = memory_of(choice.device).available();
    limits.push_back(shared(true, false, there, choice.sharing, "GPU"));
    limits.push_back(shared(false, true, here, choice.sharing_host, "machine"));
  }
  const Prediction plan = predict(chapter, options, choice.device, layout);
  const std::string missing = shortage(plan, options, choice.device, layout, limits);
  throw_if(!missing.empty(), ExitCode::resources, "{}", missing);
  return plan.sum(&Prediction::Bytes::peak);
}

std::int64_t Prediction::sent(Phase phase, Steps steps) const {
  const auto factor = static_cast<std::int64_t>(factors[static_cast<int>(phase)]);
  const std::int64_t times = phase == Phase::update ? steps.all - steps.skipped : steps.all;
  return factor * (padded / ranks) * (ranks - 1) * times;
}

std::int64_t Prediction::padding_sent(Steps steps) const {
  std::int64_t by_one = 0;
  for (const Phase phase : step_phases) by_one += sent(phase, steps);
  // So many shards each rank sends; one from every rank, and all of the padding has been sent once.
  return by_one / (padded / ranks) * (padded - parameters);
}

std::int64_t Prediction::copied(Direction direction, Steps steps) const {
  const std::int64_t times = direction == Direction::up ? steps.all - steps.skipped : steps.all;
  return copies[static_cast<int>(direction)] * (padded / ranks) * times;
}

void print_prediction(const Chapter& chapter, const Options& options, Device device) {
  const Layout layout = layout_of(options, 0, options.ranks);
  const Prediction plan = predict(chapter, options, device, layout);
  const auto w = static_cast<double>(bytes_of(options.dtype));
  const auto k = static_cast<double>(optimizer_bytes(chapter, options.dtype));
  fmt::print("{} on {}, {}: {} parameters, {} with padding, {}\n\n", chapter.name,
             counted(options.ranks, device == Device::cpu ? "rank" : "GPU"), name_of(options.dtype),
             grouped(plan.parameters), grouped(plan.padded), counted(layout.layers(), "layer"));
  fmt::print("bytes of state a parameter: {:g}", chapter.state_bytes(w, w, k, options.ranks));
  if (chapter.offloads()) {
    fmt::print(" on the device, {:g} on its host", chapter.offload.bytes(w, w, k, options.ranks));
  }
  const auto row = [](const auto&... cells) { fmt::print("{:<26}{:>24}{:>24}\n", cells...); };
  const auto row_of = [&](int kind, const Prediction::Bytes& bytes) {
    row(fmt::format("  {}", name_of(static_cast<Kind>(kind))), grouped(bytes.resident),
        grouped(bytes.peak));
  };
  fmt::print("\n\n");
  row(chapter.offloads() ? "bytes on a device" : "bytes of a rank", "resident", "peak");
  for (int kind = 0; kind < kind_count; ++kind) {
    if (kind == static_cast<int>(Kind::workspace) && device == Device::cpu) continue;
    row_of(kind, plan.bytes[kind]);
  }
  if (chapter.offloads()) fmt::print("on its host\n");
  for (int kind = 0; kind < kind_count; ++kind) {
    if (plan.on_host[kind].peak > 0) row_of(kind, plan.on_host[kind]);
  }
  fmt::print("\n");
  row("sent by a rank in a step", "elements", "a parameter");
  for (const Phase phase : step_phases) {
    row(fmt::format("  {}", name_of(phase)), grouped(plan.sent(phase, {})),
        fmt::format("{:g} x {}/{}", plan.factors[static_cast<int>(phase)], options.ranks - 1,
                    options.ranks));
  }
  fmt::print("  {:<24}{:>24}\n", "padding, all ranks", grouped(plan.padding_sent({})));
  fmt::print("  {:<24}{:>24}\n", "scalars", grouped(plan.scalars_sent({})));
  if (chapter.offloads()) {
    fmt::print("\n");
    row("copied by it in a step", "bytes", "a parameter");
    for (const Direction direction : {Direction::down, Direction::up}) {
      row(direction == Direction::down ? "  down, gradients" : "  up, parameters",
          grouped(plan.copied(direction, {})),
          fmt::format("{} x 1/{}", plan.copies[static_cast<int>(direction)], options.ranks));
    }
  }
  fmt::print("\n{}", formulas(chapter, options, device, layout));
  if (options.device_memory == 0) return;
  const std::string missing =
      shortage(plan, options, device, layout, {asked_for(options.device_memory)});
  fmt::print("\n{}\n", missing.empty() ? "fits into --device-memory" : missing);
}
}  // namespace zero
