// SPDX-License-Identifier: MIT
// What others' files are here: a configuration of DeepSpeed, a model's config.json.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "memory/throw_if.hpp"
#include "notes/plan/plan.hpp"

namespace zero {
namespace {
constexpr int most_bytes = 1 << 16, deepest = 16;

/// A key, where a first dot stands for "zero_optimization.", the JSON type of its value, and what
/// it is here. Without a type all below it is meant.
struct Key {
  std::string name, type, here;
};
const std::string section = "zero_optimization", boolean = "boolean", number = "number";
const Key keys[] = {
    {".stage", number, "chapter 03, 04, 05 or 06"},
    {".offload_optimizer.device", "string", "07, which cuts gradients and parameters too; or none"},
    {".cpu_offload", boolean, "as offload_optimizer to the cpu"},
    {".offload_optimizer.pin_memory", boolean, "always, but with --pageable"},
    {".overlap_comm", boolean, "in 06 and 07, by --prefetch"},
    {".allgather_partitions", boolean, "always"},
    {".allgather_bucket_size", number, "a layer"},
    {".reduce_scatter", boolean, "always from 04 on"},
    {".reduce_bucket_size", number, "a layer"},
    {".contiguous_gradients", boolean, "always"},
    {".stage3_prefetch_bucket_size", number, "--prefetch, in layers"},
    {".stage3_max_live_parameters", number, "--prefetch layers and one"},
    {".stage3_max_reuse_distance", number, "0: forward frees each layer"},
    {".sub_group_size", number, "a layer"},
    {"bf16.enabled", boolean, "--dtype bf16"},
    {"fp16.enabled", boolean, "--dtype fp16"},
    {"fp16.loss_scale", number, "a run's --loss-scale"},
    {"gradient_accumulation_steps", number, "--accumulate"},
    {"train_micro_batch_size_per_gpu", number, "--batch"},
    {"train_batch_size", number, "--batch x --accumulate x N"},
    {"gradient_clipping", number, "a run's --clip"},
    {"optimizer.type", "string", "Adam"},
    {"optimizer", "", "Adam, by a run's --lr, --beta1, --beta2, --eps, --weight-decay"},
    {"activation_checkpointing", "", "--recompute of this program"}};
/// With all below them.
const std::string nothing_here =
    ".elastic_checkpoint .ignore_unused_parameters .mics_shard_size .offload_param "
    ".offload_optimizer.buffer_count .offload_optimizer.fast_init .offload_optimizer.nvme_path "
    ".offload_optimizer.pipeline_read .offload_optimizer.pipeline_write .offload_optimizer.ratio "
    ".round_robin_gradients .stage3_gather_16bit_weights_on_model_save "
    ".stage3_model_persistence_threshold .stage3_param_persistence_threshold "
    ".zero_hpz_partition_size .zero_quantized_gradients .zero_quantized_weights "
    "aio amp comms_logger communication_data_type csv_monitor data_types flops_profiler "
    "tensorboard wandb fp16.auto_cast fp16.consecutive_hysteresis fp16.hysteresis "
    "fp16.initial_scale_power fp16.loss_scale_window fp16.min_loss_scale prescale_gradients "
    "scheduler steps_per_print wall_clock_breakdown zero_allow_untested_optimizer";

bool within(const std::string& name, const std::string& other) {
  return name == other || name.starts_with(other + ".");
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

void expect_in(const std::string& path, bool holds, const std::string& key, const Json& value,
               const std::string& what) {
  throw_if(!holds, ExitCode::data, "{}: {} is {:.40}, not {}", path, key, value.dump(), what);
}
}  // namespace

Decoder read_config(const std::string& path) {
  const Json file = read(path);
  const auto expect = std::bind_front(expect_in, path);
  throw_if(!file.is_object(), ExitCode::data, "{} is no object of keys and values", path);
  const auto said = [&](const char* key, const Json& otherwise = {}) -> Json {
    const Json found = file.value(key, Json()), value = found.is_null() ? otherwise : found;
    throw_if(value.is_null(), ExitCode::data, "{} has no {}", path, key);
    expect(!otherwise.is_boolean() || value.is_boolean(), key, value, "a boolean");
    return value;
  };
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    throw_if(said(key, 0) != 0, ExitCode::data,
             "{}: {} is {:.20}: experts are no chapter, as a token activates some parameters only, "
             "perhaps another rank's; for LoRA say --params and --trainable",
             path, key, said(key, 0).dump());
  }
  const auto number = [&](const char* key, int most = 1 << 20, const Json& otherwise = {}) {
    const Json value = said(key, otherwise);
    expect(value.is_number_integer() && value >= 1 && value <= most, key, value,
           fmt::format("a whole number from 1 to {}", most));
    return value.get<std::int64_t>();
  };
  const Json type = said("model_type");
  const bool qwen2 = type == "qwen2", qwen3 = type == "qwen3", llama = type == "llama";
  expect(qwen2 || qwen3 || llama || type == "mistral", "model_type", type,
         "llama, mistral, qwen2 or qwen3");
  const std::int64_t blocks = number("num_hidden_layers", (1 << 12) - 2);
  const std::int64_t words = number("vocab_size"), f = number("intermediate_size");
  const std::int64_t h = number("hidden_size", 1 << 16), a = number("num_attention_heads", 1 << 10);
  const std::int64_t kv = number("num_key_value_heads", a, a);
  expect(a % kv == 0, "num_attention_heads", a, fmt::format("a multiple of the {} of keys", kv));
  const std::int64_t size = number("head_dim", 1 << 10, h % a == 0 ? Json(h / a) : Json());
  const std::int64_t q = a * size, k = kv * size;
  // Qwen2's biases and Qwen3's norms have no switch.
  std::int64_t small = qwen2 ? q + 2 * k : qwen3 ? 2 * size : 0;
  if ((llama || qwen3) && said("attention_bias", false)) small += q + 2 * k + h;
  if (llama && said("mlp_bias", false)) small += 2 * f + h;
  const bool tied = said("tie_word_embeddings", false);
  const Decoder model{path, type, blocks, words, a, kv, h, q, k, f, small, tied};
  expect(model.parameters() <= most_parameters, "the number of parameters", model.parameters(),
         "at most " + grouped(most_parameters));
  return model;
}

Json read_deepspeed(const std::string& path, int ranks) {
  const Json file = read(path);
  const auto expect = std::bind_front(expect_in, path);
  throw_if(!file.is_object() || !file.value(section, Json()).is_object(), ExitCode::data,
           "{} has no section {}", path, section);
  const Json flat = file.flatten(), none = Json::array();
  Json told = {{"file", path}, {"keys", none}, {"nothing", none}, {"unknown", none}};
  Json values = Json::object();  // of told's keys
  for (const auto& [pointer, value] : flat.items()) {
    std::string full = pointer.substr(1);
    std::ranges::replace(full, '/', '.');
    std::string name = full.substr(within(full, section) ? section.size() : 0);
    if (name == "bfloat16.enabled") name = "bf16.enabled";  // as it was once called
    // Names that would be taken for a path.
    if (pointer.find('.') != pointer.npos || pointer.starts_with("//")) name = "?";
    const auto is = [&](const Key& key) {
      return key.type.empty() ? within(name, key.name) : name == key.name;
    };
    if (const auto key = std::ranges::find_if(keys, is); key != std::end(keys)) {
      expect(key->type.empty() || value == "auto" || value.type_name() == key->type, full, value,
             "a " + key->type);
      values[name] = value;
      told["keys"].push_back({{"key", full}, {"value", value}, {"here", key->here}});
    } else if (std::ranges::any_of(keys, [&](const Key& key) { return within(key.name, name); })) {
      expect(value.is_null(), full, value, "a section");
    } else {
      std::istringstream words(nothing_here);
      const bool known = std::any_of(std::istream_iterator<std::string>(words), {},
                                     [&](const std::string& word) { return within(name, word); });
      told[known ? "nothing" : "unknown"].push_back(full);
    }
  }
  const bool once = values.value(".cpu_offload", Json()) == true;
  const std::string device = values.value(".offload_optimizer.device", once ? "cpu" : "none");
  const auto said = [&](const char* key, const Json& otherwise) {
    return values.value(key, otherwise);
  };
  const Json stage = said(".stage", 0), steps = said("gradient_accumulation_steps", "auto");
  const Json batch = said("train_batch_size", "auto"), type = said("optimizer.type", "Adam");
  const Json micro = said("train_micro_batch_size_per_gpu", "auto");
  const Json bf16 = said("bf16.enabled", false), fp16 = said("fp16.enabled", false);
  expect(stage.is_number_integer() && stage >= 0 && stage <= 3, section + ".stage", stage,
         "0, 1, 2 or 3");
  expect(device == "none" || device == "cpu" || device == "nvme",
         section + ".offload_optimizer.device", device, "none, cpu or nvme");
  throw_if(bf16 == true && fp16 == true, ExitCode::data, "{} enables both bf16 and fp16", path);
  const bool adam = type.get<std::string>().find("dam") != std::string::npos;  // adamw, FusedAdam
  expect(adam, "optimizer.type", type, "an Adam");
  const bool follows = steps == "auto" && batch != "auto" && micro != "auto" && ranks >= 0;
  throw_if(follows && ranks == 0, ExitCode::usage,
           "{}: micro-batches follow from train_batch_size and --ranks: say that or --accumulate",
           path);
  const double count = follows           ? batch.get<double>() / micro.get<double>() / ranks
                       : steps == "auto" ? 1
                                         : steps.get<double>();
  expect(count >= 1 && count <= 1 << 16 && count == std::floor(count),
         follows ? "train_batch_size / train_micro_batch_size_per_gpu / --ranks"
                 : "gradient_accumulation_steps",
         count, "a whole number from 1 to 65536");
  const bool is_bf16 = bf16 == true || (bf16 == "auto" && fp16 != true);
  const int chapter = stage > 0 && device != "none" ? 7 : 3 + stage.get<int>();
  const std::string other = fp16 != false ? "fp16" : "fp32";
  told["options"] = {{"--accumulate", fmt::format("{:.0f}", count)},
                     {"--chapter", fmt::format("0{}", chapter)},
                     {"--dtype", is_bf16 ? "bf16" : other}};
  return told;
}
}  // namespace zero
