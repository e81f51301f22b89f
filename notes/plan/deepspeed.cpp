// SPDX-License-Identifier: MIT
// What a configuration of DeepSpeed is here.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "memory/throw_if.hpp"
#include "notes/plan/plan.hpp"

namespace zero {
namespace {
constexpr int most_bytes = 1 << 20, deepest = 16;

/// A key, the JSON type of its value, and what it is here. Without a type all below it is meant.
struct Key {
  std::string name, type, here;
};
const std::string boolean = "boolean", number = "number", zero_ = "zero_optimization.";
const Key keys[] = {
    {zero_ + "stage", number, "chapter 03, 04, 05 or 06"},
    {zero_ + "offload_optimizer.device", "string", "chapter 07, or none"},
    {zero_ + "offload_optimizer.pin_memory", boolean, "always, but with --pageable"},
    {zero_ + "overlap_comm", boolean, "in 06 and 07, by --prefetch"},
    {zero_ + "allgather_partitions", boolean, "always"},
    {zero_ + "allgather_bucket_size", number, "a layer"},
    {zero_ + "reduce_scatter", boolean, "always from 04 on"},
    {zero_ + "reduce_bucket_size", number, "a layer"},
    {zero_ + "contiguous_gradients", boolean, "always"},
    {zero_ + "stage3_prefetch_bucket_size", number, "--prefetch, in layers"},
    {zero_ + "stage3_max_live_parameters", number, "--prefetch layers and one"},
    {zero_ + "stage3_max_reuse_distance", number, "0: forward frees each layer"},
    {zero_ + "sub_group_size", number, "a layer"},
    {"bf16.enabled", boolean, "--dtype bf16"},
    {"fp16.enabled", boolean, "--dtype fp16"},
    {"fp16.loss_scale", number, "a run's --loss-scale"},
    {"gradient_accumulation_steps", number, "--accumulate"},
    {"train_micro_batch_size_per_gpu", number, "--batch"},
    {"train_batch_size", number, "--batch x --accumulate x N"},
    {"gradient_clipping", number, "a run's --clip"},
    {"optimizer", "", "Adam, by a run's --lr, --beta1, --beta2, --eps, --weight-decay"},
    {"activation_checkpointing", "", "--recompute of this program"}};
/// With all below them; of `zero_optimization` and of the whole file.
const std::vector<std::string> nothing_here[] = {
    {"elastic_checkpoint", "ignore_unused_parameters", "mics_shard_size", "offload_param",
     "offload_optimizer.buffer_count", "offload_optimizer.fast_init", "offload_optimizer.nvme_path",
     "offload_optimizer.pipeline_read", "offload_optimizer.pipeline_write",
     "offload_optimizer.ratio", "round_robin_gradients",
     "stage3_gather_16bit_weights_on_model_save", "stage3_model_persistence_threshold",
     "stage3_param_persistence_threshold", "zero_hpz_partition_size", "zero_quantized_gradients",
     "zero_quantized_weights"},
    {"communication_data_type", "data_types", "fp16.auto_cast", "fp16.consecutive_hysteresis",
     "fp16.hysteresis", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.min_loss_scale",
     "prescale_gradients", "scheduler", "steps_per_print", "wall_clock_breakdown",
     "zero_allow_untested_optimizer"}};

bool within(const std::string& name, const std::string& section) {
  return name == section || name.starts_with(section + ".");
}

Json read(const std::string& path) try {
  std::error_code why;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, why));
  throw_if(static_cast<bool>(why), ExitCode::data, "cannot read {}: {}", path, why.message());
  throw_if(bytes > most_bytes, ExitCode::data, "{} has {} bytes, a configuration at most {}", path,
           bytes, most_bytes);
  std::ifstream file(path);
  throw_if(!file, ExitCode::data, "cannot read {}", path);
  return Json::parse(file, [&](int depth, Json::parse_event_t, Json&) {
    throw_if(depth > deepest, ExitCode::data, "{} nests deeper than {}, as no configuration does",
             path, deepest);
    return true;
  });
} catch (const Json::exception& error) {
  const char* what = std::strchr(error.what(), ' ') + 1;  // after nlohmann's number
  throw Error(ExitCode::data, fmt::format("{} is no JSON: {:.120}", path, what));
}
}  // namespace

DeepSpeed read_deepspeed(const std::string& path) {
  const Json file = read(path);
  const auto expect = [&](bool holds, const std::string& key, const Json& value, auto what) {
    throw_if(!holds, ExitCode::data, "{}: {} is {:.40}, not {}", path, key, value.dump(), what);
  };
  const Json sections = file.is_object() ? file.value("zero_optimization", Json()) : Json();
  throw_if(!sections.is_object(), ExitCode::data, "{} has no section zero_optimization", path);
  const Json flat = file.flatten();
  Json here = Json::array(), nothing = Json::array(), unknown = Json::array();
  Json values = Json::object();  // by key, of those that this knows
  for (const auto& [pointer, value] : flat.items()) {
    std::string name = pointer.substr(1);
    std::ranges::replace(name, '/', '.');
    const bool of_zero = name.starts_with(zero_);
    const auto is_nothing = [&, rest = name.substr(of_zero ? zero_.size() : 0)](const auto& known) {
      return within(rest, known);
    };
    const auto key = std::ranges::find_if(keys, [&](const Key& known) {
      return known.type.empty() ? within(name, known.name) : name == known.name;
    });
    const auto below = [&](const Key& known) { return within(known.name, name); };
    if (key != std::end(keys)) {
      expect(key->type.empty() || value == "auto" || value.type_name() == key->type, name, value,
             "a " + key->type);
      values[name] = value;
      here.push_back({{"key", name}, {"value", value}, {"here", key->here}});
    } else if (std::ranges::any_of(keys, below)) {
      expect(value.is_null(), name, value, "a section");
    } else {
      const bool known = std::ranges::any_of(nothing_here[!of_zero], is_nothing);
      (known ? nothing : unknown).push_back(name);
    }
  }
  const auto said = [&](const std::string& key, const Json& otherwise) {
    return values.value(key, otherwise);
  };
  const Json stage = said(zero_ + "stage", 0), bf16 = said("bf16.enabled", false);
  const Json device = said(zero_ + "offload_optimizer.device", "none");
  const Json fp16 = said("fp16.enabled", false), steps = said("gradient_accumulation_steps", 1);
  expect(stage.is_number_integer() && stage >= 0 && stage <= 3, zero_ + "stage", stage,
         "0, 1, 2 or 3");
  expect(device == "none" || device == "cpu" || device == "nvme",
         zero_ + "offload_optimizer.device", device, "none, cpu or nvme");
  throw_if(bf16 == true && fp16 == true, ExitCode::data, "{} enables both bf16 and fp16", path);
  const double micro_batches = steps == "auto" ? 1 : steps.get<double>();
  expect(
      micro_batches >= 1 && micro_batches <= 1 << 16 && micro_batches == std::floor(micro_batches),
      "gradient_accumulation_steps", steps, "a whole number from 1 to 65536");
  const bool offloads = stage > 0 && device != "none";
  const bool is_bf16 = bf16 == true || (bf16 == "auto" && fp16 != true);
  DeepSpeed told{.options = {{"--chapter", fmt::format("0{}", offloads ? 7 : 3 + stage.get<int>())},
                             {"--dtype", is_bf16         ? "bf16"
                                         : fp16 != false ? "fp16"
                                                         : "fp32"},
                             {"--accumulate", fmt::format("{:.0f}", micro_batches)}},
                 .json = {{"file", path}, {"keys", here}, {"nothing", nothing}}};
  told.json.update({{"unknown", unknown}, {"options", told.options}});
  return told;
}
}  // namespace zero
