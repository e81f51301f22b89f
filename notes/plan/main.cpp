// SPDX-License-Identifier: MIT
// build/plan: which chapter fits, on how many ranks, and what it sends. Options that a run has too
// are read by the run's own command line.
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <ranges>
#include <set>

#include "memory/throw_if.hpp"
#include "notes/plan/cards.hpp"
#include "notes/plan/plan.hpp"
#include "run/command_line.hpp"
#include "run/failure.hpp"

namespace zero {
namespace {
constexpr ExitCode usage = ExitCode::usage;
/// Has every option that a chapter can have.
constexpr Card any{.name = "plan",
                   .mixed_precision = true,
                   .held = {.optimizer = Held::sharded_on_host},
                   .borrowed = {.and_prefetched = true}};

std::string names(auto all) { return fmt::format("{}", fmt::join(all, ", ")); }

struct CommandLine {
  CLI::App app{"plan: what each chapter holds and sends, and which one fits a card", "plan"};
  std::map<std::string, std::string> said{};  // by option
  std::vector<std::string> run_options{};  // that a run has, too
  bool json = false, cards = false;

  CommandLine() {
    const auto add = [&](const std::string& option, const char* type, const char* help) {
      app.add_option(option, said[option], help)->type_name(type);
    };
    const auto of_run = [&](const std::string& option, const char* type, const char* help) {
      add(run_options.emplace_back(option), type, help);
    };
    app.get_formatter()->column_width(32);
    add("--config", "FILE", "config.json of a model for transformers");
    add("--params", "COUNT", "or parameters of any model, as 7.5e9 or 7.5B");
    add("--largest-layer", "COUNT", "its largest layer; else all are equal");
    add("--trainable", "COUNT|%", "of them, as 40M or 0.5%; the others are frozen");
    add("--activations", "SIZE", "of a rank; or by --width, --batch and:");
    add("--sequence", "NUMBER", "tokens of a sample");
    add("--heads", "NUMBER", "of attention");
    add("--recompute", "none|attention|full", "in backward (none)");
    of_run("--task", "text|toy|mlp", "or a model that the programs run");
    of_run("--layers", "NUMBER", "number of layers (32; of a task 8)");
    of_run("--width", "NUMBER", "inputs of a layer (of a task 256)");
    of_run("--batch", "NUMBER", "samples a micro-batch (of a task 32)");
    of_run("--data", "FILE", "of task text: what it reads");
    of_run("--ranks", "N", "without it: the fewest on which a chapter fits");
    of_run("--dtype", "fp32|bf16|fp16", "of parameters and gradients (bf16)");
    of_run("--accumulate", "A", "micro-batches a step (1)");
    of_run("--prefetch", "LAYERS", "gathered ahead: 0, 1 or 2 (1)");
    of_run("--device", "cpu|cuda", "for buffers (cuda; of a task what is here)");
    add("--card", "SIZE", "memory of a rank, as 80GB or 80GiB");
    add("--headroom", "SIZE|%", "of it, for what no plan knows (5%)");
    add("--host", "SIZE", "of its host's that it may take (no end)");
    of_run("--link", "GBIT/S", "of every rank, for the time of a step");
    of_run("--latency", "MICROSECONDS", "of a message on it (0)");
    of_run("--bus", "GB/S", "between card and host, each way by turns");
    add("--compute", "MILLISECONDS", "forward and backward of a step");
    add("--convention", "NAME", "paper, megatron or deepspeed");
    add("--bytes", "P,G,K", "or so many bytes, as 2,2,8: no master");
    add("--chapter", "NAME", "this chapter alone, as 05, 05_zero2 or zero2");
    add("--deepspeed", "FILE", "a configuration: its chapter, and every key");
    app.add_flag("--json", json, "everything as JSON, in exact integers");
    app.add_flag("--cards", cards, "who holds and sends what, by chapter, as JSON");
  }

  bool given(const std::string& option) const {
    return app.count(option) > 0 || !said.at(option).empty();
  }
  std::string text(const std::string& option, const char* otherwise) const {
    return given(option) ? said.at(option) : otherwise;
  }

  /// What DeepSpeed's file says and the command line does not; as JSON, with what its keys are.
  Json read_file() {
    if (said.at("--deepspeed").empty()) return {};
    const int ranks = given("--accumulate") ? -1 : std::atoi(said.at("--ranks").c_str());
    const Json file = read_deepspeed(said.at("--deepspeed"), ranks);
    for (const auto& [option, value] : file["options"].items()) {
      if (!given(option) && !(option == "--dtype" && given("--bytes"))) said[option] = value;
    }
    return file;
  }

  /// Refuses what makes no sense beside other options. Throws Error (usage).
  void check_together() const {
    for (const auto& [option, text] : said) {
      throw_if(given(option) && text.empty(), usage, "{} needs a value, and has none", option);
    }
    const bool task = given("--task"), sequence = given("--sequence"), config = given("--config");
    throw_if((config || given("--params")) == task, usage,
             "say --config, or --params, as 7.5e9, or --task for a model that the programs run{}",
             task ? ", not both" : "");
    throw_if(!given("--card") && !given("--ranks"), usage,
             "say --ranks, or --card for the fewest on which a chapter fits");
    const auto refuse = [&](bool where, std::initializer_list<const char*> options, auto why) {
      for (const char* option : options) {
        throw_if(where && given(option), usage, "{}", fmt::format(fmt::runtime(why), option));
      }
    };
    refuse(config, {"--params", "--largest-layer", "--layers", "--width", "--heads"},
           "--config says what {} would");
    refuse(!given("--card"), {"--host", "--headroom"}, "{} needs --card");
    refuse(task,
           {"--largest-layer", "--convention", "--bytes", "--trainable", "--activations",
            "--sequence"},
           "{} is about --params, not --task");
    refuse(!task, {"--data"}, "{} is about --task, not --params");
    refuse(!task && !sequence, {"--width", "--batch"}, "{} is about --task or --sequence");
    refuse(!sequence, {"--heads", "--recompute"}, "{} needs --sequence");
    refuse(sequence, {"--activations"}, "{} says what --sequence would");
    for (const char* option : {"--batch", "--width", "--heads"}) {
      throw_if(sequence && !given(option), usage, "--sequence needs {}", option);
      if (config) break;  // which says the others
    }
    refuse(!given("--link"), {"--latency", "--compute"}, "{} needs --link");
    refuse(given("--bytes"), {"--convention", "--dtype"}, "--bytes says what {} would");
  }

  /// The options of a run, by its own rules. Throws Error (usage).
  Options options() const {
    std::vector<std::string> words{"plan", "--plan"};
    for (const std::string& option : run_options) {
      if (given(option)) words.insert(words.end(), {option, said.at(option)});
    }
    if (!given("--task")) words.insert(words.end(), {"--task", "mlp"});
    if (!given("--task") && !given("--layers")) words.insert(words.end(), {"--layers", "32"});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    Command command = read_command(static_cast<int>(words.size()), argv.data(), any);
    if (!command.run) throw Error(usage, command.text);
    return command.options;
  }

  /// --bytes or --convention, the dtype of it where --bytes says it.
  Convention costs(Options& options) const {
    if (given("--bytes")) {
      const std::string& bytes = said.at("--bytes");
      int p = 0, g = 0, k = 0, end = 0;
      const int read = std::sscanf(bytes.c_str(), "%1d,%1d,%2d%n", &p, &g, &k, &end);
      throw_if(read != 3 || end != std::ssize(bytes) || (p != 2 && p != 4) || k < 0 || k > 16,
               usage, "--bytes: {} is not P,G,K with P 2 or 4, G below 10 and K up to 16", bytes);
      options.dtype = p == 2 ? Dtype::bf16 : Dtype::fp32;
      return {"--bytes", CostsBy{{{{g, k}, {g, k}, {g, k}}}}};
    }
    const std::string name = text("--convention", conventions[0].name);
    const auto* found = std::ranges::find(conventions, name, &Convention::name);
    throw_if(found == std::end(conventions), usage, "--convention: {} is none of {}", name,
             names(conventions | std::views::transform(&Convention::name)));
    throw_if(found->costs && found->costs_in({}, options.dtype).optimizer == 0, usage,
             "--convention {} is about 16 bit, not --dtype fp32", name);
    return *found;
  }

  /// The quantity that an option gives, 0 where it is not given. Throws Error (usage).
  double amount(const char* option, const Units& units, double least, double most,
                const std::string& what) const {
    if (!given(option)) return 0;
    const std::optional<double> value = quantity(said.at(option), units, least, most);
    throw_if(!value, usage, "{}: {} is not {}", option, said.at(option), what);
    return *value;
  }
  std::int64_t whole(const char* option, std::int64_t most = most_parameters,
                     double percent = 0) const {
    Units units{{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
    if (percent > 0) units["%"] = percent;
    const double value =
        amount(option, units, percent > 0 ? 0.5 : 1, most,
               fmt::format("a number from 1 to {}, as 7.5e9 or 7.5B", grouped(most)));
    throw_if(value != std::floor(value) && !said.at(option).ends_with('%'), usage,
             "{}: {} is no whole number", option, said.at(option));
    return std::llround(value);
  }
  std::int64_t size(const char* option) const {
    const char* what = "a size from 1MB to 1000TB, as 80GB or 80GiB";
    return std::llround(amount(option, byte_units, 1e6, 1e15, what));
  }

  /// As said, or by the formula for a transformer, or by the model's own.
  Activations activations(const Options& options, const std::optional<Decoder>& model) const {
    const std::int64_t bytes = size("--activations");
    if (!given("--sequence")) return {bytes, grouped(bytes)};
    throw_if(!needs_master(options.dtype), usage, "--sequence is about 16 bit, not --dtype fp32");
    const std::int64_t s = whole("--sequence", 1 << 20);
    const std::string recompute = text("--recompute", "none");
    if (model) return activations_of(*model, s, options.batch, recompute);
    return activations_of(options.layers, s, options.batch, options.width,
                          whole("--heads", 1 << 10), recompute);
  }

  Question question() const {
    check_together();
    Question question{.options = options()};
    if (given("--config")) question.model = read_config(said.at("--config"));
    question.convention = costs(question.options);
    question.parameters = question.model ? question.model->parameters() : whole("--params");
    question.largest_layer = whole("--largest-layer");
    if (const std::int64_t all = question.parameters; given("--trainable")) {
      question.frozen = all - whole("--trainable", all, all / 100.);
    }
    question.activations = activations(question.options, question.model);
    const bool gpu = question.parameters > 0 || visible_gpus().count > 0;
    question.device = question.options.device.value_or(gpu ? DeviceType::cuda : DeviceType::cpu);
    question.card = size("--card");
    const double card = question.card;
    Units of_card = byte_units;
    of_card["%"] = card / 100;
    const double headroom =
        amount("--headroom", of_card, 0, card - 1, "a size below that of the card, as 4GB or 5%");
    question.headroom = std::llround(given("--headroom") ? headroom : 0.05 * card);
    question.host = size("--host");
    const Options& o = question.options;
    throw_if((given("--link") && o.link == 0) || (given("--bus") && o.bus == 0), usage,
             "--link and --bus: 0 is no speed, leave it out");
    if (given("--link")) question.link = {o.link, o.latency};
    question.bus = o.bus;
    question.compute_ms = amount("--compute", {{"", 1}}, 0, 1e9, "a number from 0 to 1e9");
    return question;
  }

  std::vector<const Card*> chapters(const Options& options) const {
    const std::map<std::string, std::string> others{
        {"zero0", "03"}, {"ddp", "03"}, {"zero3_offload", "07"}};
    const std::string word = said.at("--chapter");
    const std::string asked = others.contains(word) ? others.at(word) : word;
    std::vector<const Card*> chosen;
    for (const Card* chapter : cards::on_ranks) {
      const std::string name = chapter->name;
      const std::set<std::string> names{"", name, name.substr(3), name.substr(0, 2),
                                        name.substr(1, 1)};
      if (names.contains(asked)) chosen.push_back(chapter);
    }
    throw_if(chosen.empty(), usage, "--chapter: {} is none of {}", asked,
             names(cards::on_ranks | std::views::transform(&Card::name)));
    throw_if(chosen.size() == 1 && !chosen[0]->mixed_precision && needs_master(options.dtype),
             usage, "{} has no --dtype {}: say --dtype fp32", asked, name_of(options.dtype));
    return chosen;
  }
};

void answer(int argc, char** argv) {
  CommandLine line;
  try {
    line.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return fmt::print("{}\n", line.app.help());
  } catch (const CLI::Error& error) {
    throw Error(usage, fmt::format("{} (--help lists the options)", error.what()));
  }
  if (line.cards) {
    std::vector<std::string> lines;
    for (const Json& card : cards_json(cards::all)) lines.push_back(card.dump());
    return fmt::print("[{}]\n", fmt::join(lines, ",\n"));
  }
  const Json file = line.read_file();
  const Question question = line.question();
  const int ranks = line.given("--ranks") ? question.options.ranks : 0;
  Json plan = make_plan(question, line.chapters(question.options), ranks);
  if (!file.is_null()) plan["deepspeed"] = file;
  if (line.json) return fmt::print("{}\n", plan.dump(2));
  print_plan(question, plan);
}
}  // namespace
}  // namespace zero

int main(int argc, char** argv) {
  zero::fail_fast("plan", std::_Exit);
  zero::answer(argc, argv);
  zero::flush_output();
}
