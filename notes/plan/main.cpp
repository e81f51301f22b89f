// SPDX-License-Identifier: MIT
// build/plan: which chapter fits, on how many ranks, and what it sends. Options that a run has too
// are read by the run's own command line.
#include <CLI/CLI.hpp>

#include "memory/throw_if.hpp"
#include "notes/plan/plan.hpp"
#include "run/command_line.hpp"
#include "run/failure.hpp"
#include "run/quantity.hpp"

namespace zero {
namespace {
constexpr ExitCode usage = ExitCode::usage;
constexpr double most_parameters = 1e13;  // with these every count fits into 64 bits
/// Has every option that a chapter can have.
constexpr Chapter any{.name = "plan", .mixed_precision = true, .whole_layers = [](int prefetch) {
                        return WholeLayers(prefetch, 0);
                      }};

const Units counts{{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
const Units plain{{"", 1}};

/// The quantity that an option gives. Throws Error (usage).
double amount(const char* option, const std::string& text, const Units& units, double least,
              double most, const char* what) {
  const std::optional<double> value = quantity(text, units, least, most);
  throw_if(!value, usage, "{}: {} is not {}", option, text, what);
  return *value;
}

struct CommandLine {
  CLI::App app{"plan: what each chapter holds and sends, and which one fits a card", "plan"};
  std::map<std::string, std::string> run{};  // options that a run has, as given
  std::string parameters, largest_layer, bytes, card, host, link, latency, bus, compute, chapter;
  std::string convention = conventions[0].name;
  bool json = false;

  CLI::Option* add(const char* name, std::string& value, const char* type, const char* help) {
    return app.add_option(std::string("--") + name, value, help)->type_name(type);
  }
  CLI::Option* add_of_run(const char* name, const char* type, const char* help) {
    return add(name, run[name], type, help);
  }

  CommandLine() {
    app.get_formatter()->column_width(32);
    add("params", parameters, "COUNT", "parameters of any model, as 7.5e9 or 7.5B");
    add("largest-layer", largest_layer, "COUNT", "its largest layer; else all are equal");
    add_of_run("task", "text|toy|mlp", "or a model that the programs run");
    add_of_run("layers", "NUMBER", "number of layers (32; of a task 8)");
    add_of_run("width", "NUMBER", "of a task: inputs of a layer (256)");
    add_of_run("batch", "NUMBER", "of a task: samples a micro-batch (32)");
    add_of_run("data", "FILE", "of task text: what it reads");
    add_of_run("ranks", "N", "without it: the fewest on which a chapter fits");
    add_of_run("dtype", "fp32|bf16|fp16", "of parameters and gradients (bf16)");
    add_of_run("accumulate", "A", "micro-batches a step (1)");
    add_of_run("prefetch", "LAYERS", "gathered ahead: 0, 1 or 2 (1)");
    add_of_run("device", "cpu|cuda", "for buffers (cuda; of a task what is here)");
    add("card", card, "SIZE", "memory of a rank, as 80GB or 80GiB");
    add("host", host, "SIZE", "of its host's that it may take (no end)");
    add("link", link, "GBIT/S", "of every rank, for the time of a step");
    add("latency", latency, "MICROSECONDS", "of a message on it (0)");
    add("bus", bus, "GB/S", "between card and host, each way by turns");
    add("compute", compute, "MILLISECONDS", "forward and backward of a step");
    add("convention", convention, "NAME", "what a parameter costs (paper): see below");
    add("bytes", bytes, "P,G,K", "or so many bytes, as 2,2,8: no master");
    add("chapter", chapter, "NAME", "this chapter alone, as 05 or 05_zero2");
    app.add_flag("--json", json, "everything as JSON, in exact integers");
    app.footer(
        "Bytes of a parameter, its gradient, its optimizer state, in 16 bit:\n"
        "  paper           2,2,12   ZeRO, arXiv 1910.02054 (fp32: 4,4,8)\n"
        "  fp32-gradients  2,4,12   gradients added up in fp32\n"
        "  megatron        2,2,16   16-bit gradients and an fp32 copy of them\n"
        "  deepspeed       2,2,16   and nothing borrowed: its estimator of ZeRO-2,\n"
        "                           2 + 18/N (in older texts 4 + 16/N); for ZeRO-3\n"
        "                  2,4,12   and 4 bytes an element of the largest layer, M:\n"
        "                           18/N + 4 M; it has none of ZeRO-1");
  }

  bool given(const std::string& option) const { return app.count(option) > 0; }

  /// Refuses what makes no sense beside other options. Throws Error (usage).
  void check_together() const {
    throw_if(given("--params") == given("--task"), usage,
             "say --params, as 7.5e9, or --task for a model that the programs run");
    throw_if(!given("--card") && !given("--ranks"), usage,
             "say --ranks, or --card for the fewest on which a chapter fits");
    throw_if(given("--host") && !given("--card"), usage, "--host needs --card");
    const bool task = given("--task");
    for (const char* option : {"--largest-layer", "--convention", "--bytes"}) {
      throw_if(task && given(option), usage, "{} is about --params, not --task", option);
    }
    for (const char* option : {"--width", "--batch", "--data"}) {
      throw_if(!task && given(option), usage, "{} is about --task, not --params", option);
    }
    for (const char* option : {"--latency", "--compute"}) {
      throw_if(given(option) && !given("--link"), usage, "{} needs --link", option);
    }
    for (const char* option : {"--convention", "--dtype"}) {
      throw_if(given("--bytes") && given(option), usage, "--bytes says what {} would", option);
    }
  }

  /// The options of a run, by its own rules. Throws Error (usage).
  Options options() const {
    std::vector<std::string> words{"plan", "--plan"};
    for (const auto& [name, value] : run) {
      if (given("--" + name)) words.insert(words.end(), {"--" + name, value});
    }
    if (!parameters.empty() && !given("--layers")) words.insert(words.end(), {"--layers", "32"});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    Command command = read_command(static_cast<int>(words.size()), argv.data(), any);
    const std::size_t prefix = std::string("plan: ").size();
    if (!command.run) throw Error(usage, command.text.substr(prefix));
    return command.options;
  }

  /// --bytes or --convention, the dtype of it where --bytes says it.
  Convention costs(Options& options) const {
    if (!bytes.empty()) {
      int p = 0, g = 0, k = 0, end = 0;
      const int read = std::sscanf(bytes.c_str(), "%1d,%1d,%2d%n", &p, &g, &k, &end);
      throw_if(read != 3 || end != std::ssize(bytes) || (p != 2 && p != 4) || k < 0 || k > 16,
               usage, "--bytes: {} is not P,G,K with P 2 or 4, G below 10 and K up to 16", bytes);
      options.dtype = p == 2 ? Dtype::bf16 : Dtype::fp32;
      return {"--bytes", {g, k}};
    }
    const auto* found = std::ranges::find(conventions, convention, &Convention::name);
    std::string names;
    for (const Convention& known : conventions)
      names += std::string(names.empty() ? "" : ", ") + known.name;
    throw_if(found == std::end(conventions), usage, "--convention: {} is none of {}", convention,
             names);
    if (is_mixed(options.dtype)) return *found;
    throw_if(found != conventions, usage, "--convention {} is about 16 bit, not --dtype fp32",
             convention);
    return {found->name, costs_of(options.dtype), {}, bytes_of(Dtype::fp32)};
  }

  Question question() const {
    check_together();
    Question question{.options = options()};
    Options& options = question.options;
    question.convention = costs(options);
    const char* count = "a number from 1 to 1e13, as 7.5e9 or 7.5B";
    if (!parameters.empty()) {
      const auto read = [&](const char* option, const std::string& text) {
        const double value = amount(option, text, counts, 1, most_parameters, count);
        throw_if(value != std::floor(value), usage, "{}: {} is no whole number", option, text);
        return static_cast<std::int64_t>(value);
      };
      question.parameters = read("--params", parameters);
      if (!largest_layer.empty()) question.largest_layer = read("--largest-layer", largest_layer);
    }
    const bool gpu = !parameters.empty() || visible_gpus().count > 0;
    question.device = options.device.value_or(gpu ? Device::cuda : Device::cpu);
    const auto size = [](const char* option, const std::string& text) {
      return std::llround(amount(option, text, byte_units, 1e6, 1e15,
                                 "a size from 1MB to 1000TB, as 80GB or 80GiB"));
    };
    if (!card.empty()) question.card = size("--card", card);
    if (!host.empty()) question.host = size("--host", host);
    const auto number = [](const char* option, const std::string& text, double least) {
      return amount(option, text, plain, least, 1e9, "a number that a link can have");
    };
    if (!link.empty()) {
      question.link =
          Link{number("--link", link, 1e-3), latency.empty() ? 0 : number("--latency", latency, 0)};
    }
    if (!bus.empty()) question.bus = number("--bus", bus, 1e-3);
    if (!compute.empty()) question.compute_ms = number("--compute", compute, 0);
    return question;
  }

  std::vector<const Chapter*> chapters(const Options& options) const {
    std::vector<const Chapter*> chosen;
    std::string names;
    for (const Chapter* card : chapters_on_ranks()) {
      names += std::string(names.empty() ? "" : ", ") + card->name;
      const std::string name = card->name;
      const std::string number = (chapter.size() == 1 ? "0" : "") + chapter;
      if (chapter.empty() || chapter == name || number + "_" == name.substr(0, 3))
        chosen.push_back(card);
    }
    throw_if(chosen.empty(), usage, "--chapter: {} is none of {}", chapter, names);
    throw_if(chosen.size() == 1 && !chosen[0]->mixed_precision && is_mixed(options.dtype), usage,
             "{} has no --dtype {}: say --dtype fp32", chapter, name_of(options.dtype));
    return chosen;
  }
};

int answer(int argc, char** argv) {
  CommandLine line;
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}\n", line.app.help());
    flush_output();
    return 0;
  } catch (const CLI::Error& error) {
    throw Error(usage, fmt::format("{} (--help lists the options)", error.what()));
  }
  const Question question = line.question();
  const int ranks = line.given("--ranks") ? question.options.ranks : 0;
  const Plan plan = make_plan(question, line.chapters(question.options), ranks);
  if (line.json) {
    fmt::print("{}\n", json_of(plan));
  } else {
    print_plan(plan);
  }
  flush_output();
  return 0;
}
}  // namespace
}  // namespace zero

int main(int argc, char** argv) {
  zero::fail_fast("plan", std::_Exit);
  return zero::answer(argc, argv);
}
