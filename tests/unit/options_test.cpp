// SPDX-License-Identifier: MIT
// The command line: every option's good and bad values, one clear line for what is wrong, a help
// that fits on the screen. Nothing a user can type may throw.
#include "train/options.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "config.hpp"

namespace zero {

namespace {

constexpr Chapter alone{.name = "01_adam", .ranks = false};
constexpr Chapter plain{.name = "02_distributed_adam"};
constexpr Chapter mixed{.name = "05_zero2", .mixed_precision = true};
constexpr Chapter window{.name = "06_zero3", .mixed_precision = true, .prefetch = true};
constexpr Chapter chapters[] = {alone, plain, mixed, window};

using Words = std::vector<std::string>;

Words split(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Command read(Words words, const Chapter& chapter = window) {
  words.insert(words.begin(), chapter.name);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return read_command(static_cast<int>(words.size()), argv.data(), chapter);
}

Command read(const std::string& line, const Chapter& chapter = window) {
  return read(split(line), chapter);
}

Options accepted(const std::string& line, const Chapter& chapter = window) {
  const Command command = read(line, chapter);
  INFO(line, ": ", command.text);
  CHECK(command.run);
  CHECK(command.status == 0);
  CHECK(command.text.empty());
  return command.options;
}

/// A bad command line: exit code 2 and one line that names the program and contains `what`.
void check_refused(const Words& words, const std::string& what, const Chapter& chapter = window) {
  const Command command = read(words, chapter);
  std::string line;
  for (const std::string& word : words) line += word + ' ';
  INFO(line, "-> ", command.text);
  CHECK(!command.run);
  CHECK(command.status == 2);
  CHECK(command.text.starts_with(std::string(chapter.name) + ": "));
  CHECK(command.text.find(what) != command.text.npos);
  CHECK(command.text.find('\n') == command.text.npos);
  CHECK(command.text.size() < 200);
}

void check_refused(const std::string& line,
                   const std::string& what,
                   const Chapter& chapter = window) {
  check_refused(split(line), what, chapter);
}

/// What the launcher announces, until the end of the scope.
class Launched {
 public:
  explicit Launched(int ranks) {
    for (const char* name : names) unsetenv(name);
    setenv(names[0], std::to_string(ranks).c_str(), 1);
  }
  ~Launched() { unsetenv(names[0]); }

 private:
  static constexpr const char* names[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"};
};

std::string value_of(const char* name, const Options& options, const Chapter& chapter) {
  for (const auto& [key, option] : named_values(options, chapter)) {
    const std::string value = text_of(option);
    if (key == name) return value;
  }
  return "(none)";
}

/// By option: "--steps" and so on.
Words options_in(const std::string& help) {
  Words names;
  std::istringstream in(help);
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find("--");
    if (line.starts_with("  -") && at != line.npos) names.push_back(split(line.substr(at))[0]);
  }
  return names;
}

}  // namespace

TEST_CASE("without options the defaults hold, by chapter") {
  for (const Chapter& chapter : chapters) {
    INFO(std::string(chapter.name));
    const Options o = accepted("", chapter);
    CHECK(o.task == Task::text);
    CHECK(o.data == default_corpus);
    CHECK(o.steps == 200);
    CHECK(o.batch == 32);
    CHECK(o.accumulate == 1);
    CHECK(o.width == 256);
    CHECK(o.layers == 8);
    CHECK(o.lr == 2e-3);
    CHECK(o.beta1 == 0.9);
    CHECK(o.beta2 == 0.999);
    CHECK(o.eps == 1e-8);
    CHECK(o.weight_decay == 0);
    CHECK(o.clip == 0);
    CHECK(o.seed == 1);
    CHECK(o.log.empty());
    CHECK(!o.quiet);
    CHECK(!o.plan);
    CHECK(o.ranks == 1);
    CHECK(o.dtype == (chapter.mixed_precision ? Dtype::bf16 : Dtype::fp32));
    CHECK(o.loss_scale == 0);
    CHECK(o.prefetch == (chapter.prefetch() ? 1 : 0));
  }
}

TEST_CASE("every option is read, after a space or an equals sign") {
  for (const char between : {' ', '='}) {
    std::string line =
        "--task mlp --steps 7 --batch 3 --accumulate 2 --width 9 --layers 5 --lr 0.25 --beta1 0.5 "
        "--beta2 0.75 --eps 1e-3 --weight-decay 0.125 --clip 1.5 --seed 18446744073709551615 "
        "--log out.jsonl --dtype fp16 --loss-scale 1024 --prefetch 2";
    if (between == '=') {
      for (std::size_t at = 0; (at = line.find("--", at)) != line.npos;) {
        line[at = line.find(' ', at)] = '=';
      }
    }
    const Options o = accepted(line + " --quiet");
    CHECK(o.task == Task::mlp);
    CHECK(o.steps == 7);
    CHECK(o.batch == 3);
    CHECK(o.accumulate == 2);
    CHECK(o.width == 9);
    CHECK(o.layers == 5);
    CHECK(o.lr == 0.25);
    CHECK(o.beta1 == 0.5);
    CHECK(o.beta2 == 0.75);
    CHECK(o.eps == 1e-3);
    CHECK(o.weight_decay == 0.125);
    CHECK(o.clip == 1.5);
    CHECK(o.seed == 18446744073709551615u);
    CHECK(o.log == "out.jsonl");
    CHECK(o.dtype == Dtype::fp16);
    CHECK(o.loss_scale == 1024);
    CHECK(o.prefetch == 2);
    CHECK(o.quiet);
  }
  CHECK(accepted("--data my.txt").data == "my.txt");
  CHECK(accepted("--task text").task == Task::text);
  CHECK(accepted("--task toy").task == Task::toy);
  CHECK(accepted("--dtype fp32").dtype == Dtype::fp32);
  CHECK(accepted("--dtype bf16").dtype == Dtype::bf16);
  CHECK(accepted("--plan --ranks 64").ranks == 64);
}

TEST_CASE("the ends of the ranges are inside") {
  const Options least = accepted(
      "--task mlp --steps 1 --batch 1 --accumulate 1 --width 1 --layers 1 --lr 0 --beta1 0 "
      "--beta2 0 --weight-decay 0 --clip 0 --seed 0 --prefetch 0");
  CHECK(least.layers == 1);
  CHECK(least.beta2 == 0);
  CHECK(least.seed == 0);
  const Options most = accepted(
      "--steps 1073741824 --batch 65536 --accumulate 65536 --width 65536 --layers 4096 "
      "--beta1 0.999999 --plan --ranks 4096");
  CHECK(most.steps == 1 << 30);
  CHECK(most.width == 1 << 16);
  CHECK(most.ranks == 1 << 12);
}

TEST_CASE("whole numbers: nothing else, and in their range") {
  for (const std::string name :
       {"--steps", "--batch", "--accumulate", "--width", "--layers", "--ranks"}) {
    for (const std::string value :
         {"0", "-1", "1.5", "1e2", "abc", "0x10", "9999999999", "99999999999999999999999", "nan"}) {
      Words words{name, value};
      if (name == "--ranks") words.push_back("--plan");
      check_refused(words, name + ": " + value + " is not a whole number from 1 to ");
    }
    check_refused(Words{name}, name);
    check_refused(Words{name, ""}, name);
  }
  for (const std::string value : {"3", "-1", "one"}) {
    check_refused(Words{"--prefetch", value}, "is not a whole number from 0 to 2");
  }
  for (const std::string value : {"-1", "1.5", "18446744073709551616", "x"}) {
    check_refused(Words{"--seed", value}, "--seed: " + value + " is not a whole number from 0 to ");
  }
  CHECK(accepted("--steps 010").steps == 10);  // base 10, whatever it begins with
  CHECK(accepted("--seed 010").seed == 10);
}

TEST_CASE("numbers: finite, in their range, and not lost in fp32") {
  for (const std::string name :
       {"--lr", "--beta1", "--beta2", "--eps", "--weight-decay", "--clip"}) {
    for (const std::string value :
         {"-1", "-1e-3", "1e999", "-1e999", "1e300", "inf", "nan", "abc", "1,5", "0.1x", "--"}) {
      check_refused(Words{name, value}, name);
    }
    check_refused(Words{name}, name);
    check_refused(Words{name, ""}, name);
  }
  check_refused("--lr 1e999", "--lr: 1e999 is not a number from 0 to 3.4e38");
  check_refused("--beta1 1", "--beta1: 1 is not a number from 0 to below 1");
  check_refused("--beta2 1.5", "--beta2: 1.5 is not a number from 0 to below 1");
  check_refused("--eps 0", "--eps: 0 is not a number from 1.2e-38");
  check_refused("--eps 1e-300", "--eps: 1e-300 is not a number from 1.2e-38");
  CHECK(accepted("--lr 1e-3").lr == 1e-3);
  CHECK(accepted("--lr +.5").lr == 0.5);
}

TEST_CASE("names: those in the help, nothing like them, no numbers") {
  for (const std::string value : {"texts", "Text", "1", "0", "text,toy", "zero"}) {
    check_refused(Words{"--task", value}, "--task: " + value + " is none of mlp, text, toy");
  }
  for (const std::string value : {"fp64", "FP32", "2", "float", "bf16 "}) {
    check_refused(Words{"--dtype", value}, "--dtype: " + value + " is none of bf16, fp16, fp32");
  }
}

TEST_CASE("what no option is, or comes twice, or lacks its value") {
  check_refused("--unknown", "--unknown");
  check_refused("--unknown 5", "--unknown");
  check_refused("--step 5", "--step");
  check_refused("stray", "stray");
  check_refused("-x", "-x");
  check_refused("--quiet=maybe", "--quiet");
  check_refused("--steps 5 --steps 6", "--steps");
  check_refused("--log", "--log");
  check_refused("--data", "--data");
  check_refused("--task", "--task");
  check_refused("--loss-scale", "--loss-scale");
}

TEST_CASE("a chapter takes its own options only") {
  for (const Chapter& chapter : {alone, plain}) {
    check_refused("--dtype fp32", "--dtype", chapter);
    check_refused("--loss-scale 2", "--loss-scale", chapter);
  }
  for (const Chapter& chapter : {alone, plain, mixed}) {
    check_refused("--prefetch 1", "--prefetch", chapter);
  }
  check_refused("--plan --ranks 4", "--ranks", alone);
  check_refused("--ranks 4", "--plan", plain);
  CHECK(accepted("--plan", alone).plan);
  CHECK(accepted("--plan --ranks 3", plain).ranks == 3);
}

TEST_CASE("options that do not go together") {
  check_refused("--task toy --width 128", "--task toy is 128 -> 512 -> 10");
  check_refused("--task toy --layers 2", "takes no --width and no --layers");
  check_refused("--task toy --data x", "--data is read by --task text only, not by --task toy");
  check_refused("--task mlp --data x", "not by --task mlp");
  check_refused("--width 12", "--width 12 is not a multiple of 8");
  check_refused("--task text --width 7", "--width 7 is not a multiple of 8");
  CHECK(accepted("--task mlp --width 12").width == 12);
  CHECK(accepted("--width 8").width == 8);
  const Options toy = accepted("--task toy");
  CHECK(toy.width == 128);
  CHECK(toy.layers == 2);
  CHECK(toy.data.empty());
}

TEST_CASE("the loss scale is dynamic or a number that fp32 holds, and fp16's alone") {
  CHECK(accepted("--dtype fp16").loss_scale == 0);
  CHECK(accepted("--dtype fp16 --loss-scale dynamic").loss_scale == 0);
  CHECK(accepted("--dtype fp16 --loss-scale 0.5").loss_scale == 0.5);
  for (const std::string value : {"0", "-1", "nan", "inf", "1e999", "1e300", "1e-300", "static"}) {
    check_refused(
        Words{"--dtype", "fp16", "--loss-scale", value},
        "--loss-scale: " + value + " is not a number from 1.2e-38 to 3.4e38, nor dynamic");
  }
  check_refused("--loss-scale 2", "--loss-scale is for --dtype fp16: bf16 needs none");
  check_refused("--loss-scale dynamic --dtype fp32", "fp32 needs none");
}

TEST_CASE("how the program was started must fit") {
  const Launched launched(4);
  check_refused("", "this chapter is one process, it was started as 4", alone);
  check_refused("--plan", "leave out mpirun and say --ranks 4", plain);
  CHECK(accepted("", plain).steps == 200);
}

TEST_CASE("the values by name are those that will be used, for the log and to compare ranks") {
  const Options o = accepted("--lr 0.1 --dtype fp16 --loss-scale 8 --seed 3 --quiet");
  CHECK(value_of("lr", o, window) == "0.1");
  CHECK(value_of("dtype", o, window) == "fp16");
  CHECK(value_of("loss-scale", o, window) == "8");
  CHECK(value_of("seed", o, window) == "3");
  CHECK(value_of("quiet", o, window) == "true");
  CHECK(value_of("prefetch", o, window) == "1");
  CHECK(value_of("data", o, window) == default_corpus);
  CHECK(value_of("loss-scale", accepted("--dtype fp16"), window) == "dynamic");
  CHECK(value_of("dtype", accepted("", plain), plain) == "(none)");
  CHECK(value_of("prefetch", accepted("", mixed), mixed) == "(none)");
  // A number is written so that it reads back to the same.
  CHECK(std::stod(value_of("lr", accepted("--lr 0.30000000000000004"), window)) ==
        0.30000000000000004);
}

TEST_CASE("the values by name are all options but those about planning") {
  for (const Chapter& chapter : chapters) {
    Words expected;
    for (const std::string& name : options_in(read("--help", chapter).text)) {
      if (name != "--plan" && name != "--ranks" && name != "--help") expected.push_back(name);
    }
    Words named;
    for (const auto& [key, value] : named_values(Options{}, chapter)) named.push_back("--" + key);
    std::sort(expected.begin(), expected.end());
    std::sort(named.begin(), named.end());
    CHECK(named == expected);
  }
}

TEST_CASE("help: one line for each option, none above 80 columns") {
  for (const Chapter& chapter : chapters) {
    INFO(std::string(chapter.name));
    for (const std::string asked : {"--help", "-h", "--help --unknown", "--steps 5 --help"}) {
      const Command command = read(asked, chapter);
      CHECK(!command.run);
      CHECK(command.status == 0);
      CHECK(command.text == read("--help", chapter).text);
    }
    const std::string help = read("--help", chapter).text;
    std::istringstream in(help);
    std::string line;
    while (std::getline(in, line) && line != "Options:") CHECK(line.size() <= 80);
    for (std::string option; std::getline(in, option);) {
      if (option.empty()) continue;
      CHECK(option.size() <= 80);
      CHECK(option.starts_with("  -"));  // else it would go on from the line above
      CHECK(split(option).size() > 2);  // a name and some words about it
    }
    const std::size_t common = 18 + 1;  // help too
    const std::size_t own =
        (chapter.ranks ? 3 : 0) + (chapter.mixed_precision ? 2 : 0) + (chapter.prefetch() ? 1 : 0);
    CHECK(options_in(help).size() == common + own);
  }
}

}  // namespace zero
