# SPDX-License-Identifier: MIT
"""Reads configurations of DeepSpeed, and files of options for accelerate or transformers' Trainer.
Writes, for --write, a configuration of DeepSpeed, lines for FSDP2, or a program's command."""
import importlib
import json
import math
import os
import re
from dataclasses import replace

from runs import ROOT, Failure, spaced

from .machine import MOST_PARAMETERS
from .plan import CARDS, DISK, HOST, LIVE, PLANS, deepspeed_card

MOST_BYTES, YAML = 1 << 16, (".yaml", ".yml")
# KEYS: {a key of DeepSpeed, with all below it: what it means here}. LEFT_OUT: {a key: its effect,
# which no plan counts}. NOTHING: keys without an effect here. FLAGS: other programs' options with
# no effect here. NUMBERS: {our name: (key, default, least)}. SWITCHES: {our name: (key, default)}.
# OLDER: {an older version's key: (key, value), which it means if true}. OPTIMIZERS: {a part of an
# optimizer's name: how many numbers it keeps of a parameter beside the master}. FSDP: {number of a
# ShardingStrategy: its name}. PARTS: {a section of accelerate's file: (the distributed_type for
# which it counts, with what the names of its options begin)}.
(KEYS, LEFT_OUT, NOTHING, FLAGS, NUMBERS, SWITCHES, OLDER, OPTIMIZERS, FSDP, PARTS) = json.loads(
    (ROOT / "notes/deepspeed.json").read_text("utf-8")).values()
SECTIONS = {re.split("[.=]", name)[0] for name in (*KEYS, *LEFT_OUT, *NOTHING)}
ZERO = "zero_optimization."
UNLIKE = re.compile("galore|apollo|mini|grok|lomo")  # galore_adamw keeps other numbers than Adam
ALIAS = re.compile(": [&*]")  # YAML's aliases are refused: with them a short text can be endless


class File(dict):
    """The object in a file. Its checks raise a Failure that names the file and the key."""

    def __init__(self, path, values):
        super().__init__(values)
        self.path = path

    def expect(self, holds, key, value, what):
        if not holds:
            actual = "not there" if value is None else f"{json.dumps(value):.40}, not {what}"
            raise Failure(f"{self.path}: {key:.80} is {actual}", 3)

    def one_of(self, key, *values):
        """Returns the key's value, which must be one of these; the first if the file has none."""
        value = values[0] if self.get(key) is None else self[key]
        allowed = [*map(json.dumps, values)]
        self.expect(json.dumps(value) in allowed, key, value, f"one of {', '.join(allowed)}")
        return value

    def whole(self, key, otherwise=None, least=1, most=MOST_PARAMETERS):
        """Returns the key's whole number (5e8 is one); `otherwise` if it has none or "auto"."""
        value = self.get(key)
        if value in (None, "auto"):
            return otherwise
        self.expect(type(value) in (int, float) and least <= value <= most and value % 1 == 0, key,
                    value, f"a whole number above {least - 1}, at most {spaced(most)}")
        return int(value)


def read_file(path, loose=False):
    """Returns the object in the file, or in the path itself if that is JSON, as transformers'
    options may be. Raises a Failure if there is none. `loose`: see loaded()."""
    is_text = path[:1] == "{"
    shown, text = re.sub(r"[\0-\x1f]", "?", path[:40] if is_text else path), path
    try:
        if not is_text:
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Failure(f"cannot read {shown}: {error.strerror}", 3) from None
    if len(text) > MOST_BYTES:
        raise Failure(f"{shown} has more than {spaced(MOST_BYTES)} characters", 3)
    values = loaded(text, shown, loose)
    return File(shown, {str(key): value for key, value in values.items()})


def loaded(text, shown, loose):
    """Returns the object in a text of JSON; if `loose`, also with comments and trailing commas, as
    hjson reads it for DeepSpeed (runtime/config.py), or in YAML. shown: the file's name."""
    packages = [("json", "loads")]
    if loose:
        packages += [("json5", "loads"), ("yaml", "safe_load")]
    why, kind = "", "JSON"
    if shown.endswith(YAML):
        kind, packages = "YAML", packages[-1:]
    for package, load in packages:
        if package != "json" and ALIAS.search(text):
            why = why or "it has aliases"
            break
        try:
            values = getattr(importlib.import_module(package), load)(text)
            if type(values) is dict:
                return values
            why = why or "it is no object in { }"
        except ImportError:
            why += f"; to read comments or YAML: apt-get install python3-{package}"
        except RecursionError:
            raise Failure(f"{shown} is no {kind}: it is nested too deep", 3) from None
        except Exception as error:  # each package has errors of its own
            why = why or " ".join(f"{error!s:.120}".split())
    raise Failure(f"{shown} is no {kind}: {why}", 3)


def options_in_file(path, known, option):
    """Returns the options, {name: text}, in a file (or in JSON itself) of accelerate or with those
    of transformers' Trainer. None if it is a model's or DeepSpeed's configuration, or no file:
    --deepspeed also takes a plan's name, as zero3_offload. known: our options' names. option: the
    one that names the file, if any; then a file that cannot be read raises a Failure."""
    if path[:1] != "{" and not os.path.isfile(path) and option != "fsdp_config":
        return None
    try:
        file = read_file(path, loose=True)
        if option == "fsdp_config":
            file = File(file.path, {option: file})
        kind = str(file.get("distributed_type", "")).upper()
        trainers = path.endswith(YAML) or (file.keys() - SECTIONS) & known
        if not kind and (not trainers or {"architectures", "hidden_size"} & file.keys()):
            return None
        options = dict(of_sections(file, kind))
        if not options.keys() & (known | {"compute_environment"}) and option != "fsdp_config":
            raise Failure(f"{file.path} has no key of DeepSpeed, accelerate or transformers' "
                          "Trainer: say what it asks for by options", 3)
    except Failure:
        if option:
            raise
        return None
    named = options.get("deepspeed_config_file")
    if named and os.path.exists(beside := os.path.join(os.path.dirname(path), str(named))):
        options["deepspeed_config_file"] = beside
    return {name: " ".join(map(str, value)) if type(value) is list else str(value)
            for name, value in options.items() if value not in (None, "", [], {})}


def of_sections(file, kind):
    """Yields keys and values of the file, and of its sections for the distributed_type `kind`."""
    for name, value in file.items():
        plan, before = PARTS.get(name, (None, ""))
        if not isinstance(value, dict):  # an option, or the name of a file with the section
            yield name, value
        elif name == "deepspeed":
            yield name, json.dumps(value)
        elif name not in PARTS:
            yield f"{name}:", "a section"  # no option has a colon, so it is told as passed over
        elif plan in ("", kind) or not kind:
            for key, inside in value.items():
                yield before + str(key).removeprefix(before), inside


def leaves(values, above=""):
    """Yields (key, value) of all leaves; a key names its sections, as bf16.enabled."""
    for key, value in values.items():
        key = str(key)
        name = above + ("?" if "." in key or not key else key)  # a dot would make it another key
        if value and type(value) is dict:
            yield from leaves(value, name + ".")
        else:
            yield name, value


def find(name, names):
    """Returns the first of the names that is `name` or a section around it, or None."""
    return next((key for key in names if f"{name}.".startswith(f"{key}.")), None)


def quoted(text):
    return json.dumps(text if len(text) <= 80 else text[:79] + "\u2026", ensure_ascii=True)


def moments(name):
    """Returns the bytes per parameter that an optimizer keeps beside the master weights: 4 for each
    number, unless its name says 8bit or 4bit. None for an optimizer that we do not know."""
    name = str(name).lower()
    count = next((count for part, count in OPTIMIZERS.items() if part in name), None)
    size = next((size for part, size in (("8bit", 1), ("4bit", 0.5)) if part in name), 4)
    return None if not count or UNLIKE.search(name) else count * size


def fsdp(words, options, micro_batches):
    """Returns what transformers' --fsdp (`words`) and accelerate's fsdp_... `options` ask for: the
    card, its notes and other options. Raises a Failure for an unknown word."""
    strategy, reshards = (str(options.get(f"fsdp_{name}", "")).lower().replace("-", "_")
                          for name in ("sharding_strategy", "reshard_after_forward"))
    words = {*words.lower().replace("-", "_").split(), FSDP.get(strategy, strategy)} - {""}
    if reshards not in ("", "true", "false"):
        words.add(reshards)
    unknown = words - {*FSDP.values(), "auto_wrap", "offload", "true", "fsdp", "fsdp2"}
    if unknown:
        raise Failure(f"--fsdp: {min(unknown):.40} is none of {', '.join(FSDP.values())}, offload",
                      2)
    keeps = words & {"shard_grad_op", "hybrid_shard_zero2"} or reshards == "false"
    chapter = "05" if keeps else "06"
    card, notes = PLANS["03" if "no_shard" in words else chapter], []
    if ("offload" in words or options.get("fsdp_offload_params")) and card.stage:
        if keeps:
            notes += ["planned as full_shard with offload, which frees layers after forward"]
        card = PLANS["08_state_host"]
        notes += ["FSDP copies fp32 shards to the device: twice the bytes that are told here"]
    if micro_batches > 1 and card.stage > 1:
        card = replace(card, held=card.held | {"gradients": "replicated"}, sent=card.sent | {
            "backward": (1, card.sent["backward"][1] - 1)})  # (a step, a micro-batch)
        if reshards == "false" and not card.prefetches:  # FSDP2 gathers in each, FSDP1 once
            card = replace(card, sent=card.sent | {"update": (0, 1)})
        notes += ["accelerate reduces gradients in the last micro-batch alone (no_sync): until "
                  "then each rank keeps them whole"]
    recompute = {"recompute": "full"} if options.get("fsdp_activation_checkpointing") else {}
    return recompute | {
        "card": card, "hybrid": any("hybrid" in word for word in words), "notes": notes,
        "unwrapped": "no_wrap" in options.get("fsdp_auto_wrap_policy", "").lower()}


def explained(said):
    """Returns {heading: sentences} on a configuration's keys, by whether a key counts here."""
    sentences = {"keys": [], "left out": [], "of no effect here": [], "unknown": []}
    for name, value in said.items():
        text, section = json.dumps(value), find(name, LEFT_OUT)
        is_off = text in ("false", "null", '"none"', "0", "1", "-1", "{}") or (
            said.get(f"{section}.enabled") is False)
        left_out = LEFT_OUT.get(f"{name}={text}") or (section and not is_off and LEFT_OUT[section])
        if left_out:
            sentences["left out"].append(f"{quoted(name)}: {left_out}")
        elif key := find(name, KEYS):
            sentences["keys"].append(f"{quoted(name)} = {text:.30}: {KEYS[key]}")
        elif find(name, [*NOTHING, *LEFT_OUT]):
            sentences["of no effect here"].append(quoted(name))
        else:
            sentences["unknown"].append(quoted(name))
    return sentences


def deepspeed(file, given):
    """Returns (the card and the numbers that a configuration asks for, by DeepSpeed's
    runtime/config.py, zero/config.py and engine.py; explained() of its keys). Raises a Failure
    where DeepSpeed would stop. given: the options of the command line."""
    if file and not file.keys() & SECTIONS:
        raise Failure(f"{file.path} has no key of DeepSpeed's; a model's is said by --config", 3)
    said = File(file.path, {})  # has the present version's names of keys
    for name, value in leaves(file):
        name = name.replace("bfloat16.", "bf16.")
        now = name.replace(ZERO, ZERO + "stage3_")  # older versions lacked stage3_
        said[now if now != name and find(now, [*KEYS, *NOTHING]) else name] = value
    sentences = explained(said)
    for old, (new, value) in OLDER.items():
        if type(said.get(old)) is bool and said.pop(old):
            said.setdefault(new, value)
    for name in ("zero_optimization", "fp16", "bf16", "optimizer",
                 ZERO + "offload_optimizer", ZERO + "offload_param"):
        said.expect(said.get(name) in (None, {}), name, said.get(name),
                    'a section, as {"enabled": true} or {"device": "cpu"}')
    asked = {name: said.whole(*rule) for name, rule in NUMBERS.items()} | {
        name: said[key] if type(said.get(key)) is bool else default
        for name, (key, default) in SWITCHES.items()}
    stage = int(said.one_of(ZERO + "stage", 0, 1, 2, 3))
    devices = offload_devices(said, stage, sentences["left out"])
    # Only a bucket with reduce_scatter is cut at its owners (reduce_ipg_grads, average_tensor).
    to_owners = asked["scatters"] and not asked["one_all_reduce"] and (
        asked["contiguous"] or devices["optimizer"] != "none")
    bf16, fp16 = (said.one_of(f"{name}.enabled", False, "auto", True) for name in ("bf16", "fp16"))
    said.expect(bf16 is not True or fp16 is not True, "bf16.enabled", True, "to be so with fp16's")
    dtype = "fp16" if fp16 else "fp32"
    if bf16 is True or (bf16 == "auto" and fp16 is not True):
        dtype = "bf16"
    sizes = {None: 0, "fp32": 4, "bf16": 2, "fp16": 2}
    gradient, sends = (sizes[said.one_of(key, *sizes)] for key in (
        "data_types.grad_accum_dtype", "communication_data_type"))
    state = optimizer_state(said, asked, given, stage, dtype, gradient,
                            devices["optimizer"] != "none")
    ratio = said.get(ZERO + "offload_optimizer.ratio", 1)
    said.expect(type(ratio) in (int, float) and 0 <= ratio <= 1 and (ratio == 1 or stage == 3),
                ZERO + "offload_optimizer.ratio", ratio, "a number from 0 to 1, below 1 at stage 3")
    return asked | state | {
        "card": deepspeed_card(stage, **devices, to_owners=to_owners), "to_owners": to_owners,
        "dtype": dtype, "gradient": gradient, "sends": sends, "ratio": ratio,
        "square": said.get(ZERO + "reduce_bucket_size") == "auto",
        "piece": asked["piece"] or LIVE, "shards": max(0, asked["shards"]) if stage == 3 else 0,
        **batches(said, asked, given)}, sentences


def offload_devices(said, stage, left_out):
    """Returns {"optimizer", "param": its device at `stage`}; left_out says what is ignored."""
    devices = {}
    for what, least in (("optimizer", 1), ("param", 3)):
        key = f"{ZERO}offload_{what}.device"
        device = taken = said.one_of(key, "none", "cpu", "nvme")
        if stage < least:
            taken = "none"
        elif device == "nvme" and stage < 3:
            taken = "cpu"
        if device != taken:
            at = "1 to 3" if device == "cpu" and least == 1 else "3 only"
            left_out.append(f'"{key}" = "{device}": of use at stage {at}; DeepSpeed takes '
                            f'"{taken}"')
        devices[what] = taken
    return devices


def optimizer_state(said, asked, given, stage, dtype, gradient, offloads):
    """Returns the bytes per parameter of "moments" and "master"; raises where DeepSpeed stops."""
    name = said.get("optimizer.type", "Adam")
    said.expect(moments(name) or given.get("bytes"), "optimizer.type", name,
                "an Adam, LAMB, Lion or Adagrad; of another say the bytes, as --bytes 2,2,12")
    one_bit = any(part in str(name).lower() for part in ("onebit", "zeroone"))
    said.expect(not one_bit or not stage, "optimizer.type", name,
                "compatible with ZeRO: DeepSpeed stops")
    master = 2 if asked.get(f"low_{dtype}") else 4
    of_dtype = 4 if dtype == "fp32" else 2
    for holds, key, what in (
            (stage or gradient in (0, of_dtype), "data_types.grad_accum_dtype",
             f"parameters' {dtype}, as it is without ZeRO"),
            (asked["low_bf16"] or not asked["low_moments"], "bf16.bf16_optimizer_states",
             "with bf16_master_weights_and_grads"),
            (master == 4 or offloads or asked["low_moments"],
             f"{dtype}.{dtype}_master_weights_and_grads", "for an optimizer on the GPU")):
        said.expect(holds, key, said.get(key, True), f"{what}: DeepSpeed stops")
    beside = 4 if asked["low_moments"] else moments(name) or 0
    error = 4 if one_bit else 0  # what rounding to one bit has left over
    return {"moments": beside + error, "master": master}


def batches(said, asked, given):
    """Returns ranks, micro-batches and their samples, as DeepSpeed derives and checks them
    (_set_batch_related_parameters, _batch_assertion). `given`, the command line, fills gaps."""
    batch, micro, steps = (asked["all_samples"], asked["micro"] or given.get("batch"),
                           asked["steps"] or given.get("accumulate"))
    ranks = given.get("ranks") or (batch and micro and steps and max(1, batch // (micro * steps)))
    if batch and (micro or steps) and not ranks:
        raise Failure(f"{said.path}: of how many micro-batches train_batch_size is depends on the "
                      "ranks: say --ranks or --accumulate", 2)
    if batch and ranks:
        factors = [(count, what) for count, what in (
            (micro, "samples"), (steps, "micro-batches"), (ranks, "ranks")) if count]
        product = math.prod(count for count, _ in factors)
        words = " x ".join(f"{count} {what}" for count, what in factors) + f" = {product}"
        if micro and steps:
            said.expect(batch == product, "train_batch_size", batch, words + "; DeepSpeed stops")
        said.expect(batch % product == 0, "train_batch_size", batch, f"a multiple of {words}")
        steps = steps or (batch // product if micro else 1)
        micro = micro or batch // product
    return {name: count for name, count in (("ranks", ranks), ("accumulate", steps),
                                            ("batch", micro)) if count}


def ds_config(q, card):
    """Returns a configuration of DeepSpeed that runs this card, as JSON."""
    layer = max(map(sum, q.sizes))
    zero = {"stage": card.stage, "overlap_comm": card.prefetches, "reduce_bucket_size": layer}
    if card.stage in (1, 2):
        zero["use_multi_rank_bucket_allreduce"] = card.theirs and not q.to_owners
    if card.stage == 3:
        zero |= {"stage3_prefetch_bucket_size": q.prefetch * layer,
                 "stage3_max_live_parameters": (q.prefetch + 1) * layer,
                 "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0}
    for key, kind in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if card.place(kind) == HOST:
            zero[key] = {"device": "cpu", "pin_memory": True}
        elif card.place(kind) == DISK:
            zero[key] = {"device": "nvme", "nvme_path": "/var/tmp"}
            zero["sub_group_size"] = q.piece
    dtype = {} if q.dtype == "fp32" else {q.dtype: {"enabled": True}}
    return json.dumps({"zero_optimization": zero, **dtype,
                       "gradient_accumulation_steps": q.accumulate,
                       "train_micro_batch_size_per_gpu": q.batch or "auto"}, indent=2)


def fsdp2(q, card):
    """Returns lines of Python that shard a model as this card does, with PyTorch's fully_shard."""
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[q.dtype]
    offload = ", offload_policy=CPUOffloadPolicy()" if card.place("parameters") == HOST else ""
    return f"""import torch  # load the model in fp32: its shards are the master weights
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
how = dict(mp_policy=MixedPrecisionPolicy(torch.{dtype}, torch.float32){offload})
for block in model.model.layers:
    fully_shard(block, reshard_after_forward=block is not model.model.layers[-1], **how)
fully_shard(model, **how)"""


def mpirun(q, card):
    """Returns a program's command, for --config's llama, or without it for the default task."""
    shape = q.model
    if q.config and (shape.family not in ("llama", "mistral") or not shape.head or shape.small
                     or shape.tied or shape.heads * shape.head_dim != shape.hidden
                     or shape.vocabulary > 1 << 16):
        raise Failure(f"{shape.path}: the programs' llama has no biases, no tied head, no heads of "
                      "another width, and at most 65 536 tokens", 2)
    words = [f"mpirun -n {q.ranks} build/{card.name}/{card.name}"]
    if q.config:
        words += [f"--task llama --layers {shape.blocks} --width {shape.hidden}",
                  f"--heads {shape.heads} --kv-heads {shape.kv_heads} --hidden {shape.inner}",
                  f"--vocab {shape.vocabulary}"]
    options = ((q.config and q.sequence, f"--sequence {q.sequence}"),
               (q.config and q.recompute == "full", "--recompute"),
               (q.batch, f"--batch {q.batch}"), (card.mixed_precision, f"--dtype {q.dtype}"),
               (True, f"--accumulate {q.accumulate}"),
               (card.prefetches, f"--prefetch {q.prefetch}"),
               (card.place("optimizer") == DISK, f"--piece {min(q.piece, 1 << 30)}"))
    return " ".join([*words, *(text for applies, text in options if applies)])


# By format of --write: the function that writes a plan, and a function that says whether it can
# write a card. FSDP2 is ZeRO-3, and offloads parameters and optimizer state together.
WRITERS = {"deepspeed": (ds_config, lambda card: True),
           "fsdp2": (fsdp2, lambda card: card.stage == 3 and
                     card.place("parameters") == card.place("optimizer")),
           "mpirun": (mpirun, lambda card: card.name in CARDS)}
