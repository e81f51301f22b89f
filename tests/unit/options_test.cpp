// SPDX-License-Identifier: MIT
// The command line: the default of every option, good and bad values of most, errors of one line.
// Nothing that a user can type may throw.
#include "run/command_line.hpp"

#include <map>
#include <sstream>

#include "config.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
constexpr const Card &alone = cards::adam, &window = cards::zero3, &offload = cards::offload;

using std::tuple;
using Words = std::vector<std::string>;
using Values = std::map<std::string, OptionValue>;

Words split(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Command read(Words words, const Card& chapter = window) {
  words.insert(words.begin(), chapter.name);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return read_command(static_cast<int>(words.size()), argv.data(), chapter);
}

Command accepted(const std::string& line, const Card& chapter = window) {
  const Command command = read(split(line), chapter);
  INFO(line, ": ", command.text);
  CHECK(tuple(command.run, command.status, command.text) == tuple(true, 0, ""));
  return command;
}

/// Checks that the line gives options their `expected` values. Returns the values of all options.
Values check_values(const std::string& line, const Values& expected, const Card& chapter = window) {
  const Command command = accepted(line, chapter);
  const Values found(command.values.begin(), command.values.end());
  CHECK(found.size() == command.values.size());  // no option is listed twice
  for (const auto& [name, value] : expected) {
    INFO(line, ": ", name);
    CHECK(found.at(name) == value);
  }
  return found;
}

/// Checks that a command line is refused with exit code 2 and one line that contains `what`.
void check_bad(const Words& words, const std::string& what, const Card& chapter = window) {
  const Command command = read(words, chapter);
  std::string line;
  for (const std::string& word : words) line += word + ' ';
  INFO(line, "-> ", command.text);
  CHECK(tuple(command.run, command.status, command.values.size()) == tuple(false, 2, 0));
  CHECK(command.text.find(what) != command.text.npos);
  CHECK(command.text.find('\n') == command.text.npos);
  CHECK(command.text.size() < 200);
}

/// The default of each option of the chapter, except --plan and --ranks, which no run takes.
Values defaults(const Card& chapter) {
  Values values{{"task", "text"}, {"data", DEFAULT_CORPUS}, {"width", 256}, {"layers", 8}};
  values.merge(Values{{"steps", 200}, {"batch", 32}, {"accumulate", 1}, {"device", "auto"}});
  values.merge(Values{{"lr", 2e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
  values.merge(Values{{"weight-decay", 0.0}, {"clip", 0.0}, {"seed", std::uint64_t{1}}});
  values.merge(Values{{"log", ""}, {"trace", ""}, {"quiet", false}, {"align", 8}});
  values.merge(Values{{"save", ""}, {"save-every", 0}, {"keep", 2}, {"resume", ""}, {"init", ""}});
  values.merge(Values{{"heads", 8}, {"kv-heads", 0}, {"hidden", 0}, {"sequence", 128}});
  values.merge(Values{{"tokens", ""}, {"vocab", 256}, {"recompute", false}});
  values.merge(Values{{"timeout", 60}, {"device-memory", std::int64_t{0}}});
  if (chapter.ranks) values.merge(Values{{"comm", "auto"}, {"reduce", "ordered"}});
  if (chapter.ranks) values.merge(Values{{"check-every", 0}, {"link", 0.0}, {"latency", 0.0}});
  if (chapter.mixed_precision) values.merge(Values{{"dtype", "bf16"}, {"loss-scale", "dynamic"}});
  if (chapter.prefetches()) values["prefetch"] = 1;
  if (chapter.offloads()) values.merge(Values{{"bus", 0.0}, {"pageable", false}});
  if (chapter.uses(Place::disk)) {
    values.merge(Values{{"state", "disk"}, {"offload-dir", "/var/tmp"}, {"disk", 0.0}});
    values.merge(Values{{"piece", std::int64_t{1} << 20}});
  }
  return values;
}
}  // namespace

TEST_CASE("without options the defaults hold, by chapter and by name") {
  for (const Card* each : all_cards) {
    const Card& chapter = *each;
    INFO(std::string(chapter.name));
    const Values expected = defaults(chapter);
    for (const auto& [name, value] : check_values("", expected, chapter)) {
      CHECK_MESSAGE(expected.contains(name), "defaults() above lacks --" << name);
    }
    const Options o = accepted("", chapter).options;
    CHECK(o.dtype == (chapter.mixed_precision ? Dtype::bf16 : Dtype::fp32));
    CHECK(tuple(o.loss_scale, o.plan, o.ranks) == tuple(0, false, 1));
  }
}

TEST_CASE("every option is read, after a space or an equals sign") {
  for (const char between : {' ', '='}) {
    std::string line =
        "--task mlp --steps 7 --batch 3 --accumulate 2 --width 9 --layers 5 --lr 0.25 --beta1 0.5 "
        "--beta2 0.75 --eps 1e-3 --weight-decay 0.125 --clip 1.5 --seed 18446744073709551615 "
        "--log out.jsonl --dtype fp16 --loss-scale 1024 --prefetch 2 --device cuda --comm nccl "
        "--reduce native --timeout 5 --bus 1.5 --device-memory 1.5GiB --align 3";
    for (std::size_t at = 0; (at = line.find("--", at)) != line.npos;) {
      line[at = line.find(' ', at)] = between;
    }
    const Options o = accepted(line + " --quiet --pageable", offload).options;
    CHECK(tuple(o.task, o.dtype, o.log, o.quiet, o.pageable) ==
          tuple(Task::mlp, Dtype::fp16, "out.jsonl", true, true));
    CHECK(tuple(o.steps, o.batch, o.accumulate, o.width, o.layers) == tuple(7, 3, 2, 9, 5));
    CHECK(tuple(o.lr, o.beta1, o.beta2, o.eps) == tuple(0.25, 0.5, 0.75, 1e-3));
    CHECK(tuple(o.weight_decay, o.clip, o.loss_scale) == tuple(0.125, 1.5, 1024));
    CHECK(tuple(o.seed, o.prefetch, o.timeout) == tuple(18446744073709551615u, 2, 5));
    CHECK(tuple(o.device, o.comm, o.reduce) == tuple(DeviceType::cuda, Comm::nccl, Reduce::native));
    CHECK(tuple(o.bus, o.device_memory, o.align) == tuple(1.5, 3 << 29, 3));
  }
  const Options o = accepted(
                        "--task llama --heads 6 --kv-heads 3 --width 96 --hidden 7 --sequence 9 "
                        "--tokens a --vocab 5 "
                        "--recompute")
                        .options;
  CHECK(tuple(o.task, o.heads, o.kv_heads, o.hidden) == tuple(Task::llama, 6, 3, 7));
  CHECK(tuple(o.sequence, o.tokens, o.vocab, o.recompute) == tuple(9, "a", 5, true));
  CHECK(accepted("--plan --ranks 64").options.ranks == 64);
  CHECK(accepted("--plan", alone).options.plan);
}

TEST_CASE("the values by name are those that will be used, each with its type") {
  const std::pair<const char*, Values> cases[] = {
      {"--lr 0.1 --seed 3 --quiet", {{"lr", 0.1}, {"seed", std::uint64_t{3}}, {"quiet", true}}},
      {"--lr 0.30000000000000004", {{"lr", 0.30000000000000004}}},
      {"--dtype fp16", {{"dtype", "fp16"}, {"loss-scale", "dynamic"}}},
      {"--steps 010 --seed 010", {{"steps", 10}, {"seed", std::uint64_t{10}}}},  // not octal
      {"--task toy", {{"task", "toy"}, {"width", 128}, {"layers", 2}, {"data", ""}}},
      {"--task tiny", {{"width", 2}, {"layers", 2}, {"batch", 1}, {"lr", 0.1}, {"data", ""}}},
      {"--task mlp --width 12", {{"task", "mlp"}, {"width", 12}, {"data", ""}}},
      {"--task llama", {{"layers", 4}, {"batch", 8}, {"kv-heads", 4}, {"hidden", 688}}},
      {"--task llama --heads 1", {{"kv-heads", 1}, {"data", DEFAULT_CORPUS}}},
      {"--task llama --layers 2 --batch 3", {{"layers", 2}, {"batch", 3}}},
      {"--task llama --vocab 9 --tokens a", {{"tokens", "a"}, {"vocab", 9}, {"data", ""}}},
      {"--width 4096",
       {{"width", 4096}, {"lr", 5e-4}}},  // with lr 2e-3 the second loss is infinite
      {"--width 4096 --lr 0.002", {{"width", 4096}, {"lr", 2e-3}}},
      {"--device cpu --comm mpi", {{"device", "cpu"}, {"comm", "mpi"}}},
      {"--reduce native --timeout 86400", {{"reduce", "native"}, {"timeout", 86400}}},
      {"--device-memory 64MiB", {{"device-memory", std::int64_t{64} << 20}}},
      {"--device-memory 0.001MB", {{"device-memory", std::int64_t{1000}}}},
      {"--device-memory 1000TB", {{"device-memory", std::int64_t{1'000'000'000'000'000}}}}};
  for (const auto& [line, expected] : cases) check_values(line, expected);
}

TEST_CASE("an option takes the least and the largest value of its range") {
  const Options least =
      accepted(
          "--task mlp --steps 1 --batch 1 --accumulate 1 --width 1 --layers 1 --lr 0 --beta1 0 "
          "--beta2 0 --weight-decay 0 --clip 0 --seed 0 --prefetch 0 --timeout 1")
          .options;
  CHECK(tuple(least.layers, least.beta2, least.seed, least.timeout) == tuple(1, 0, 0, 1));
  const Words most = split(
      "--batch 65536 --accumulate 65536 --width 65536 --layers 4096 --steps 1073741824 "
      "--ranks 4096 --timeout 86400");
  for (std::size_t i = 0; i < most.size(); i += 2) {
    accepted("--plan " + most[i] + " " + most[i + 1]);
    check_bad({"--plan", most[i], fmt::to_string(std::stoi(most[i + 1]) + 1)},
              "from 1 to " + most[i + 1]);
  }
  for (const char* option : {"lr", "weight-decay", "clip", "eps", "loss-scale"}) {
    accepted(fmt::format("--dtype fp16 --{} 3.4e38 --beta1 0.999999 --prefetch 2", option));
  }
  for (const char* speed : {"0", "0.001", "1e9"}) {
    accepted(fmt::format("--link {0} --bus {0} --latency 1e9", speed), offload);
  }
  CHECK(accepted("--lr +.5").options.lr == 0.5);
  CHECK(accepted("--dtype fp16 --loss-scale 0.5").options.loss_scale == 0.5);
  CHECK(accepted("--dtype fp16 --loss-scale dynamic").options.loss_scale == 0);
}

TEST_CASE("numbers and names: nothing else, in their range, and not lost in fp32") {
  const std::string no_number = "-1 -1e-3 1e999 -1e999 3.41e38 inf nan abc 1,5 0.1x --";
  // Options, values, the words with which each option refuses each value.
  const tuple<std::string, std::string, std::string> table[] = {
      {"--steps --batch --accumulate --width --layers --ranks --timeout --keep",
       "0 -1 1.5 1e2 abc 0x10 9999999999 99999999999999999999999 nan",
       "is not a whole number from 1 to "},
      {"--prefetch", "3 -1 one", "is not a whole number from 0 to 2"},
      {"--heads --sequence --vocab", "0 -1 65537 a", "is not a whole number from 1 to 65536"},
      {"--kv-heads --hidden", "-1 65537 a", "is not a whole number from 0 to 65536"},
      {"--seed", "-1 1.5 18446744073709551616 x", "is not a whole number from 0 to "},
      {"--lr --weight-decay --clip", no_number, "is not a number from 0 to 3.4e38"},
      {"--link --bus", no_number + " 1e-38 1.1e9", "is not a number from 0.001 to 1e9, nor 0"},
      {"--latency", no_number + " 1.1e9", "is not a number from 0 to 1e9"},
      {"--beta1 --beta2", no_number + " 1 1.5", "is not a number from 0 to below 1"},
      {"--eps", no_number + " 0 1e-300", "is not a number from 1.2e-38 to 3.4e38"},
      {"--loss-scale", "0 -1 nan inf 1e999 3.41e38 1e-300 static",
       "is not a number from 1.2e-38 to 3.4e38, nor dynamic"},
      {"--task", "texts Text 1 0 text,toy zero", "not in {text,toy,mlp,llama,tiny}"},
      {"--device-memory", "64 64mb MB -1MB 0.0009MB 1001TB nan infMB 1e999GB 64MB, 0x10MB all",
       "is not a size from 0.001MB to 1000TB, as 64MB or 64MiB"},
      {"--dtype", "fp64 FP32 2 float", "not in {fp32,bf16,fp16}"},
      {"--device", "gpu 0 CPU", "not in {auto,cpu,cuda}"},
      {"--comm", "ib 1", "not in {auto,mpi,nccl}"},
      {"--reduce", "fast auto 0", "not in {ordered,native}"}};
  for (const auto& [options, values, what] : table) {
    for (const std::string& option : split(options)) {
      for (const std::string& value : split(values)) {
        Words words{option, value};
        if (option == "--ranks") words.emplace_back("--plan");
        if (option == "--keep") words.insert(words.end(), {"--save", "a"});
        if (option == "--loss-scale") words.insert(words.end(), {"--dtype", "fp16"});
        const bool is_value = value != "--";  // "--" ends the options
        check_bad(words, is_value ? option + ": " + value + " " + what : option, offload);
      }
      check_bad({option}, option, offload);
      check_bad({option, ""}, option, offload);
    }
  }
  check_bad({"--dtype", "bf16 "}, "--dtype: bf16  not in {fp32,bf16,fp16}");
}

TEST_CASE("unknown, double or contradicting options, and options without a value") {
  const std::pair<const char*, const char*> table[] = {
      {"--unknown", "--unknown"},
      {"--resume a --init b", "--init"},
      {"--keep 3", "--save"},
      {"--save-every 3", "--save"},
      {"--step 5", "--step"},
      {"stray", "stray"},
      {"-x", "-x"},
      {"--quiet=maybe", "--quiet"},
      {"--steps 5 --steps 6", "--steps"},
      {"--log", "--log"},
      {"--data", "--data"},
      {"--ranks 4", "--plan"},
      {"--task toy --width 128", "--task toy is 128 -> 512 -> 10"},
      {"--task toy --layers 2", "takes no --width and no --layers"},
      {"--task tiny --width 2", "--task tiny has layers of 2 -> 2"},
      {"--task toy --data x", "--data is read by --task text and llama only, not by --task toy"},
      {"--task mlp --data x", "not by --task mlp"},
      {"--width 12", "--width 12 is not a multiple of 8"},
      {"--heads 4", "--heads is for --task llama, not for --task text"},
      {"--recompute --task mlp", "--recompute is for --task llama, not for --task mlp"},
      {"--task llama --width 252", "--width 252 is not a multiple of --heads 8"},
      {"--task llama --width 24", "--width 24 / --heads 8 is 3: a head turns pairs"},
      {"--task llama --kv-heads 3", "--heads 8 is not a multiple of --kv-heads 3"},
      {"--task llama --kv-heads 16", "--heads 8 is not a multiple of --kv-heads 16"},
      {"--task llama --vocab 255", "--vocab 255 is less than the 256 bytes of a text"},
      {"--task llama --tokens a", "--tokens a needs --vocab"},
      {"--task llama --tokens a --vocab 9 --data b", "a run reads one of them"},
      {"--task llama --batch 65536 --sequence 65", "more than 4194304 tokens at a time"},
      {"--task llama --batch 65536 --sequence 64 --width 2048 --heads 1024", "more numbers than"},
      {"--task llama --width 65536 --layers 4096", "--width 65536, --hidden 174768: more numbers"},
      {"--task mlp --steps 1073741824 --accumulate 65536 --batch 65536 --width 65536",
       "more samples than can be counted"},
      {"--loss-scale 2", "--loss-scale is for --dtype fp16: bf16 needs none"},
      {"--loss-scale dynamic --dtype fp32", "fp32 needs none"}};
  for (const auto& [line, what] : table) check_bad(split(line), what);
  check_bad({"--data", ""}, "--data needs a name");
  check_bad({"--log", ""}, "--log needs a name");
  check_bad({"--task", "llama", "--vocab", "9", "--tokens", ""}, "--tokens needs a name");
}

TEST_CASE("a chapter takes its own options only") {
  for (const Card* chapter : all_cards) {
    for (const auto& [name, value] : defaults(offload)) {
      const std::string option = "--" + name + "=x";
      if (defaults(*chapter).contains(name)) continue;
      check_bad({option}, "not expected: " + option, *chapter);
    }
  }
  check_bad({"--plan", "--ranks=4"}, "not expected: --ranks=4", alone);
}

TEST_CASE("help is asked for anywhere, whatever else is wrong") {
  const std::string help = read({"--help"}).text;
  for (const char* asked : {"--help", "-h", "--help --unknown", "--steps 5 --help"}) {
    const Command command = read(split(asked));
    CHECK(tuple(command.run, command.status, command.text) == tuple(false, 0, help));
  }
}
}  // namespace zero::test
