// SPDX-License-Identifier: MIT
// Where the predicted figures come from: the formulas with a run's numbers in them.
#include "report/prediction.hpp"
#include "train/mlp.hpp"

namespace zero {
namespace {
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
  const Architecture model = architecture(options);
  const std::int64_t n = layout.ranks(), all = layout.full_size(), layer = layout.largest_layer();
  const std::int64_t w = bytes_of(options.dtype), k = optimizer_bytes(chapter, options.dtype);
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
  const auto of = [&](Kind kind) { return plan.bytes[static_cast<int>(kind)]; };
  held("parameters", w, of(Kind::parameters));
  held("gradients", w, of(Kind::gradients));
  held("optimizer", k, of(Kind::optimizer));
  const std::int64_t received = of(Kind::communication).peak;
  if (n > 1) {
    line("communication", fmt::format("{} x {} x {}", w, n - 1, grouped(received / w / (n - 1))),
         received);
  }
  std::int64_t widths = 0;
  for (const std::int64_t width : model.widths) widths += width;
  line("activations",
       fmt::format("{} x {} x ({} + 2 x {})", w, options.batch, grouped(widths),
                   std::ranges::max(model.widths)),
       of(Kind::activations).peak);
  line("data", data(options, model), of(Kind::data).peak);
  held("host optimizer", k, plan.on_host[static_cast<int>(Kind::optimizer)]);
  held("host communication", w, plan.on_host[static_cast<int>(Kind::communication)]);
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
