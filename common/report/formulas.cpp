// SPDX-License-Identifier: MIT
#include "report/formulas.hpp"

#include "comm/communicator.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
/// "12/3", or "12" where all of it is held; of nothing, nothing.
std::string share(std::int64_t elements, double part, std::int64_t ranks) {
  if (part == 0) return "";
  return grouped(elements) + (part < 1 ? fmt::format("/{}", ranks) : "");
}

/// Bytes of so many an element: of what is held, and beside it of whole layers now and then.
std::string held(std::int64_t each, const std::string& of_all, std::int64_t layers,
                 std::int64_t layer) {
  if (layers == 0) return of_all.empty() ? "" : fmt::format("{} x {}", each, of_all);
  const std::string several = layers == 1 ? "" : fmt::format("{} x ", layers);
  return fmt::format("{} x ({} + {}{})", each, of_all, several, grouped(layer));
}

std::string data(const Options& options, const Architecture& model) {
  const std::string targets = fmt::format("4 x {} x {}", options.batch, model.targets());
  if (options.task == Task::text) {  // the text, a code for each byte, targets
    return fmt::format("{} + 4 x 256 x {} + {}", grouped(file_bytes(options)), options.width / 8,
                       targets);
  }
  return fmt::format("4 x {} x ({} + {}) + {}", TeacherSource::hidden, model.widths.front(),
                     model.widths.back(), targets);
}
}  // namespace

std::string formulas(const Chapter& chapter, const Options& options, Device device,
                     const Layout& layout) {
  const Prediction plan = predict(chapter, options, device, layout);
  const Costs costs = costs_of(chapter, options.dtype);
  const Architecture model = architecture(options);
  const WholeLayers whole = chapter.whole_layers(options.prefetch);
  const std::int64_t n = layout.ranks(), all = layout.full_size(), layer = layout.largest_layer();
  const std::int64_t w = bytes_of(options.dtype), uses = layout.layers() * options.accumulate;
  std::string text = "peaks in bytes, and elements sent in a step, by the chapter's formulas\n";
  const auto line = [&](const std::string& what, const std::string& formula, std::int64_t figure) {
    if (!formula.empty()) text += fmt::format("  {:<20}{} = {}\n", what, formula, grouped(figure));
  };
  const auto bytes = [&](Kind kind, const std::string& formula) {
    line(name_of(kind), formula, plan.bytes[static_cast<int>(kind)].peak);
  };
  const auto on_device = [&](double p, double g, double k) {
    return share(all, chapter.state_bytes(p, g, k, static_cast<double>(n)), n);
  };
  bytes(Kind::parameters,
        held(w, on_device(1, 0, 0), std::min<std::int64_t>(whole.params, 2 * uses), layer));
  bytes(Kind::gradients,
        held(costs.grads, on_device(0, 1, 0), std::min<std::int64_t>(whole.grads, uses), layer));
  bytes(Kind::optimizer, held(costs.optimizer, on_device(0, 0, 1), 0, 0));
  const std::int64_t received = received_elements(device, options.dtype, layer / n, n);
  if (n > 1) {
    bytes(Kind::communication, fmt::format("{} x {} x {}", w, n - 1, grouped(received / (n - 1))));
  }
  std::int64_t widths = 0;
  for (const std::int64_t width : model.widths) widths += width;
  bytes(Kind::activations, fmt::format("{} x {} x ({} + 2 x {})", w, options.batch, grouped(widths),
                                       std::ranges::max(model.widths)));
  bytes(Kind::data, data(options, model));
  if (chapter.offloads()) {
    const auto with_host = [&](Kind kind, std::int64_t each, double g, double k) {
      const double part = chapter.offload.bytes(0, g, k, static_cast<double>(n));
      line(fmt::format("host {}", name_of(kind)), held(each, share(all, part, n), 0, 0),
           plan.on_host[static_cast<int>(kind)].peak);
    };
    with_host(Kind::optimizer, costs.optimizer, 0, 1);
    with_host(Kind::communication, costs.grads, 1, 0);
  }
  for (const Phase phase : step_phases) {
    if (n == 1) continue;
    line(fmt::format("in {}", name_of(phase)),
         fmt::format("{} x {} x {}/{}", plan.factors[static_cast<int>(phase)], grouped(all), n - 1,
                     n),
         plan.sent(phase, {}));
  }
  return text;
}
}  // namespace zero
