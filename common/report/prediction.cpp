// SPDX-License-Identifier: MIT
#include "report/prediction.hpp"

#include <span>

#include "memory/throw_error.hpp"
#include "train/model.hpp"

namespace zero {
Prediction predict(const Card& card, const Options& options, DeviceType device,
                   const Layout& layout) {
  const std::int64_t w = bytes_of(options.dtype), n = layout.ranks();
  const std::int64_t all = layout.full_size(), layer = layout.largest_layer();
  // Parameters in fp32 are their own master where Adam can reach them.
  Prediction plan{.optimizer = optimizer_bytes(card.offloads() ? Dtype::bf16 : options.dtype),
                  .copies = {card.copied.to_host * w, card.copied.to_device * w},
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
  hold(Kind::gradients, g, w, layers_of(Kind::gradients));
  hold(Kind::optimizer, k, plan.optimizer);
  // The host's gradients are on their way: communication.
  if (card.offloads()) hold(Kind::communication, Held::sharded_on_host, w);
  By<Kind, Prediction::Bytes>& bytes = plan.bytes[Place::device];
  if (n > 1) {
    const std::int64_t part = layer / n;  // there is room for that of each other rank
    bytes[Kind::communication] = {0, w * (n - 1) * part,
                                  fmt::format("{} x {} x {}", w, n - 1, grouped(part))};
  }
  const Architecture model = architecture(options);
  bytes[Kind::activations] = {0, model.activations.bytes, model.activations.formula};
  const std::int64_t workspace = gpu_sums_bytes + blas_workspace_bytes + product_room_bytes;
  if (device == DeviceType::cuda) bytes[Kind::workspace] = {workspace, workspace};
  const Figure source = source_bytes(options);
  const std::int64_t data = source.bytes + model.data.bytes;
  bytes[Kind::data] = {data, data, fmt::format("{} + {}", source.formula, model.data.formula)};
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

std::string Prediction::formula(Phase phase) const {
  return fmt::format("{} x {} x {}/{}", factors[phase], grouped(padded), ranks - 1, ranks);
}

namespace {
/// What the plan lacks when it, and what is needed `besides`, may take so much of those places;
/// empty when it fits.
std::string shortage(const Prediction& plan, const Options& options, std::span<const Place> places,
                     std::int64_t allowed, const std::string& words, const std::string& more,
                     std::int64_t besides = 0) {
  std::int64_t needs = 0;
  for (const Place place : places) needs += plan.sum(&Prediction::Bytes::peak, place);
  if (needs + besides <= allowed) return "";
  const bool data = 2 * plan.bytes[places[0]][Kind::data].peak > needs;
  const std::string advice =
      data ? fmt::format("a smaller {} or --batch", options.tokens.empty() ? "--data" : "--tokens")
           : fmt::format("another chapter, fewer or smaller layers or batches, or more {}", more);
  return fmt::format("each rank needs {} {}: use {}", grouped(needs + besides), words, advice);
}

constexpr Place on_device[] = {Place::device}, on_host[] = {Place::host},
                on_both[] = {Place::device, Place::host};

/// Of what the options allow.
std::string shortage(const Prediction& plan, const Options& options) {
  const std::int64_t allowed = options.device_memory;
  return allowed == 0 ? ""
                      : shortage(plan, options, on_device, allowed,
                                 fmt::format("bytes of device memory, --device-memory allows {}",
                                             grouped(allowed)),
                                 "ranks");
}
}  // namespace

std::int64_t check_memory(const Card& card, const Options& options, const Choice& choice,
                          Device& device, const Layout& layout) {
  const Prediction plan = predict(card, options, device.type, layout);
  const auto check = [](const std::string& missing) {
    if (!missing.empty()) throw Error(ExitCode::resources, missing);
  };
  const auto check_share = [&](std::span<const Place> places, std::int64_t available, int sharing,
                               const std::string& of, const char* by, std::int64_t besides = 0) {
    const std::string words = fmt::format("bytes{}, {} on this {} share {} that are available", of,
                                          sharing, by, grouped(available));
    const std::string more = fmt::format("{}s", by);
    check(shortage(plan, options, places, available / sharing, words, more, besides));
  };
  check(shortage(plan, options));
  if (device.type == DeviceType::cpu) {
    check_share(on_both, device.available(), choice.sharing, "", "machine");
  } else {
    const bool nccl = choice.comm == Comm::nccl;
    const std::int64_t kept = bytes_for_libraries(nccl ? choice.sharing_host - 1 : 0);
    check_share(on_device, device.available(), choice.sharing,
                fmt::format(", {} of them for CUDA's libraries", grouped(kept)), "GPU", kept);
    // MPI takes what a GPU sends and receives from pages of the host that are locked for it.
    const std::int64_t room = plan.bytes[Place::device][Kind::communication].peak;
    check_share(on_host, device.host().available(), choice.sharing_host, " of the host's memory",
                "machine", choice.comm == Comm::mpi ? 2 * room : 0);
  }
  return plan.sum(&Prediction::Bytes::peak);
}

void print_prediction(const Card& card, const Options& options, DeviceType device) {
  const Layout layout = layout_of(options, 0, options.ranks);
  const Prediction plan = predict(card, options, device, layout);
  const Prediction::Traffic traffic = plan.traffic({});
  const bool offloads = card.offloads(), cpu = device == DeviceType::cpu;
  const auto row = [](const std::string& name, const std::string& resident,
                      const std::string& peak = "", const std::string& formula = "") {
    std::string line = fmt::format("{:<22} {:>13} {:>13}", name, resident, peak);
    line.erase(line.find_last_not_of(' ') + 1);
    if (!formula.empty()) {
      constexpr std::size_t beside = 52, columns = 80;
      line = line.size() + 1 < beside && beside + formula.size() <= columns
                 ? fmt::format("{:<{}}{}", line, beside, formula)
                 : line + "\n    " + formula;
    }
    fmt::print("{}\n", line);
  };
  fmt::print("{} on {}, {}: {} parameters, {} with padding, {}\n\n", card.name,
             counted(plan.ranks, cpu ? "rank" : "GPU"), name_of(options.dtype),
             grouped(plan.parameters), grouped(plan.padded), counted(layout.layers(), "layer"));
  row(offloads ? "bytes on a device" : "bytes of a rank", "resident", "peak", "formula");
  for (const Place place : every<Place>) {
    if (place == Place::host && offloads) fmt::print("on its host\n");
    for (const Kind kind : every<Kind>) {
      const auto& [resident, peak, formula] = plan.bytes[place][kind];
      if (place == Place::host ? peak == 0 : cpu && kind == Kind::workspace) continue;
      row(fmt::format("  {}", name_of(kind)), grouped(resident), grouped(peak), formula);
    }
    const std::string state = formula(card, place);
    if (state.empty()) continue;
    const std::int64_t w = bytes_of(options.dtype);
    const double bytes = card.bytes(place, w, w, plan.optimizer, plan.ranks);
    row("  state per parameter", fmt::format("{:g}", bytes), "", state);
  }
  row("elements sent", "in a step");
  for (const Phase phase : step_phases) {
    row(fmt::format("  {}", name_of(phase)), grouped(traffic.sent[phase]), "", plan.formula(phase));
  }
  row("  padding, all ranks", grouped(traffic.padding));
  row("  scalars", grouped(traffic.scalars));
  if (offloads) row("bytes copied", "in a step");
  for (const Direction way : every<Direction>) {
    if (offloads)
      row(fmt::format("  {}", copied_words[way]), grouped(traffic.copied[way]), "",
          fmt::format("{} x {}/{}", plan.copies[way], grouped(plan.padded), plan.ranks));
  }
  row("a checkpoint", grouped(checkpoint_bytes * plan.parameters), "",
      fmt::format("{} x {}, two headers", checkpoint_bytes, grouped(plan.parameters)));
  if (options.device_memory == 0) return;
  const std::string missing = shortage(plan, options);
  fmt::print("\n{}\n", missing.empty() ? "fits into --device-memory" : missing);
}
}  // namespace zero
