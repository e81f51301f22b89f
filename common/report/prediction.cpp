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
  // With fp32 the parameters are the master weights. If the card stages(), Adam updates a copy of
  // them on the host, so there are master weights in every dtype, as there are with bf16.
  Prediction plan{.optimizer = optimizer_bytes(card.stages() ? Dtype::bf16 : options.dtype),
                  .parameters = layout.parameters(),
                  .padded = all,
                  .ranks = n};
  for (const Phase phase : step_phases) {
    plan.factors[phase] = card.sent_in(phase).in(options.accumulate);
  }
  // Adds `elements` of `each` bytes. words: formula of `elements`. throughout: resident, not lent.
  const auto need = [&](Place place, Kind kind, std::int64_t each, std::int64_t elements,
                        const std::string& words, bool throughout) {
    auto& [resident, peak, formula] = plan.bytes[place][kind];
    resident += throughout * each * elements, peak += each * elements;
    const std::string times = fmt::format("{} x ", each);
    const bool first = formula.empty();
    formula =
        times + (first ? words : fmt::format("({} + {})", formula.substr(times.size()), words));
  };
  const auto share = [](std::int64_t elements, std::int64_t shares) {
    return grouped(elements) + (shares > 1 ? fmt::format("/{}", shares) : "");
  };
  const auto several = [](int number, const std::string& what) {
    return number > 1 ? fmt::format("{} x {}", number, what) : what;
  };
  // Adds a rank's share of all elements, and, on the device, `layers` whole layers, which are lent.
  const auto hold = [&](Kind kind, Placement how, std::int64_t each, int layers = 0) {
    const std::int64_t shares = how == Placement::replicated ? 1 : n;
    need(place_of(how), kind, each, all / shares, share(all, shares), true);
    if (layers == 0) return;
    need(Place::device, kind, each, layers * layer, several(layers, grouped(layer)), false);
  };
  const auto layers_of = [&](Kind kind) {
    return card.slots(kind, options.prefetch, layout.layers(), options.accumulate);
  };
  const auto& [p, g, k] = card.held;
  hold(Kind::parameters, p, w, layers_of(Kind::parameters));
  hold(Kind::gradients, g, w, layers_of(Kind::gradients));
  hold(Kind::optimizer, k, plan.optimizer);
  // The staged gradients count as communication.
  if (card.stages()) hold(Kind::communication, Placement::sharded_on_host, w);
  // Two buffers on the host receive gradients that are added to those of earlier micro-batches.
  if (place_of(g) == Place::host && options.accumulate > 1)
    need(Place::host, Kind::communication, w, 2 * layer / n, several(2, share(layer, n)), true);
  const auto [to_host, to_device] = card.copied;
  const auto bytes_per_parameter = [&](double rate) { return static_cast<std::int64_t>(rate) * w; };
  plan.copies[Place::device] = {
      Prediction::Copies{bytes_per_parameter(to_host.in(options.accumulate)), 0},
      Prediction::Copies{bytes_per_parameter(to_device.a_micro_batch * options.accumulate),
                         bytes_per_parameter(to_device.a_step)}};
  if (place_of(k) == Place::disk) {
    const std::int64_t piece = std::min(options.piece, layer / n);
    const int pieces = card.borrowed.pieces;
    need(Place::host, Kind::optimizer, plan.optimizer, pieces * piece,
         several(pieces, grouped(piece)), true);
    plan.copies[Place::disk].all.fill({0, plan.optimizer});
    // Each step begins to read its first pieces before it knows whether it is skipped.
    for (int l = 0, read = 0; l < layout.layers(); ++l) {
      for (std::int64_t at = 0; at < layout.shard_size(l); at += piece) {
        if (++read > pieces) break;
        plan.read_ahead += plan.optimizer * std::min(piece, layout.shard_size(l) - at);
      }
    }
  }
  if (n > 1) {  // the communicator's receive buffer
    need(Place::device, Kind::communication, w, (n - 1) * (layer / n),
         fmt::format("{} x {}", n - 1, grouped(layer / n)), false);
  }
  By<Kind, Prediction::Bytes>& bytes = plan.bytes[Place::device];
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
  const auto product = [](std::int64_t times, std::int64_t elements) {
    std::int64_t all = 0;
    if (__builtin_mul_overflow(times, elements, &all))
      throw_error(ExitCode::usage,
                  "{} times {} is too much to count: plan with a smaller --ranks, "
                  "--accumulate, --align or model",
                  grouped(times), grouped(elements));
    return all;
  };
  const std::int64_t shard = padded / ranks, updates = steps.all - steps.skipped;
  Traffic all{.scalars = steps.all * 2 * (ranks - 1)};
  for (const Place place : bus_places) {
    for (const Direction way : every<Direction>) {
      const auto& [a_step, an_update] = copies[place][way];
      all.copied[place][way] = product(a_step * steps.all + an_update * updates, shard);
    }
  }
  if (steps.last_skipped) all.copied[Place::disk][Direction::to_host] += read_ahead;
  std::int64_t sent = 0;
  for (const Phase phase : step_phases) {
    const auto factor = static_cast<std::int64_t>(factors[phase]);
    const std::int64_t shards =
        factor * (phase == Phase::update ? updates : steps.all) * (ranks - 1);
    all.sent[phase] = product(shards, shard);
    sent += shards;
  }
  // If each rank sends its shard once, together they send all of the padding once.
  all.padding = product(sent, padded - parameters);
  return all;
}

std::string Prediction::formula(Phase phase) const {
  return fmt::format("{} x {} x {}/{}", factors[phase], grouped(padded), ranks - 1, ranks);
}

namespace {
/// Returns a sentence if plan's peak in those places, plus `besides`, exceeds `allowed`, else an
/// empty text. All in bytes. words: what follows the number; more: what one could have more of.
std::string shortage(const Prediction& plan, const Options& options, std::span<const Place> places,
                     std::int64_t allowed, const std::string& words, const std::string& more,
                     std::int64_t besides = 0) {
  std::int64_t needs = 0;
  for (const Place place : places) needs += plan.sum(&Prediction::Bytes::peak, place);
  if (needs + besides <= allowed) return "";
  // If the data take more than half of the bytes, only less data or a smaller batch helps.
  const bool data = 2 * plan.bytes[places[0]][Kind::data].peak > needs;
  const std::string advice =
      data ? fmt::format("a smaller {} or --batch", options.tokens.empty() ? "--data" : "--tokens")
           : fmt::format("another chapter, fewer or smaller layers or batches, or more {}", more);
  return fmt::format("each rank needs {} {}: use {}", grouped(needs + besides), words, advice);
}

constexpr Place on_device[] = {Place::device}, on_host[] = {Place::host},
                on_both[] = {Place::device, Place::host};

/// Returns a sentence if plan's peak on the device exceeds --device-memory, else an empty text.
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
  // sharing: how many ranks are on a `by`, a GPU or machine. whose: the memory, for the sentence.
  const auto check_share = [&](std::span<const Place> places, std::int64_t available, int sharing,
                               const std::string& whose, const char* by, std::int64_t besides = 0) {
    const std::string words = fmt::format("bytes{}, {} on this {} share {} that are available",
                                          whose, sharing, by, grouped(available));
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
    // MPI's messages of a GPU pass through pinned memory of the host: one buffer each way.
    const std::int64_t room = plan.bytes[Place::device][Kind::communication].peak;
    check_share(on_host, device.host().available(), choice.sharing_host, " of the host's memory",
                "machine", choice.comm == Comm::mpi ? 2 * room : 0);
  }
  const Device& disk = device.at(Place::disk);
  if (card.uses(Place::disk)) {
    const std::int64_t room = disk.available();
    const std::int64_t needs = plan.sum(&Prediction::Bytes::peak, Place::disk);
    if (needs > room / choice.sharing_host)
      throw_error(ExitCode::resources,
                  "each rank needs {} bytes in --offload-dir {}, {} on this machine share {} that "
                  "are available: use another folder, or --state host",
                  grouped(needs), disk.folder, choice.sharing_host, grouped(room));
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
    if (place != Place::device && card.uses(place)) fmt::print("{}\n", place_words[place]);
    for (const Kind kind : every<Kind>) {
      const auto& [resident, peak, formula] = plan.bytes[place][kind];
      if (place != Place::device ? peak == 0 : cpu && kind == Kind::workspace) continue;
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
  for (const Place place : bus_places) {
    for (const Direction way : every<Direction>) {
      const auto& [a_step, an_update] = plan.copies[place][way];
      if (a_step + an_update == 0) continue;
      row(fmt::format("  {}", copied_words[place][way]), grouped(traffic.copied[place][way]), "",
          fmt::format("{} x {}/{}", a_step + an_update, grouped(plan.padded), plan.ranks));
    }
  }
  row("a checkpoint", grouped(checkpoint_bytes * plan.parameters), "",
      fmt::format("{} x {}, two headers", checkpoint_bytes, grouped(plan.parameters)));
  if (options.device_memory == 0) return;
  const std::string missing = shortage(plan, options);
  fmt::print("\n{}\n", missing.empty() ? "fits into --device-memory" : missing);
}
}  // namespace zero
