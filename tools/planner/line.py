# SPDX-License-Identifier: MIT
"""The planner's options (notes/options.json), and how they are read from a line of options, or
from another program's command line with the files that it names."""
import argparse
import os
import re

from runs import WIDTH, Failure

from .files import FLAGS, PARTS, YAML, options_in_file
from .machine import NUMBERS, OPTIONS, number

# GROUPS: {a heading of --help: rows [names, kind of value, help, default]}; the first name is ours.
# OWN: {a name, ours or another program's: (our name, kind of value)}.
# WORDS: {another program's word for a value: ours}. BARE: {option: its value if it stands alone}.
# NEEDS: {option: one that must be there, too}. EXCLUDES: {option: those that must not be}.
GROUPS, WORDS, BARE, NEEDS, EXCLUDES = OPTIONS
ROWS = [row for rows in GROUPS.values() for row in rows]
OWN = {name: (row[0].split()[0], row[1]) for row in ROWS for name in row[0].split()}
# {a switch whose help is "short for --option value": [option, value]}.
SHORT = {row[0].split()[0]: row[2].partition("--")[2].split() for row in ROWS
         if row[2].startswith("short for --")}
TRUE, FALSE, OFF = ("true", "yes", "1"), ("false", "no", "0"), ("false", "none", "")
# Options that choose a plan. If the command line has one, those of a file are ignored.
CHOOSES_A_PLAN = re.compile("deepspeed|zero_stage|offload_|fsdp|distributed_type|shards")
# Variables and options that list a machine's GPUs. Only how many there are counts.
GPU_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES",
             "gpu_ids", "include")


def refuse(condition, sentence):
    """Raises a Failure of usage, with this sentence, if the condition holds."""
    if condition:
        raise Failure(sentence, 2)


def flag(name):
    """Returns an option as it is typed: -n, --ranks."""
    return f"--{name}" if len(name) > 2 else f"-{name}"


class Said(argparse.Action):
    """Stores an option's value, and in `names` the name that was typed, for sentences about it."""

    def __call__(self, parser, said, text, option_string=None):
        setattr(said, self.dest, value_of(option_string, text, OWN[self.dest][1]))
        said.names[self.dest] = option_string


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(message.removeprefix("argument "), 2)


def parser():
    """Returns a parser of our options. --help shows each once, with its other names in brackets."""
    made = Parser("plan", "plan OPTION... | plan LINE", allow_abbrev=False,
                  argument_default=argparse.SUPPRESS, description="Which chapter a model needs on "
                  "which GPUs: what a rank holds, sends and copies. Nothing is run, nothing is "
                  "built. LINE is another program's, as torchrun --nproc_per_node 8 train.py ...",
                  formatter_class=lambda prog: argparse.HelpFormatter(
                      prog, max_help_position=26, width=WIDTH))
    made.set_defaults(names={})
    for title, rows in GROUPS.items():
        group = made.add_argument_group(title)
        for names, kind, says, *default in rows:
            first, *others = map(flag, names.split())
            says += f" ({default[0]})" if default and kind != "YES" else ""
            says += f" [{' '.join(others)}]" if others else ""
            about = {"dest": names.split()[0], "action": Said,
                     "metavar": "" if kind == "YES" else kind}
            group.add_argument(first, help=says.replace("%", "%%"), **about)
            for name in others:
                group.add_argument(name, help=argparse.SUPPRESS, **about)
    return made


def value_of(option, text, kind):
    """Returns a number, a bool, or one of several words, as the option's kind asks, else the text.
    Raises a Failure if the text is none of that kind."""
    if kind in NUMBERS:
        return number(option, text, kind)
    if kind == "YES":
        return text.lower() in TRUE
    if "|" in kind and "%" not in kind:
        word = text.lower().removeprefix("torch.")
        word = WORDS.get(word, word)
        refuse(word not in kind.split("|"),
               f"{option}: {text:.40} is none of {kind.replace('|', ', ')}")
        return word
    return text


def options_of(words, line):
    """Yields (word, name, value) for each word that is no value. The name is "" for a word that is
    no option, the value None for an option that is not ours. One of ours without a value is a
    Failure, unless in BARE. In another program's `line` one may lack dashes: trainer.nnodes=2."""
    words, launcher = list(words), os.path.basename(words[0]) if words else ""
    while words:
        word, has, value = words.pop(0).partition("=")
        name = word.lstrip("-").replace("-", "_")
        after = words[0] if words else "--"
        if name in GPU_LISTS and (has or after[:1] != "-"):
            value = value if has else words.pop(0)
            if re.search(r"\d", value):
                yield word, "nproc_per_node", str(len(re.split("[,@]", value)))
            continue
        if word[:1] != "-":
            name = name.rpartition(".")[2].lower() if has and line else ""
        elif name == "N" and launcher in ("mpirun", "mpiexec"):
            name = "nproc_per_node"
        dest, kind = OWN.get(name, ("", ""))
        if name and not kind:
            yield word, name, None
            while (line or name in FLAGS) and words and words[0][:1] != "-" and (
                    not words[0].endswith(YAML) and "=" not in words[0]):
                words.pop(0)
            continue
        if name and not has:
            if kind == "YES":
                value = words.pop(0) if after.lower() in (*TRUE, *FALSE) else "true"
            elif after[:2] != "--" and not (dest in BARE and after[:1] == "-"):
                value = words.pop(0)
            else:
                refuse(dest not in BARE, f"{word} needs a value")
                value = BARE[dest]
        yield word, name, value


def options_in(words, line, files=("config_file", "deepspeed", "config", "", *PARTS)):
    """Returns (our options among the words, as --name=value; the names of all others, which are
    passed over). A later option overrides an earlier one, so those from files come first, then
    those that a switch is short for. line: the words are another program's. files: options whose
    values may be files of options; a word by itself, or --config's, is one only if it is YAML."""
    from_files, short, said, others = [], [], [], []
    for word, name, text in options_of(words, line):
        dest, kind = OWN.get(name, ("", ""))
        path = text if dest else word
        may_be_file = path and (dest or not name) and (
            dest not in ("config", "") or path.endswith(YAML))
        inside = None
        if may_be_file and dest in files:
            inside = options_in_file(path, OWN.keys(), dest)
        if name in ("h", "help"):
            return ["--help"], []
        refuse(text == "--", f"{word} needs a value")  # argparse would end the options there
        if inside is not None:
            within = () if dest == "fsdp_config" else ("fsdp_config",)
            more, beside = options_in([f"--{key}={value}" for key, value in inside.items()], True,
                                      within)
            if dest == "fsdp_config":  # options on the line override its options
                said[:0] = more
            else:
                from_files += more
            others += [key for key in beside if key.lstrip("-") not in FLAGS]
        elif not kind:
            refuse(not line and name not in FLAGS, f"{word:.40} is no option; --help lists them")
            others += [f"{word:.60}"] if name or word.endswith(YAML) else []
        elif text in ("auto", "gpu") or (line and text == "fp8"):
            others += [f"{word} {text}"] if kind != "YES" else []
        elif dest in SHORT:
            option, value = SHORT[dest]
            short += [f"{flag(option)}={value}"] if text.lower() in TRUE else []
        elif kind not in ("NAME", "FILE", "WORDS") or text.lower() not in OFF:
            said.append(f"{flag('deepspeed' if dest == 'config_file' else name)}={text}")
    if any(CHOOSES_A_PLAN.match(option.lstrip("-")) for option in short + said):
        from_files = [option for option in from_files
                      if not CHOOSES_A_PLAN.match(option.lstrip("-"))]
    return [*from_files, *short, *said], others
