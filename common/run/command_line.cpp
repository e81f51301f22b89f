// SPDX-License-Identifier: MIT
#include "run/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cfloat>
#include <charconv>
#include <filesystem>

#include "comm/launcher.hpp"
#include "config.hpp"
#include "memory/throw_error.hpp"
#include "report/prediction.hpp"

namespace zero {
namespace {
using Units = std::map<std::string, double>;
const Units byte_units{{"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                       {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};

/// Reads a number and a unit, as 80GB; returns nothing if it is not that, or not in [least, most].
std::optional<double> quantity(const std::string& text, const Units& units, double least,
                               double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  const auto unit = units.find(std::string(read.ptr, end));
  if (read.ec != std::errc() || unit == units.end()) return std::nullopt;
  value *= unit->second;
  if (!(least <= value && value <= most)) return std::nullopt;
  return value;
}

/// Most options' limit: so 2^44 parameters, 2^48 bytes of a kind, 2^61 elements sent fit 64 bits.
constexpr int most = 1 << 16;

/// Returns what is wrong with a text, or an empty text; may rewrite the text.
using Check = std::function<std::string(std::string&)>;

/// Accepts a number in [least, largest], or 0 if or_zero. range: its text. CLI11 takes 1,5 for 15.
Check number(double least, double largest, const std::string& range, bool or_zero = false) {
  return [=](const std::string& text) {
    const Units no_unit{{"", 1}};
    const std::string digits = text.substr(text.starts_with('+'));
    const bool inside =
        quantity(digits, no_unit, least, largest) || (or_zero && quantity(digits, no_unit, 0, 0));
    return inside ? std::string() : fmt::format("{} is not a number {}", text, range);
  };
}

const Check not_negative = number(0, FLT_MAX, "from 0 to 3.4e38");
const Check below_one = number(0, std::nextafter(1, 0), "from 0 to below 1");
const Check positive = number(FLT_MIN, FLT_MAX, "from 1.2e-38 to 3.4e38");
const Check speed = number(1e-3, 1e9, "from 0.001 to 1e9, nor 0", true);
const Check wait = number(0, 1e9, "from 0 to 1e9");

/// Accepts a whole number in base 10. CLI11 by itself takes 010 for 8, a seed of -1 for 2^64 - 1.
template <class Integer> Check whole(Integer least, Integer largest) {
  return [=](std::string& text) {
    const std::optional<Integer> value = read_number<Integer>(text);
    if (!value || *value < least || *value > largest)
      return fmt::format("{} is not a whole number from {} to {}", text, least, largest);
    text = fmt::to_string(*value);
    return std::string();
  };
}

/// Accepts a size of memory, and rewrites it in bytes.
std::string size(std::string& text) {
  const auto bytes = text == "0" ? 0 : quantity(text, byte_units, 1e3, 1e15);
  if (!bytes) return text + " is not a size from 0.001MB to 1000TB, as 64MB or 64MiB";
  text = fmt::to_string(std::llround(*bytes));
  return std::string();
}

/// Removes the blanks with which CLI11 fills some lines of its help.
std::string without_trailing_blanks(const std::string& text) {
  std::string trimmed;
  for (const char sign : text) {
    if (sign == '\n') trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    trimmed += sign;
  }
  return trimmed;
}

constexpr ExitCode usage = ExitCode::usage;

/// Lists the options: tells CLI11 of each, and keeps a function that returns its settled value.
struct CommandLine {
  const Card& card;
  Options& o;
  CLI::App app{fmt::format("{}: one chapter of the ZeRO tutorial", card.name), card.name};
  std::vector<std::pair<std::string, std::function<OptionValue()>>> values{};
  std::string loss_scale = "dynamic";

  template <class Value>
  CLI::Option* add(const char* name, Value& value, const char* type, const char* help,
                   const Check& check = {}) {
    values.emplace_back(name, [&value] { return value; });
    CLI::Option* option = app.add_option(std::string("--") + name, value, help)->type_name(type);
    return check ? option->transform(CLI::Validator(check, "")) : option;
  }

  /// Accepts one of the words, or auto if value may stay empty. CLI11 by itself takes numbers, too.
  template <class Enum>
  CLI::Option* add_word(const char* name, auto& value, const char* help,
                        std::vector<std::string> words = {names_of<Enum>.begin(),
                                                          names_of<Enum>.end()}) {
    const auto word = [&value]() -> std::string {
      const std::optional<Enum> held = value;
      return held ? name_of(*held) : "auto";
    };
    const auto choose = [&value](const std::string& text) {
      const auto at = std::ranges::find(names_of<Enum>, text);
      if (at != names_of<Enum>.end()) value = static_cast<Enum>(at - names_of<Enum>.begin());
    };
    if (word() == "auto") words.insert(words.begin(), "auto");
    values.emplace_back(name, word);
    return app.add_option_function<std::string>(std::string("--") + name, choose, help)
        ->check(CLI::IsMember(words).description(""))
        ->default_str(word())
        ->type_name(CLI::detail::join(words, "|"));
  }

  void add_flag(const char* name, bool& value, const char* help) {
    values.emplace_back(name, [&value] { return value; });
    app.add_flag(std::string("--") + name, value, help);
  }

  void add_model() {
    group("What is trained");
    add_word<Task>("task", o.task, "text, toy, mlp, llama or tiny")->type_name("TASK");
    add("data", o.data, "FILE", "text for tasks text and llama")->default_str("notes/corpus.txt");
    add("width", o.width, "INT", "inputs of a layer; text: a multiple of 8", whole(1, most));
    add("layers", o.layers, "INT", "number of layers; llama: of blocks, 4", whole(1, 1 << 12));
    add("align", o.align, "INT", "a part of a layer is a multiple of it", whole(1, most));
    add("seed", o.seed, "UINT", "of the weights and the data", whole<std::uint64_t>(0, UINT64_MAX));
    group("--task llama");
    add("heads", o.heads, "INT", "of queries", whole(1, most));
    add("kv-heads", o.kv_heads, "INT", "of keys; 0: half, of an odd number all", whole(0, most));
    add("hidden", o.hidden, "INT", "of SwiGLU; 0: 8/3 of --width", whole(0, most));
    add("sequence", o.sequence, "INT", "tokens of a sample", whole(1, most));
    add("tokens", o.tokens, "FILE", "of 16 bits each; else bytes of --data");
    add("vocab", o.vocab, "INT", "different tokens", whole(1, 1 << 16));
    add_flag("recompute", o.recompute, "keep inputs of blocks alone");
  }

  void add_training() {
    group("How it is trained");
    add("steps", o.steps, "INT", "optimizer steps", whole(1, 1 << 30));
    add("batch", o.batch, "INT", "samples per rank and micro-batch; llama: 8", whole(1, most));
    add("accumulate", o.accumulate, "INT", "micro-batches per step", whole(1, most));
    add("lr", o.lr, "FLOAT", "learning rate; if wider than 1024: 2.048 / width", not_negative);
    add("beta1", o.beta1, "FLOAT", "decay of Adam's first moment", below_one);
    add("beta2", o.beta2, "FLOAT", "decay of Adam's second moment", below_one);
    add("eps", o.eps, "FLOAT", "added to Adam's denominator", positive);
    add("weight-decay", o.weight_decay, "FLOAT", "decoupled weight decay", not_negative);
    add("clip", o.clip, "FLOAT", "largest gradient norm, 0: do not clip", not_negative);
    if (!card.mixed_precision) return;
    add_word<Dtype>("dtype", o.dtype, "of working parameters and gradients");
    add("loss-scale", loss_scale, "SCALE", "dynamic or a number; fp16 only");
    values.back().second = [this] {
      return o.loss_scale == 0 ? OptionValue(loss_scale) : OptionValue(o.loss_scale);
    };
  }

  void add_machine() {
    group("Where it runs");
    if (card.prefetches()) {
      add("prefetch", o.prefetch, "INT", "layers gathered ahead: 0, 1 or 2", whole(0, 2));
    }
    add_word<DeviceType>("device", o.device, "where tensors lie and arithmetic runs");
    add("device-memory", o.device_memory, "SIZE", "that a rank may take; 0: what there is", size);
    if (card.ranks) {
      add_word<Comm>("comm", o.comm, "what carries bytes between ranks");
      add_word<Reduce>("reduce", o.reduce, "ordered, or native: NCCL's own sums")
          ->type_name("KIND");
      add("link", o.link, "GBIT/S", "of a modelled network; 0: no limit", speed);
      add("latency", o.latency, "MICROSECONDS", "of each message on it", wait);
    }
    if (card.offloads()) {
      add("bus", o.bus, "GB/S", "of a modelled bus to the host; 0: no limit", speed);
      add_flag("pageable", o.pageable, "stage in memory that is not pinned");
    }
    if (card.uses(Place::disk)) {
      add_word<Place>("state", o.state, "what keeps the optimizer state", {"disk", "host"});
      add("offload-dir", o.offload_dir, "DIR", "on the disk that takes the optimizer state");
      add("piece", o.piece, "ELEMENTS", "of that state to read, update and write at once",
          whole<std::int64_t>(8, 1 << 30));
      add("disk", o.disk, "GB/S", "of a modelled disk, each way; 0: no limit", speed);
    }
    add("timeout", o.timeout, "SECONDS", "end a job that stands still for so long",
        whole(1, 24 * 60 * 60));
  }

  void add_files() {
    group("What is written, and read");
    add("log", o.log, "FILE", "write JSON lines to this file");
    add("trace", o.trace, "FILE", "the first 8 steps for Perfetto, at the end");
    auto* save = add("save", o.save, "DIR", "write checkpoints into this folder");
    add("save-every", o.save_every, "STEPS", "save so often too; 0: at the end", whole(0, 1 << 30))
        ->needs(save);
    add("keep", o.keep, "N", "newest checkpoints that stay", whole(1, 1 << 30))->needs(save);
    auto* resume = add("resume", o.resume, "DIR", "go on from its newest, or from this one");
    add("init", o.init, "FILE", "begin with these weights, .safetensors")->excludes(resume);
    if (card.ranks) {
      add("check-every", o.check_every, "STEPS", "compare ranks' copies so often; 0: at the end",
          whole(0, 1 << 30));
    }
    add_flag("quiet", o.quiet, "print nothing but errors");
    auto* plan = app.add_flag("--plan", o.plan, "print predicted bytes and traffic, and stop");
    if (!card.ranks) return;
    add("ranks", o.ranks, "INT", "number of ranks to plan for", whole(1, 1 << 12))->needs(plan);
    values.pop_back();  // --ranks is for planning, so it is no value of a run
  }

  /// Begins a group of --help, for the options that are added from now on.
  void group(const char* name) { app.option_defaults()->group(name); }

  bool given(const char* name) const {
    const CLI::Option* option = app.get_option_no_throw(name);  // null: not in this chapter
    return option && option->count() > 0;
  }

  void settle_tiny() {
    if (!given("--batch")) o.batch = 1;
    if (!given("--layers")) o.layers = 2;
    if (!given("--lr")) o.lr = 0.1;
    o.width = 2;
  }

  void settle_llama() {
    if (!given("--batch")) o.batch = 8;
    if (!given("--layers")) o.layers = 4;
    if (o.hidden == 0) o.hidden = (8 * o.width / 3 + 15) / 16 * 16;
    if (o.kv_heads == 0) o.kv_heads = o.heads % 2 == 0 ? o.heads / 2 : o.heads;
    if (o.width % o.heads != 0)
      throw_error(usage, "--width {} is not a multiple of --heads {}", o.width, o.heads);
    if (o.width / o.heads % 2 != 0)
      throw_error(usage, "--width {} / --heads {} is {}: a head turns pairs, so its size is even",
                  o.width, o.heads, o.width / o.heads);
    if (o.heads % o.kv_heads != 0)
      throw_error(usage, "--heads {} is not a multiple of --kv-heads {}", o.heads, o.kv_heads);
    if (o.tokens.empty() && o.vocab < 256)
      throw_error(usage, "--vocab {} is less than the 256 bytes of a text: it is for --tokens",
                  o.vocab);
    if (given("--tokens") && given("--data"))
      throw_error(usage, "--tokens {} and --data {}: a run reads one of them", o.tokens, o.data);
    if (given("--tokens") && !given("--vocab"))
      throw_error(usage, "--tokens {} needs --vocab: how many different tokens there are",
                  o.tokens);
    if (given("--tokens")) o.data.clear();
    const double tokens = 1.0 * o.batch * o.sequence, w = o.width;
    if (tokens > most_tokens)
      throw_error(usage, "--batch {} of --sequence {}: more than {} tokens at a time", o.batch,
                  o.sequence, most_tokens);
    const double params = 2 * w * w + 2 * w * w / o.heads * o.kv_heads + 3 * w * o.hidden;
    const double numbers = 1.0 * o.heads * o.sequence + 16 * w + 3.0 * o.hidden + o.vocab;
    // Kernels count the heads of all tokens in 32 bits.
    if (std::max(params, tokens * numbers / 256) * o.layers > 0x1p44 || tokens * o.heads >= 0x1p32)
      throw_error(usage, "--layers {}, --width {}, --hidden {}: more numbers than can be counted",
                  o.layers, o.width, o.hidden);
  }

  /// Sets options that follow from others. Throws Error (usage) if options contradict each other.
  void settle() {
    const int started = launcher().ranks;
    const std::string scale = loss_scale == "dynamic" ? "" : positive(loss_scale);
    if (!card.ranks && started > 1)
      throw_error(usage, "this chapter is one process, it was started as {}: leave out mpirun",
                  started);
    if (o.plan && started > 1)
      throw_error(usage, "--plan starts no ranks: leave out mpirun and say --ranks {}", started);
    for (const char* name : {"--offload-dir", "--disk"}) {
      if (o.state == Place::host && given(name))
        throw_error(usage, "{} is of the disk, which --state host does not use", name);
    }
    if (o.task == Task::toy && (given("--width") || given("--layers")))
      throw_error(usage, "--task toy is 128 -> 512 -> 10: it takes no --width and no --layers");
    if (o.task == Task::tiny && given("--width"))
      throw_error(usage, "--task tiny has layers of 2 -> 2: it takes no --width");
    const bool llama = o.task == Task::llama, text = o.task == Task::text || llama;
    if (!text && given("--data"))
      throw_error(usage, "--data is read by --task text and llama only, not by --task {}",
                  name_of(o.task));
    for (const char* name : {"--heads", "--kv-heads", "--hidden", "--sequence", "--tokens",
                             "--vocab", "--recompute"}) {
      if (!llama && given(name))
        throw_error(usage, "{} is for --task llama, not for --task {}", name, name_of(o.task));
    }
    if (o.task == Task::text && o.width % 8 != 0)
      throw_error(usage,
                  "--width {} is not a multiple of 8: --task text gives each of its 8 "
                  "bytes width / 8 numbers",
                  o.width);
    if (given("--loss-scale") && o.dtype != Dtype::fp16)
      throw_error(usage, "--loss-scale is for --dtype fp16: {} needs none", name_of(o.dtype));
    if (!scale.empty()) throw_error(usage, "--loss-scale: {}, nor dynamic", scale);
    for (const char* name : {"--data", "--tokens", "--log", "--trace", "--save", "--offload-dir",
                             "--resume", "--init"}) {
      if (given(name) && app[name]->as<std::string>().empty())
        throw_error(usage, "{} needs a name", name);
    }
    // The whole run's samples, and their inputs, are counted in 64 bits.
    const double samples = 1.0 * o.steps * o.accumulate * started * o.batch;
    if (!o.plan && samples * o.width >= 0x1p63)
      throw_error(usage,
                  "--steps {}, --accumulate {}, --batch {}: more samples than can be counted",
                  o.steps, o.accumulate, o.batch);
    // Adam's first step moves each weight by about lr, so outputs move by more in a wider layer.
    if (!given("--lr") && o.width > 1024) o.lr *= 1024.0 / o.width;
    if (loss_scale != "dynamic") CLI::detail::lexical_cast(loss_scale, o.loss_scale);
    if (o.task == Task::toy) o.width = 128, o.layers = 2;
    if (!text) o.data.clear();
    if (llama) settle_llama();
    if (o.task == Task::tiny) settle_tiny();
    std::error_code missing;
    for (const auto& [name, path] : {std::pair{"--log", o.log}, {"--trace", o.trace}}) {
      if (std::filesystem::equivalent(o.tokens.empty() ? o.data : o.tokens, path, missing))
        throw_error(usage, "{} {} is the text that is to be read", name, path);
    }
  }
};
}  // namespace

Command read_command(int argc, char** argv, const Card& card) {
  Command command;
  Options& o = command.options;
  o.data = DEFAULT_CORPUS;
  o.dtype = card.mixed_precision ? Dtype::bf16 : Dtype::fp32;
  CommandLine line{card, o};
  line.app.option_defaults()->always_capture_default();
  line.app.get_formatter()->column_width(32);
  line.add_model();
  line.add_training();
  line.add_machine();
  line.add_files();
  const char* hint = " (--help lists the options)";
  try {
    line.app.parse(argc, argv);
    hint = "";
    line.settle();
    for (const auto& [name, value] : line.values) command.values.emplace_back(name, value());
    command.run = true;
  } catch (const CLI::CallForHelp&) {
    command.text = without_trailing_blanks(line.app.help());
  } catch (const std::runtime_error& error) {  // CLI11's, or our own
    std::string what = error.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    command.text = what + hint;
    command.status = static_cast<int>(ExitCode::usage);
  }
  return command;
}

std::optional<int> answer_alone(const Command& command, const Card& card) try {
  if (command.run && !command.options.plan) return std::nullopt;
  if (card.ranks && launcher().ranks > 1) return std::nullopt;  // Session answers for all
  if (launcher().rank != 0) return 0;  // not `status`: then a launcher may end rank 0, too
  if (command.run) {
    const bool gpu = visible_gpus().count > 0;
    const DeviceType device =
        command.options.device.value_or(gpu ? DeviceType::cuda : DeviceType::cpu);
    print_prediction(with_state(card, command.options.state), command.options, device);
  } else {
    if (command.status != 0) throw Error(static_cast<ExitCode>(command.status), command.text);
    std::fprintf(stdout, "%s\n", command.text.c_str());  // print() might throw
  }
  flush_output();
  return command.status;
} catch (const Error& error) {
  std::fprintf(stderr, "%s: %s\n", card.name, error.what());
  return static_cast<int>(error.code);
}
}  // namespace zero
