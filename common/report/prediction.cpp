// SPDX-License-Identifier: MIT
#include "report/prediction.hpp"

#include <numeric>

#include "comm/communicator.hpp"
#include "memory/throw_if.hpp"
#include "train/mlp.hpp"

namespace zero {
Prediction predict_state(const Card& card, const Options& options, DeviceType device,
                         const Layout& layout) {
  const std::int64_t w = bytes_of(options.dtype), k = optimizer_bytes(card, options.dtype);
  // Doubles are exact here: integers below 2^53, and what is divided is a multiple of n.
  const double n = layout.ranks();
  const auto full = [&](std::int64_t bytes) {
    return static_cast<double>(bytes * layout.full_size());
  };
  const std::int64_t layer = layout.largest_layer();
  Prediction plan{.copies = {card.copied.down * w, card.copied.up * w},
                  .parameters = layout.parameters(),
                  .padded = layout.full_size(),
                  .ranks = layout.ranks()};
  for (const Phase phase : step_phases) {
    plan.factors[phase] = card.sent_in(phase).in(options.accumulate);
  }
  for (const Place place : every<Place>) {
    auto& bytes = plan.bytes[place];
    const auto held = [&](double p, double g, double k) {
      const auto all = static_cast<std::int64_t>(card.bytes(place, p, g, k, n));
      return Prediction::Bytes{all, all};
    };
    // The host's gradients are on their way: communication.
    bytes[Kind::parameters] = held(full(w), 0, 0);
    bytes[place == Place::host ? Kind::communication : Kind::gradients] = held(0, full(w), 0);
    bytes[Kind::optimizer] = held(0, 0, full(k));
  }
  auto& bytes = plan.bytes[Place::device];
  for (const Kind kind : {Kind::parameters, Kind::gradients}) {
    bytes[kind].peak += w * layer *
                        card.rooms(kind, options.prefetch, layout.layers(), options.accumulate);
  }
  bytes[Kind::communication].peak =
      w * received_elements(device, options.dtype, layer / plan.ranks, plan.ranks);
  return plan;
}

Prediction predict(const Card& card, const Options& options, DeviceType device,
                   const Layout& layout) {
  const Architecture model = architecture(options);
  Prediction plan = predict_state(card, options, device, layout);
  By<Kind, Prediction::Bytes>& bytes = plan.bytes[Place::device];
  const std::int64_t activations = model.activation_bytes(options.batch, options.dtype);
  bytes[Kind::activations].peak = activations;
  const std::int64_t workspace = gpu_sums_bytes + blas_workspace_bytes + product_room_bytes;
  if (device == DeviceType::cuda) bytes[Kind::workspace] = {workspace, workspace};
  const std::int64_t targets = options.batch * model.targets() * bytes_of(Dtype::fp32);
  const std::int64_t data = Data::bytes(options, file_bytes(options)) + targets;
  bytes[Kind::data] = {data, data};

  auto& after = plan.after;
  for (auto& in_use : after) {
    for (const Kind kind : every<Kind>) in_use[kind] = bytes[kind].resident;
  }
  const std::int64_t w = bytes_of(options.dtype), layer = w * layout.largest_layer();
  const auto rooms = [&](Kind kind) -> std::int64_t {
    return card.rooms(kind, options.prefetch, layout.layers(), options.accumulate);
  };
  // What a window has gathered ahead, of the uses that are left, and gradients on their way, which
  // it gives back in the update. Without a window nothing whole outlives its phase.
  const std::int64_t layers = layout.layers(), earlier = options.accumulate - 1;
  const auto ahead = [&](std::int64_t left) {
    return std::clamp<std::int64_t>(rooms(Kind::parameters) - 1, 0, left) * layer;
  };
  const auto on_their_way = [&](std::int64_t formed) {
    return card.prefetches() ? std::min(rooms(Kind::gradients), formed) * layer : 0;
  };
  after[Phase::load][Kind::parameters] += earlier > 0 ? ahead(2 * layers) : 0;
  after[Phase::forward][Kind::parameters] += ahead(layers);
  after[Phase::load][Kind::gradients] += on_their_way(earlier * layers);
  after[Phase::forward][Kind::gradients] += on_their_way(earlier * layers);
  after[Phase::backward][Kind::gradients] += on_their_way(layers * options.accumulate);
  after[Phase::load][Kind::activations] += options.batch * model.widths[0] * w;
  after[Phase::forward][Kind::activations] += activations;
  return plan;
}

Prediction::Passed Prediction::passed(Steps steps) const {
  const std::int64_t shard = padded / ranks, updates = steps.all - steps.skipped;
  Passed all{.scalars = steps.all * 2 * (ranks - 1),
             .copied = {copies[Direction::down] * shard * steps.all,
                        copies[Direction::up] * shard * updates}};
  std::int64_t shards = 0;  // that a rank sends
  for (const Phase phase : step_phases) {
    const auto factor = static_cast<std::int64_t>(factors[phase]);
    const std::int64_t times = factor * (phase == Phase::update ? updates : steps.all);
    all.sent[phase] = times * (ranks - 1) * shard;
    shards += times * (ranks - 1);
  }
  // With one shard from every rank all of the padding has been sent once.
  all.padding = shards * (padded - parameters);
  return all;
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

Limit shared(bool device, bool host, std::int64_t available, int sharing, const char* by) {
  return {device, host, available / sharing,
          fmt::format("bytes{}, {} on this {} share {} that are available",
                      device ? "" : " of the host's memory", sharing, by, grouped(available)),
          by};
}

/// What is short of what the plan needs, by the options or these limits, and what would do; empty
/// when it fits.
std::string shortage(const Prediction& plan, const Options& options, DeviceType device,
                     const Layout& layout, Cards others, std::vector<Limit> limits = {}) {
  const std::int64_t allowed = options.device_memory;
  if (allowed > 0) {
    const Limit asked_for{
        true, false, allowed,
        fmt::format("bytes of device memory, --device-memory allows {}", grouped(allowed)), "rank"};
    limits.insert(limits.begin(), asked_for);
  }
  const auto exceeded = [&](const Prediction& plan) {
    return std::ranges::find_if(limits, [&](const Limit& l) { return l.needs(plan) > l.bytes; });
  };
  const auto limit = exceeded(plan);
  if (limit == limits.end()) return "";
  const std::int64_t needs = limit->needs(plan);
  const std::string told = fmt::format("each rank needs {} {}: ", grouped(needs), limit->words);
  const std::int64_t data = plan.bytes[Place::device][Kind::data].peak;
  if (limit->device && 2 * data > needs) return told + "use a smaller --data or --batch";
  for (const Card* other : others) {
    if (is_mixed(options.dtype) && !other->mixed_precision) continue;
    const Prediction of_other = predict(*other, options, device, layout);
    if (exceeded(of_other) != limits.end()) continue;
    const std::int64_t less = limit->needs(of_other);
    return told + (less == 0 ? fmt::format("{} takes none of it", other->name)
                             : fmt::format("{} would need {}", other->name, grouped(less)));
  }
  return told + fmt::format("no chapter fits, use fewer or smaller layers or batches, or more {}s",
                            limit->more);
}
}  // namespace

std::int64_t check_memory(const Card& card, const Options& options, const Choice& choice,
                          Device& device, const Layout& layout, Cards others) {
  const bool gpu = device.type == DeviceType::cuda;
  std::vector<Limit> limits{
      shared(true, !gpu, device.available(), choice.sharing, gpu ? "GPU" : "machine")};
  if (gpu) {
    limits.push_back(
        shared(false, true, device.host().available(), choice.sharing_host, "machine"));
  }
  const Prediction plan = predict(card, options, device.type, layout);
  const std::string missing = shortage(plan, options, device.type, layout, others, limits);
  throw_if(!missing.empty(), ExitCode::resources, "{}", missing);
  return plan.sum(&Prediction::Bytes::peak);
}

std::string formulas(const Prediction& plan, const Card& card, const Options& options,
                     const Layout& layout) {
  const Architecture model = architecture(options);
  const std::int64_t n = layout.ranks(), all = layout.full_size(), layer = layout.largest_layer();
  const std::int64_t w = bytes_of(options.dtype), k = optimizer_bytes(card, options.dtype);
  std::string text = "peaks in bytes, and elements sent in a step, by the chapter's formulas\n";
  const auto line = [&](const std::string& what, const std::string& formula, std::int64_t figure) {
    text += fmt::format("  {:<20}{} = {}\n", what, formula, grouped(figure));
  };
  // Of so many bytes an element: what is held of all, whole or a share, and beside it whole layers.
  const auto held = [&](const char* what, std::int64_t each, const Prediction::Bytes& bytes) {
    if (bytes.peak == 0) return;
    const bool whole = bytes.resident == each * all;
    const std::int64_t layers = (bytes.peak - bytes.resident) / (each * layer);
    std::string of = grouped(all) + (whole ? "" : fmt::format("/{}", n));
    if (layers > 0) {
      const std::string several = layers == 1 ? "" : fmt::format("{} x ", layers);
      of = fmt::format("({} + {}{})", of, several, grouped(layer));
    }
    line(what, fmt::format("{} x {}", each, of), bytes.peak);
  };
  const auto &of = plan.bytes[Place::device], &on_host = plan.bytes[Place::host];
  held("parameters", w, of[Kind::parameters]);
  held("gradients", w, of[Kind::gradients]);
  held("optimizer", k, of[Kind::optimizer]);
  const std::int64_t received = of[Kind::communication].peak;
  if (n > 1) {
    line("communication", fmt::format("{} x {} x {}", w, n - 1, grouped(received / w / (n - 1))),
         received);
  }
  const auto& widths = model.widths;
  line("activations",
       fmt::format("{} x {} x ({} + 2 x {})", w, options.batch,
                   grouped(std::reduce(widths.begin(), widths.end())), std::ranges::max(widths)),
       of[Kind::activations].peak);
  const std::string data =  // of text the text itself, and a code for each byte
      options.task == Task::text
          ? fmt::format("{} + 4 x 256 x {}", grouped(file_bytes(options)), options.width / 8)
          : fmt::format("4 x {} x ({} + {})", TeacherSource::hidden, widths.front(), widths.back());
  line("data", fmt::format("{} + 4 x {} x {}", data, options.batch, model.targets()),
       of[Kind::data].peak);
  held("host optimizer", k, on_host[Kind::optimizer]);
  held("host communication", w, on_host[Kind::communication]);
  const Prediction::Passed passed = plan.passed({});
  for (const Phase phase : step_phases) {
    if (n == 1) continue;
    line(fmt::format("in {}", name_of(phase)),
         fmt::format("{} x {} x {}/{}", plan.factors[phase], grouped(all), n - 1, n),
         passed.sent[phase]);
  }
  return text;
}

void print_prediction(const Card& card, const Options& options, DeviceType device, Cards others) {
  const Layout layout = layout_of(options, 0, options.ranks);
  const Prediction plan = predict(card, options, device, layout);
  const Prediction::Passed passed = plan.passed({});
  const auto w = static_cast<double>(bytes_of(options.dtype));
  const auto k = static_cast<double>(optimizer_bytes(card, options.dtype));
  fmt::print("{} on {}, {}: {} parameters, {} with padding, {}\n\n", card.name,
             counted(options.ranks, device == DeviceType::cpu ? "rank" : "GPU"), name_of(options.dtype),
             grouped(plan.parameters), grouped(plan.padded), counted(layout.layers(), "layer"));
  const auto bytes = [&](Place place) {
    return fmt::format("{:g} = {}", card.bytes(place, w, w, k, options.ranks), formula(card, place));
  };
  fmt::print("bytes of state a parameter: {}", bytes(Place::device));
  if (card.offloads()) fmt::print(" on the device, {} on its host", bytes(Place::host));
  const auto row = [](const auto&... cells) { fmt::print("{:<26}{:>24}{:>24}\n", cells...); };
  fmt::print("\n\n");
  row(card.offloads() ? "bytes on a device" : "bytes of a rank", "resident", "peak");
  for (const Place place : every<Place>) {
    if (place == Place::host && card.offloads()) fmt::print("on its host\n");
    for (const Kind kind : every<Kind>) {
      const auto& [resident, peak] = plan.bytes[place][kind];
      const bool gpu_only = kind == Kind::workspace;
      if (place == Place::host ? peak == 0 : gpu_only && device == DeviceType::cpu) continue;
      row(fmt::format("  {}", name_of(kind)), grouped(resident), grouped(peak));
    }
  }
  fmt::print("\n");
  row("sent by a rank in a step", "elements", "a parameter");
  for (const Phase phase : step_phases) {
    row(fmt::format("  {}", name_of(phase)), grouped(passed.sent[phase]),
        fmt::format("{:g} x {}/{}", plan.factors[phase], options.ranks - 1, options.ranks));
  }
  fmt::print("  {:<24}{:>24}\n", "padding, all ranks", grouped(passed.padding));
  fmt::print("  {:<24}{:>24}\n", "scalars", grouped(passed.scalars));
  if (card.offloads()) {
    fmt::print("\n");
    row("copied by it in a step", "bytes", "a parameter");
    for (const Direction way : every<Direction>) {
      row(way == Direction::down ? "  down, gradients" : "  up, parameters",
          grouped(passed.copied[way]), fmt::format("{} x 1/{}", plan.copies[way], options.ranks));
    }
  }
  fmt::print("\n{}", formulas(plan, card, options, layout));
  if (options.device_memory == 0) return;
  const std::string missing = shortage(plan, options, device, layout, others);
  fmt::print("\n{}\n", missing.empty() ? "fits into --device-memory" : missing);
}
}  // namespace zero
