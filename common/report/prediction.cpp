// SPDX-License-Identifier: MIT
#include "report/prediction.hpp"

#include "comm/communicator.hpp"
#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
Prediction predict_state(const Chapter& chapter, const Options& options, const Costs& costs,
                         Device device, const Layout& layout) {
  const std::int64_t w = bytes_of(options.dtype);
  // Doubles are exact here: integers below 2^53, and what is divided is a multiple of n.
  const double n = layout.ranks();
  const auto full = [&](std::int64_t bytes) {
    return static_cast<double>(bytes * layout.full_size());
  };
  const std::int64_t layer = layout.largest_layer();
  // A run that uses fewer layers than a window has places for takes no more than it uses.
  const WholeLayers whole = chapter.whole_layers(options.prefetch);
  const std::int64_t uses = std::int64_t{layout.layers()} * options.accumulate;
  const Traffic traffic = chapter.elements_sent(options.accumulate);

  Prediction plan{.factors = by_phase(traffic),
                  .parameters = layout.parameters(),
                  .padded = layout.full_size(),
                  .ranks = layout.ranks(),
                  .element = w};
  const auto set = [&](Kind kind, double bytes, std::int64_t now_and_then) {
    const auto resident = static_cast<std::int64_t>(bytes);
    plan.bytes[static_cast<int>(kind)] = {resident, resident + now_and_then};
  };
  set(Kind::parameters, chapter.state_bytes(full(w), 0, 0, n),
      std::min<std::int64_t>(whole.params, 2 * uses) * w * layer);
  set(Kind::gradients, chapter.state_bytes(0, full(costs.grads), 0, n),
      std::min<std::int64_t>(whole.grads, uses) * costs.grads * layer);
  set(Kind::optimizer, chapter.state_bytes(0, 0, full(costs.optimizer), n), 0);
  set(Kind::communication, 0,
      w * received_elements(device, options.dtype, layout.largest_layer() / plan.ranks,
                            plan.ranks));
  return plan;
}

Prediction predict(const Chapter& chapter, const Options& options, Device device,
                   const Layout& layout) {
  const Architecture model = architecture(options);
  Prediction plan = predict_state(chapter, options, costs_of(options.dtype), device, layout);
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

std::int64_t check_memory(const Chapter& chapter, const Options& options, const Choice& choice,
                          const Layout& layout) {
  const Prediction plan = predict(chapter, options, choice.device, layout);
  const std::int64_t needed = plan.sum(&Prediction::Bytes::peak);
  const std::int64_t available = memory_of(choice.device).available();
  const bool data = 2 * plan.bytes[static_cast<int>(Kind::data)].peak > needed;
  throw_if(needed > available / choice.sharing, ExitCode::resources,
           "each rank needs {} bytes, {} on this {} share {} that are available: use {}",
           grouped(needed), choice.sharing, choice.device == Device::cpu ? "machine" : "GPU",
           grouped(available),
           data ? "a smaller --data or --batch" : "fewer or narrower layers, or a later chapter");
  return needed;
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

std::int64_t Prediction::collectives(Phase phase, const Layout& layout) const {
  return static_cast<std::int64_t>(factors[static_cast<int>(phase)]) * layout.layers();
}

std::chrono::duration<double> Prediction::time(Phase phase, const Layout& layout,
                                               const Link& link) const {
  std::chrono::duration<double> all_layers{}, sums{};
  for (int l = 0; l < layout.layers(); ++l) {
    all_layers += link.time(element * layout.layer_size(l), layout.ranks());
  }
  const std::int64_t two = 2 * sizeof(double);
  if (phase == Phase::update) sums = link.time(two * ranks, layout.ranks());
  return sums + factors[static_cast<int>(phase)] * all_layers;
}

void print_prediction(const Chapter& chapter, const Options& options, Device device) {
  const Layout layout(architecture(options).sizes(), 0, options.ranks);
  const Prediction plan = predict(chapter, options, device, layout);
  const auto w = static_cast<double>(bytes_of(options.dtype));
  const auto k = static_cast<double>(optimizer_bytes(options.dtype));
  fmt::print("{} on {}, {}: {} parameters, {} with padding, {}\n\n", chapter.name,
             counted(options.ranks, device == Device::cpu ? "rank" : "GPU"), name_of(options.dtype),
             grouped(plan.parameters), grouped(plan.padded), counted(layout.layers(), "layer"));
  fmt::print("bytes of state a parameter: {:g}\n\n", chapter.state_bytes(w, w, k, options.ranks));
  fmt::print("{:<26}{:>24}{:>24}\n", "bytes of a rank", "resident", "peak");
  for (int kind = 0; kind < kind_count; ++kind) {
    if (kind == static_cast<int>(Kind::workspace) && device == Device::cpu) continue;
    fmt::print("  {:<24}{:>24}{:>24}\n", name_of(static_cast<Kind>(kind)),
               grouped(plan.bytes[kind].resident), grouped(plan.bytes[kind].peak));
  }
  fmt::print("\n{:<26}{:>24}{:>24}\n", "sent by a rank in a step", "elements", "a parameter");
  for (const Phase phase : step_phases) {
    fmt::print("  {:<24}{:>24}{:>24}\n", name_of(phase), grouped(plan.sent(phase, {})),
               fmt::format("{:g} x {}/{}", plan.factors[static_cast<int>(phase)], options.ranks - 1,
                           options.ranks));
  }
  fmt::print("  {:<24}{:>24}\n", "padding, all ranks", grouped(plan.padding_sent({})));
  fmt::print("  {:<24}{:>24}\n", "scalars", grouped(plan.scalars_sent({})));
}
}  // namespace zero
