// SPDX-License-Identifier: MIT
#include "report/prediction.hpp"

#include <numeric>

#include "memory/throw_if.hpp"
#include "train/adam.hpp"
#include "train/model.hpp"

namespace zero {
Costs costs_of(const Card& card, Dtype dtype) {
  return {bytes_of(dtype), optimizer_bytes(card.offloads() ? Dtype::bf16 : dtype)};
}

Prediction predict_state(const Card& card, const Options& options, DeviceType device,
                         const Layout& layout, Costs costs) {
  const std::int64_t w = bytes_of(options.dtype), n = layout.ranks();
  const std::int64_t all = layout.full_size(), layer = layout.largest_layer();
  Prediction plan{.copies = {card.copied.to_host * costs.grads, card.copied.to_device * w},
                  .parameters = layout.parameters(),
                  .padded = all,
                  .ranks = n};
  for (const Phase phase : step_phases) {
    plan.factors[phase] = card.sent_in(phase).in(options.accumulate);
  }
  // Of so many bytes an element: what is held of all, and whole layers in use beside it.
  const auto hold = [&](Kind kind, Held how, std::int64_t each, int layers = 0) {
    const Place place = how == Held::sharded_on_host ? Place::host : Place::device;
    const std::int64_t shares = how == Held::replicated ? 1 : n, held = each * all / shares;
    std::string of = grouped(all) + (shares > 1 ? fmt::format("/{}", shares) : "");
    if (layers > 0) {
      const std::string several = layers > 1 ? fmt::format("{} x ", layers) : "";
      of = fmt::format("({} + {}{})", of, several, grouped(layer));
    }
    plan.bytes[place][kind] = {held, held + each * layers * layer,
                               fmt::format("{} x {}", each, of)};
  };
  const auto layers_of = [&](Kind kind) {
    return card.slots(kind, options.prefetch, layout.layers(), options.accumulate);
  };
  const auto& [p, g, k] = card.held;
  hold(Kind::parameters, p, w, layers_of(Kind::parameters));
  hold(Kind::gradients, g, costs.grads, layers_of(Kind::gradients));
  hold(Kind::optimizer, k, costs.optimizer);
  // The host's gradients are on their way: communication.
  if (card.offloads()) hold(Kind::communication, Held::sharded_on_host, costs.grads);
  if (n == 1) return plan;
  // Of each other rank there is room for its part of a layer; on a CPU for two pieces of 256 KiB.
  const std::int64_t room = device == DeviceType::cpu ? (512 << 10) / w : layer;
  const std::int64_t part = std::min(layer / n, room);
  plan.bytes[Place::device][Kind::communication] = {
      0, w * (n - 1) * part, fmt::format("{} x {} x {}", w, n - 1, grouped(part))};
  return plan;
}

Prediction predict(const Card& card, const Options& options, DeviceType device,
                   const Layout& layout) {
  const Architecture model = architecture(options);
  Prediction plan = predict_state(card, options, device, layout, costs_of(card, options.dtype));
  By<Kind, Prediction::Bytes>& bytes = plan.bytes[Place::device];
  const std::int64_t w = bytes_of(options.dtype);
  bytes[Kind::activations] = {0, model.activations.bytes, model.activations.formula};
  const std::int64_t workspace = gpu_sums_bytes + blas_workspace_bytes + product_room_bytes;
  if (device == DeviceType::cuda) bytes[Kind::workspace] = {workspace, workspace};
  const Figure source = source_bytes(options);
  const std::int64_t data = source.bytes + model.data.bytes;
  bytes[Kind::data] = {data, data, fmt::format("{} + {}", source.formula, model.data.formula)};

  for (auto& in_use : plan.after) {
    for (const Kind kind : every<Kind>) in_use[kind] = bytes[kind].resident;
  }
  auto &load = plan.after[Phase::load], &forward = plan.after[Phase::forward];
  load[Kind::activations] += model.loaded;
  forward[Kind::activations] += model.activations.bytes;
  if (!card.prefetches()) return plan;  // nothing whole outlives its phase
  // What a window has gathered ahead, and gradients on their way, which the update gives back.
  const std::int64_t layers = layout.layers(), whole = w * layout.largest_layer();
  const auto slots = [&](Kind kind) -> std::int64_t {
    return card.slots(kind, options.prefetch, layers, options.accumulate);
  };
  const auto add = [&](Phase phase, Kind kind, std::int64_t count) {
    plan.after[phase][kind] += count * whole;
  };
  const std::int64_t ahead = std::max<std::int64_t>(slots(Kind::parameters) - 1, 0);
  const std::int64_t formed = slots(Kind::gradients), earlier = (options.accumulate - 1) * layers;
  add(Phase::load, Kind::parameters, earlier > 0 ? ahead : 0);
  add(Phase::forward, Kind::parameters, std::min(ahead, layers));
  add(Phase::load, Kind::gradients, std::min(formed, earlier));
  add(Phase::forward, Kind::gradients, std::min(formed, earlier));
  add(Phase::backward, Kind::gradients, formed);
  return plan;
}

Prediction::Traffic Prediction::traffic(Steps steps) const {
  const std::int64_t shard = padded / ranks, updates = steps.all - steps.skipped;
  Traffic all{.scalars = steps.all * 2 * (ranks - 1),
              .copied = {copies[Direction::to_host] * shard * steps.all,
                         copies[Direction::to_device] * shard * updates}};
  for (const Phase phase : step_phases) {
    const auto factor = static_cast<std::int64_t>(factors[phase]);
    const std::int64_t shards =
        factor * (phase == Phase::update ? updates : steps.all) * (ranks - 1);
    all.sent[phase] = shards * shard;
    // With one shard from every rank all of the padding has been sent once.
    all.padding += shards * (padded - parameters);
  }
  return all;
}

namespace {
/// Of what one rank reserves.
struct Limit {
  std::vector<Place> places;  // whose bytes count
  std::int64_t bytes;  // that the rank may take of them
  std::string words;  // what these bytes are, and why there are no more
  const char* more;  // of which there could be

  std::int64_t needs(const Prediction& plan) const {
    std::int64_t sum = 0;
    for (const Place place : places) sum += plan.sum(&Prediction::Bytes::peak, place);
    return sum;
  }
};

/// What the plan lacks by the options and these limits, and what would do; empty when it fits.
std::string shortage(const Prediction& plan, const Options& options,
                     std::vector<Limit> limits = {}) {
  if (const std::int64_t allowed = options.device_memory; allowed > 0) {
    const std::string words =
        fmt::format("bytes of device memory, --device-memory allows {}", grouped(allowed));
    limits.insert(limits.begin(), {{Place::device}, allowed, words, "rank"});
  }
  const auto limit =
      std::ranges::find_if(limits, [&](const Limit& l) { return l.needs(plan) > l.bytes; });
  if (limit == limits.end()) return "";
  const std::int64_t needs = limit->needs(plan);
  const std::string told = fmt::format("each rank needs {} {}: ", grouped(needs), limit->words);
  const std::int64_t data = plan.bytes[limit->places[0]][Kind::data].peak;
  const char* file = options.tokens.empty() ? "--data" : "--tokens";
  if (2 * data > needs) return told + fmt::format("use a smaller {} or --batch", file);
  return told + fmt::format("use fewer or smaller layers or batches, or more {}s", limit->more);
}
}  // namespace

std::int64_t check_memory(const Card& card, const Options& options, const Choice& choice,
                          Device& device, const Layout& layout) {
  const auto shared = [](std::vector<Place> places, std::int64_t available, int sharing,
                         const char* by) {
    const char* whose = places[0] == Place::host ? " of the host's memory" : "";
    return Limit{std::move(places), available / sharing,
                 fmt::format("bytes{}, {} on this {} share {} that are available", whose, sharing,
                             by, grouped(available)),
                 by};
  };
  std::vector<Limit> limits;
  if (device.type == DeviceType::cpu) {
    limits = {shared({Place::device, Place::host}, device.available(), choice.sharing, "machine")};
  } else {
    const std::int64_t left = device.available() - choice.sharing * libraries_bytes;
    limits = {shared({Place::device}, std::max<std::int64_t>(left, 0), choice.sharing, "GPU"),
              shared({Place::host}, device.host().available(), choice.sharing_host, "machine")};
  }
  const Prediction plan = predict(card, options, device.type, layout);
  const std::string missing = shortage(plan, options, limits);
  throw_if(!missing.empty(), ExitCode::resources, "{}", missing);
  return plan.sum(&Prediction::Bytes::peak);
}

std::string formulas(const Prediction& plan) {
  std::string text = "peaks in bytes, and elements sent in a step, by the chapter's formulas\n";
  const auto add = [&](const std::string& what, const std::string& formula, std::int64_t figure) {
    text += fmt::format("  {:<20}{} = {}\n", what, formula, grouped(figure));
  };
  for (const Place place : every<Place>) {
    for (const Kind kind : every<Kind>) {
      const auto& [resident, peak, formula] = plan.bytes[place][kind];
      const char* where = place == Place::host ? "host " : "";
      if (!formula.empty()) add(fmt::format("{}{}", where, name_of(kind)), formula, peak);
    }
  }
  if (plan.ranks == 1) return text;
  const std::string all =
      fmt::format("{} x {}/{}", grouped(plan.padded), plan.ranks - 1, plan.ranks);
  for (const Phase phase : step_phases) {
    add(fmt::format("in {}", name_of(phase)), fmt::format("{} x {}", plan.factors[phase], all),
        plan.traffic({}).sent[phase]);
  }
  return text;
}

void print_prediction(const Card& card, const Options& options, DeviceType device) {
  const Layout layout = layout_of(options, 0, options.ranks);
  const Prediction plan = predict(card, options, device, layout);
  const Prediction::Traffic traffic = plan.traffic({});
  const bool offloads = card.offloads(), cpu = device == DeviceType::cpu;
  fmt::print("{} on {}, {}: {} parameters, {} with padding, {}\n\n", card.name,
             counted(plan.ranks, cpu ? "rank" : "GPU"), name_of(options.dtype),
             grouped(plan.parameters), grouped(plan.padded), counted(layout.layers(), "layer"));
  const auto state = [&, w = bytes_of(options.dtype)](Place place) {
    const auto [grads, optimizer] = costs_of(card, options.dtype);
    return fmt::format("{:g} = {}", card.bytes(place, w, grads, optimizer, plan.ranks),
                       formula(card, place));
  };
  fmt::print("bytes of state a parameter: {}", state(Place::device));
  if (offloads) fmt::print(" on the device, {} on its host", state(Place::host));
  const auto row = [](const auto&... cells) { fmt::print("{:<26}  {:>22}  {:>22}\n", cells...); };
  fmt::print("\n\n");
  row(offloads ? "bytes on a device" : "bytes of a rank", "resident", "peak");
  for (const Place place : every<Place>) {
    if (place == Place::host && offloads) fmt::print("on its host\n");
    for (const Kind kind : every<Kind>) {
      const auto& [resident, peak, formula] = plan.bytes[place][kind];
      if (place == Place::host ? peak == 0 : cpu && kind == Kind::workspace) continue;
      row(fmt::format("  {}", name_of(kind)), grouped(resident), grouped(peak));
    }
  }
  fmt::print("\n");
  row("sent by a rank in a step", "elements", "a parameter");
  for (const Phase phase : step_phases) {
    row(fmt::format("  {}", name_of(phase)), grouped(traffic.sent[phase]),
        fmt::format("{:g} x {}/{}", plan.factors[phase], plan.ranks - 1, plan.ranks));
  }
  fmt::print("  {:<24}{:>24}\n", "padding, all ranks", grouped(traffic.padding));
  fmt::print("  {:<24}{:>24}\n", "scalars", grouped(traffic.scalars));
  if (offloads) {
    fmt::print("\n");
    row("copied by it in a step", "bytes", "a parameter");
    for (const Direction way : every<Direction>) {
      row(fmt::format("  {}", copied_words[way]), grouped(traffic.copied[way]),
          fmt::format("{} x 1/{}", plan.copies[way], plan.ranks));
    }
  }
  fmt::print("\n{}", formulas(plan));
  fmt::print("  {:<20}{} x {} = {} bytes, and two headers\n", "a checkpoint", checkpoint_bytes,
             grouped(plan.parameters), grouped(checkpoint_bytes * plan.parameters));
  if (options.device_memory == 0) return;
  const std::string missing = shortage(plan, options);
  fmt::print("\n{}\n", missing.empty() ? "fits into --device-memory" : missing);
}
}  // namespace zero
