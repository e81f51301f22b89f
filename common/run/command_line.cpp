// SPDX-License-Identifier: MIT
#include "run/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>

#include "config.hpp"
#include "memory/error.hpp"
#include "report/prediction.hpp"
#include "run/failure.hpp"
#include "run/launcher.hpp"

namespace zero {

namespace {

const std::map<std::string, Task> tasks{
    {"text", Task::text}, {"toy", Task::toy}, {"mlp", Task::mlp}};
const std::map<std::string, Dtype> dtypes{
    {"fp32", Dtype::fp32}, {"bf16", Dtype::bf16}, {"fp16", Dtype::fp16}};

const std::map<std::string, Device> devices{{"cpu", Device::cpu}, {"cuda", Device::cuda}};
const std::map<std::string, Comm> transports{{"mpi", Comm::mpi}, {"nccl", Comm::nccl}};
const std::map<std::string, Reduce> reduces{{"ordered", Reduce::ordered},
                                            {"native", Reduce::native}};

/// Large enough for anyone, small enough for every size and count to fit: at most 2^44 parameters,
/// 2^48 bytes of each kind, 2^61 elements sent in a step.
constexpr int most = 1 << 16;
constexpr int most_layers = 1 << 12;
constexpr int most_ranks = 1 << 12;

/// A number that is one in fp32 too, which is what computes with it.
CLI::Validator number(double least, double bound, const std::string& range) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        const bool read = CLI::detail::lexical_cast(text, value);
        const bool inside = read && value >= least && value < bound;  // NaN is not
        return inside ? std::string() : fmt::format("{} is not a number {}", text, range);
      },
      "");
}

/// A whole number, in base 10. CLI11 by itself takes 010 for 8 and, as a seed, -1 for 2^64 - 1.
template <class Integer>
CLI::Validator whole(Integer least, Integer largest) {
  return CLI::Validator(
      [=](std::string& text) {
        Integer value{};
        const char* end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        if (read.ec != std::errc() || read.ptr != end || value < least || value > largest) {
          return fmt::format("{} is not a whole number from {} to {}", text, least, largest);
        }
        text = fmt::to_string(value);
        return std::string();
      },
      "");
}

/// One of the names. CLI11 by itself takes the enumerators' numbers too.
template <class Enum>
CLI::Validator one_of(const std::map<std::string, Enum>& values) {
  return CLI::Validator(
      [&values](std::string& text) {
        const auto found = values.find(text);
        if (found == values.end()) {
          std::string names;
          for (const auto& [name, value] : values) names += (names.empty() ? "" : ", ") + name;
          return fmt::format("{} is none of {}", text, names);
        }
        text = fmt::to_string(static_cast<int>(found->second));
        return std::string();
      },
      "");
}

/// An option that is one of the names, or auto: then `value` stays empty.
template <class Enum>
void add_auto(CLI::App& app,
              const std::string& name,
              std::optional<Enum>& value,
              const std::map<std::string, Enum>& values,
              const std::string& help) {
  std::string names = "auto";
  for (const auto& entry : values) names += "|" + entry.first;
  app.add_option_function<std::string>(
         name,
         [&value, &values](const std::string& text) {
           const auto found = values.find(text);
           if (found != values.end()) value = found->second;
         },
         help)
      ->check([&values](const std::string& text) {
        if (text == "auto" || values.contains(text)) return std::string();
        std::string sentence = text + " is none of auto";
        for (const auto& entry : values) sentence += ", " + entry.first;
        return sentence;
      })
      ->type_name(names)
      ->default_str("auto");
}

constexpr double largest_fp32 = std::numeric_limits<float>::max();
constexpr double smallest_fp32 = std::numeric_limits<float>::min();

void add_training(CLI::App& app, Options& o) {
  const auto not_negative = number(0, largest_fp32, "from 0 to 3.4e38");
  const auto below_one = number(0, 1, "from 0 to below 1");
  app.add_option("--steps", o.steps, "optimizer steps")->transform(whole(1, 1 << 30));
  app.add_option("--batch", o.batch, "samples a rank and micro-batch")->transform(whole(1, most));
  app.add_option("--accumulate", o.accumulate, "micro-batches a step")->transform(whole(1, most));
  app.add_option("--lr", o.lr, "learning rate")->check(not_negative);
  app.add_option("--beta1", o.beta1, "decay of Adam's first moment")->check(below_one);
  app.add_option("--beta2", o.beta2, "decay of Adam's second moment")->check(below_one);
  app.add_option("--eps", o.eps, "added to Adam's denominator")
      ->check(number(smallest_fp32, largest_fp32, "from 1.2e-38 to 3.4e38"));
  app.add_option("--weight-decay", o.weight_decay, "decoupled weight decay")->check(not_negative);
  app.add_option("--clip", o.clip, "largest gradient norm, 0: do not clip")->check(not_negative);
  app.add_option("--seed", o.seed, "of the weights and the data")
      ->transform(whole(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()));
}

void add_task(CLI::App& app, Options& o) {
  app.add_option("--task", o.task, "text: next byte, toy: 128-512-10, mlp: square")
      ->transform(one_of(tasks))
      ->type_name("text|toy|mlp")
      ->default_str("text");
  app.add_option("--data", o.data, "file that task text reads")
      ->type_name("FILE")
      ->default_str("notes/corpus.txt");
  app.add_option("--width", o.width, "inputs of a layer; text: a multiple of 8")
      ->transform(whole(1, most));
  app.add_option("--layers", o.layers, "number of layers")->transform(whole(1, most_layers));
}

void add_chapter(CLI::App& app, Options& o, const Chapter& chapter, std::string& loss_scale) {
  if (chapter.mixed_precision) {
    app.add_option("--dtype", o.dtype, "of working parameters and gradients")
        ->transform(one_of(dtypes))
        ->type_name("fp32|bf16|fp16")
        ->default_str("bf16");
    app.add_option("--loss-scale", loss_scale, "dynamic or a number; fp16 only")
        ->type_name("SCALE");
  }
  if (chapter.prefetch()) {
    app.add_option("--prefetch", o.prefetch, "layers gathered ahead: 0, 1 or 2")
        ->transform(whole(0, 2));
  }
}

void add_machine(CLI::App& app, Options& o, const Chapter& chapter) {
  add_auto(app, "--device", o.device, devices, "where tensors lie and arithmetic runs");
  if (!chapter.ranks) return;
  add_auto(app, "--comm", o.comm, transports, "what carries bytes between ranks");
  app.add_option("--reduce", o.reduce, "ordered, or native: NCCL's own sums")
      ->transform(one_of(reduces))
      ->type_name("KIND")
      ->default_str("ordered");
}

void add_output(CLI::App& app, Options& o, const Chapter& chapter) {
  app.add_option("--log", o.log, "write JSON lines to this file")->type_name("FILE");
  app.add_flag("--quiet", o.quiet, "print nothing but errors");
  auto* plan = app.add_flag("--plan", o.plan, "print predicted bytes and traffic, and stop");
  if (!chapter.ranks) return;
  app.add_option("--ranks", o.ranks, "number of ranks to plan for")
      ->transform(whole(1, most_ranks))
      ->needs(plan);
}

/// What no single option can see. Throws Error (usage).
void check_together(const CLI::App& app,
                    Options& o,
                    const Chapter& chapter,
                    std::string loss_scale) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  const auto refuse = [](const std::string& why) { throw Error(ExitCode::usage, why); };
  const int started = launcher().ranks;
  if (!chapter.ranks && started > 1) {
    refuse(fmt::format("this chapter is one process, it was started as {}: leave out mpirun",
                       started));
  }
  if (o.plan && started > 1) {
    refuse(fmt::format("--plan starts no ranks: leave out mpirun and say --ranks {}", started));
  }
  if (o.task == Task::toy && (given("--width") || given("--layers"))) {
    refuse("--task toy is 128 -> 512 -> 10: it takes no --width and no --layers");
  }
  if (o.task != Task::text && given("--data")) {
    refuse(fmt::format("--data is read by --task text only, not by --task {}", name_of(o.task)));
  }
  if (o.task == Task::text && o.width % 8 != 0) {
    refuse(
        fmt::format("--width {} is not a multiple of 8: --task text gives each of its 8 bytes "
                    "width / 8 numbers",
                    o.width));
  }
  if (!chapter.mixed_precision || !given("--loss-scale")) return;
  if (o.dtype != Dtype::fp16) {
    refuse(fmt::format("--loss-scale is for --dtype fp16: {} needs none", name_of(o.dtype)));
  }
  if (loss_scale == "dynamic") return;
  const std::string range = "from 1.2e-38 to 3.4e38, nor dynamic";
  const std::string wrong = number(smallest_fp32, largest_fp32, range)(loss_scale);
  if (!wrong.empty()) refuse("--loss-scale: " + wrong);
  CLI::detail::lexical_cast(loss_scale, o.loss_scale);
}

/// Throws Error (usage) when a file has no name, or when the log would destroy the text.
void check_files(const CLI::App& app, const Options& o) {
  for (const char* name : {"--data", "--log"}) {
    if (app.count(name) == 0 || !app[name]->as<std::string>().empty()) continue;
    throw Error(ExitCode::usage, fmt::format("{} needs the name of a file", name));
  }
  std::error_code missing;
  if (!std::filesystem::equivalent(o.data, o.log, missing)) return;
  throw Error(ExitCode::usage, fmt::format("--log {} is the text that is to be read", o.log));
}

std::string one_line(std::string text) {
  for (char& c : text) c = c == '\n' ? ' ' : c;
  return text;
}

}  // namespace

Command read_command(int argc, char** argv, const Chapter& chapter) {
  Command command;
  Options& o = command.options;
  o.dtype = chapter.mixed_precision ? Dtype::bf16 : Dtype::fp32;
  o.prefetch = chapter.prefetch() ? 1 : 0;
  std::string loss_scale = "dynamic";
  CLI::App app(fmt::format("{}: one chapter of the ZeRO tutorial", chapter.name), chapter.name);
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(32);
  add_task(app, o);
  add_training(app, o);
  add_chapter(app, o, chapter, loss_scale);
  add_machine(app, o, chapter);
  add_output(app, o, chapter);
  try {
    app.parse(argc, argv);
    check_together(app, o, chapter, loss_scale);
    if (o.task == Task::toy) {
      o.width = 128;
      o.layers = 2;
    }
    if (o.task == Task::text && o.data.empty()) o.data = default_corpus;
    check_files(app, o);
    command.run = true;
  } catch (const CLI::CallForHelp&) {
    command.text = app.help();
  } catch (const CLI::Error& error) {
    command.text =
        fmt::format("{}: {} (--help lists the options)", chapter.name, one_line(error.what()));
    command.status = static_cast<int>(ExitCode::usage);
  } catch (const Error& error) {
    command.text = fmt::format("{}: {}", chapter.name, error.what());
    command.status = static_cast<int>(error.code);
  }
  return command;
}

NamedValues named_values(const Options& o, const Chapter& chapter) {
  NamedValues values{{"task", std::string(name_of(o.task))},
                     {"data", o.data},
                     {"steps", o.steps},
                     {"batch", o.batch},
                     {"accumulate", o.accumulate},
                     {"width", o.width},
                     {"layers", o.layers},
                     {"lr", o.lr},
                     {"beta1", o.beta1},
                     {"beta2", o.beta2},
                     {"eps", o.eps},
                     {"weight-decay", o.weight_decay},
                     {"clip", o.clip},
                     {"seed", o.seed},
                     {"log", o.log},
                     {"quiet", o.quiet}};
  if (chapter.mixed_precision) {
    values.emplace_back("dtype", std::string(name_of(o.dtype)));
    values.emplace_back("loss-scale", std::string("dynamic"));
    if (o.loss_scale != 0) values.back().second = o.loss_scale;
  }
  if (chapter.prefetch()) values.emplace_back("prefetch", o.prefetch);
  const auto or_auto = [](const auto& wanted) {
    return std::string(wanted ? name_of(*wanted) : "auto");
  };
  values.emplace_back("device", or_auto(o.device));
  if (!chapter.ranks) return values;
  values.emplace_back("comm", or_auto(o.comm));
  values.emplace_back("reduce", std::string(name_of(o.reduce)));
  return values;
}

std::string text_of(const OptionValue& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

const char* name_of(Comm comm) {
  constexpr const char* names[] = {"mpi", "nccl"};
  return names[static_cast<int>(comm)];
}

const char* name_of(Reduce reduce) {
  constexpr const char* names[] = {"ordered", "native"};
  return names[static_cast<int>(reduce)];
}

const char* name_of(Task task) {
  constexpr const char* names[] = {"text", "toy", "mlp"};
  return names[static_cast<int>(task)];
}

std::optional<int> answer_alone(const Command& command, const Chapter& chapter) try {
  if (command.run && !command.options.plan) return std::nullopt;
  if (chapter.ranks && launcher().ranks > 1) return std::nullopt;  // told once, by Session
  if (launcher().rank != 0) return 0;  // a launcher stops all at the first code but 0
  if (command.run) {
    const bool gpu = visible_gpus().count > 0;
    const Device device = command.options.device.value_or(gpu ? Device::cuda : Device::cpu);
    print_prediction(chapter, command.options, device);
  } else {
    fmt::print(command.status == 0 ? stdout : stderr, "{}\n", command.text);
  }
  flush_output();
  return command.status;
} catch (const Error& error) {
  fmt::print(stderr, "{}: {}\n", chapter.name, error.what());
  return exit_code_of(error);
}

}  // namespace zero
