# SPDX-License-Identifier: MIT
"""Reads the command line into a question: the model's layers and activations, the machine, and the
plans to compare. All of it is checked. main() prints the answer."""
import json
import os
import re
import shlex
import sys
from collections import Counter
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace

from drawings import steps_over_ranks
from runs import BYTES, ROOT, Failure, spaced

from . import model
from .files import WRITERS, File, deepspeed, fsdp, moments, read_file
from .line import EXCLUDES, GROUPS, NEEDS, OFF, ROWS, options_in, parser, refuse, value_of
from .machine import share
from .plan import ALL, CHAPTERS, DISK, LIVE, PLANS, answer, as_deepspeed
from .times import notes, operations, scaled, table
from .words import advice, figures, folded, plural, sized, told

# DeepSpeed's plans as ms-swift, LLaMA-Factory, xtuner, Lightning name them, as ds_z3_config.json.
NAMED = re.compile(r"(deepspeed_|default_?|ds_)?(zero_?|stage_?|z)?(?P<stage>[0-3])"
                   r"(?P<away>_offload)?(_config)?(\.json)?")
# Kinds of --attention that store no s x s matrices. The others are eager, disabled and programs.
FUSED = re.compile("sdpa|flash|flex|fa[23]|true")


def asked_by_others(given):
    """Returns (the card and the numbers that DeepSpeed's file, accelerate's options or --fsdp ask
    for; explained() of the file's keys). Takes these options out of `given`."""
    stage, name, kind, fsdp_words = (given.pop(key, "") for key in (
        "zero_stage", "deepspeed", "distributed_type", "fsdp"))
    offload = {f"offload_{what}": {"device": given.pop(f"offload_{what}_device")}
               for what in ("optimizer", "param") if f"offload_{what}_device" in given}
    if given.pop("offload", False):
        offload = {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")}
    fsdp_options = {key: given.pop(key) for key in [*given] if key.startswith("fsdp_")}
    kind, asks_for_fsdp = kind.upper(), fsdp_options.keys() & {
        "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_offload_params"}
    fsdp_words = "" if fsdp_words.lower() in OFF else fsdp_words
    if fsdp_words or kind == "FSDP" or (asks_for_fsdp and kind == "" and not name):
        refuse(name, "say --fsdp or --deepspeed, not both")
        return fsdp(fsdp_words, fsdp_options, given.get("accumulate", 1)), {}
    refuse(name and stage, "say --zero_stage or --deepspeed, not both")
    if name[:1] == "{" or os.path.exists(name):
        return deepspeed(read_file(name, loose=True), given)
    if name:
        named = NAMED.fullmatch(name.lower().replace("-", "_"))
        plan = f"zero{named['stage']}{named['away'] or ''}" if named else name
        if plan not in PLANS:
            read_file(name)  # it is neither a plan nor a file, so this raises a Failure
        return {"card": as_deepspeed(PLANS[plan]), "piece": LIVE}, {}
    if stage or offload or kind == "DEEPSPEED":
        zero = {"stage": int(stage or 2), **offload}  # accelerate's default
        asked, _ = deepspeed(File("the line", {"zero_optimization": zero}), given)
        del asked["dtype"]
        return asked, {}
    return {"card": PLANS["ddp"]} if kind[:6] == "MULTI_" or kind == "NO" else {}, {}


def set_ranks(given, names):
    """Sets `ranks` and `gpus_per_machine` from other launchers' options. The number of machines
    times the ranks of each overrides every option but --ranks, because in srun -N 2 -n 2 torchrun
    --nproc_per_node 8 --nnodes 2 the -n counts launchers. names: how each option was written."""
    per_machine, machines = given.pop("nproc_per_node", 0), given.pop("nnodes", 0)
    if per_machine and ("ranks" not in given or (machines and names["ranks"] != "--ranks")):
        given["ranks"] = per_machine * (machines or 1)
    elif machines and "ranks" in given:
        per_machine = -(-given["ranks"] // machines)
    if per_machine:
        given.setdefault("gpus_per_machine", per_machine)


def of_machine(name, given):
    """Returns the options of a machine of notes/machines.json, or in a file on one machine."""
    known = json.loads((ROOT / "notes/machines.json").read_text("utf-8"))
    refuse(name not in known and not os.path.isfile(name),
           f"--machine: {name or 'nothing':.40} is none of {', '.join(known)}, nor a file")
    kinds = {names.split()[0]: kind for names, kind, *_ in GROUPS["the machine"]}
    options = {}
    for key, value in (known.get(name) or read_file(name)).items():
        try:
            refuse(key not in kinds, f"{name}: {key:.40} is no figure of a machine, as flops is")
            value = value[0] if isinstance(value, list) and value else value
            text = value if isinstance(value, str) else json.dumps(value)
            options[key] = value_of(f"{name}, {key}", text, kinds[key])
        except Failure as failure:
            raise Failure(str(failure), 3) from None
    if not {"flops", "compute"} & (options | given).keys():
        raise Failure(f"{name} says no flops, a GPU's TFLOP/s: say --flops or --compute", 3)
    if "link" in options and "node_link" not in options | given:
        raise Failure(f"{name} says link, Gbit/s between machines, but no node_link, within one", 3)
    if "compute" in given:
        options.pop("flops", 0)
    return options


def question(argv):
    """Returns the options in argv and all that follows from them, as a namespace. It is called q in
    all of the planner; answer() adds the plans. Raises a Failure for what cannot be planned."""
    if len(argv) == 1 and " " in argv[0]:  # a whole command line in quotes
        try:
            argv = shlex.split(argv[0])
        except ValueError as error:
            raise Failure(f"the line in quotes cannot be read: {error}", 2) from None
    line = bool(argv) and argv[0][:1] != "-"
    options, others = options_in(argv, line)
    given = vars(parser().parse_args(options))
    names = given.pop("names")
    # Options under another program's name are passed over, not refused, if they are of no use.
    theirs = {name for name, written in names.items() if line or written != f"--{name}"}
    if "config" in theirs and "params" in given and not os.path.exists(given["config"]):
        others.append(f"{names['config']} {given.pop('config'):.60}")
    refuse(not given.keys() & {"config", "params"}, "say --config, or --params, as 7.5e9")
    set_ranks(given, names)
    optim, named = given.pop("optim", ""), given.get("deepspeed", "")
    file, keys = asked_by_others(given)
    if "machine" in given:
        given = of_machine(given["machine"], given) | given
    check_options(given, file, names, theirs, others)
    refuse(optim and not moments(optim) and "bytes" not in given, f"--optim {optim} is not an "
           "Adam, LAMB, Lion or Adagrad of known bytes: say them, as --bytes 2,2,12")
    optim = {"moments": moments(optim) or 0} if optim else {}
    q = SimpleNamespace(**defaults() | file | optim | given, keys=keys)
    q.notes = [*q.notes, *passed_over(q, names)]
    if others:
        q.keys = keys | {"passed over": others}
    if q.bytes:
        parts = re.fullmatch(r"([24]),(\d),(\d|1[0-6])", q.bytes)
        refuse(not parts, f"--bytes: {q.bytes} is not P,G,K with P 2 or 4, G below 10, K up to 16")
        q.bytes = tuple(map(int, parts.groups()))
        q.dtype = "bf16" if q.bytes[0] == 2 else "fp32"
    if q.convention == "megatron" and q.dtype == "bf16" and not (q.card and q.card.theirs):
        q.sends = 4
    refuse(q.convention == "deepspeed" and q.dtype == "fp32",
           "--convention deepspeed counts no --dtype fp32")
    if q.config and not os.path.exists(q.config) and q.config not in model.NAMED:
        raise Failure(f"cannot read {q.config:.80}: download its config.json, or say --params", 3)
    q.model = model.read(q.config, q.model_type) if q.config else model_of_size(q)
    q.headroom, q.host_headroom = (
        share(f"--{name}", getattr(q, name), whole, "SIZE") for name, whole in (
            ("headroom", q.gpu), ("host_headroom", q.host)))
    refuse(q.headroom >= q.gpu > 0,
           f"--headroom {sized(q.headroom)} leaves nothing of --gpu {sized(q.gpu)}")
    set_layers(q)
    set_activations(q)
    if q.square and q.model.hidden:  # transformers' value of reduce_bucket_size "auto"
        q.elements = q.model.hidden ** 2
    set_plans(q, named)
    q.operations = operations(q)
    check_scale(q)
    return q


def check_options(given, file, names, theirs, others):
    """Refuses options that lack one they need, or exclude each other. file: the options that
    another program's file asked for; names: how each option was written. An option of another
    program (`theirs`) is moved from `given` to `others` instead."""
    known = given.keys() | file.keys()
    autos = ", ".join(word for word in others if " " in word)
    refuse(not known & {"gpu", "ranks"}, "say --ranks, or --gpu for the fewest that do"
           + (f" ({autos} says neither)" if autos else ""))
    lacks = "" if {"config", "width"} & known else "a model's config.json"
    if "batch" not in known:
        lacks = "a batch"
    if "sequence" in theirs and lacks:
        others.append(f"{names['sequence']} {given.pop('sequence')}: activations need {lacks}")
        known.discard("sequence")
    for name, needed in NEEDS.items():
        if name in given and needed not in known:
            refuse(name not in theirs, f"{names[name]} needs --{needed}")
            others.append(f"{names[name]} {given.pop(name)}")
    for name, excluded in EXCLUDES.items():
        for other in excluded:
            refuse(name in given and other in given, f"say {names.get(name)} or "
                   f"{names.get(other)}, not both")


def defaults():
    """Returns {option: its value if it is not given}, by deepspeed() and notes/options.json."""
    values, _ = deepspeed(File("", {}), {})
    for names, kind, _, *default in ROWS:
        name, none = names.split()[0], "" if kind in ("NAME", "FILE", "VALUE") else 0
        values[name] = value_of(name, *default, kind) if default else none
    return values | {"card": None, "unwrapped": False, "hybrid": False, "notes": []}


def check_scale(q):
    """Refuses --scale, --draw and --step_tokens where they cannot be answered."""
    computes = q.compute or q.flops * q.batch * q.sequence
    refuse((q.scale or q.draw) and not computes, "--scale and --draw need computation: say "
           "--machine with --batch and --sequence, or --compute")
    refuse(q.step_tokens and not (q.scale or q.draw), "--step_tokens needs --scale or --draw")
    refuse(q.draw and Path(q.draw).suffix != ".svg", f"--draw {q.draw:.60} is no name.svg")
    refuse(q.step_tokens % max(1, q.batch * q.sequence), f"--step_tokens {spaced(q.step_tokens)} "
           f"are no whole micro-batches of {spaced(q.batch * q.sequence)}")


def passed_over(q, names):
    """Yields notes on adapters, quantized weights and tensor parallelism, which no plan has."""
    kind, bits = q.finetuning_type.lower(), q.quantization_bit
    if kind not in ("", "full") and not q.trainable:
        yield (f"{names['finetuning_type']} {q.finetuning_type:.40}: planned as if all parameters "
               "were trained; if an adapter is, say --trainable, as 0.5%")
    if bits not in ("", "0") or "qlora" in kind:
        option = "finetuning_type" if bits in ("", "0") else "quantization_bit"
        yield f"{names[option]} is left out: weights are planned in full, not quantized"
    if q.tensor_parallel not in ("", "0", "1"):
        yield (f"{names['tensor_parallel']} is left out: each layer is planned whole, not cut "
               f"among {q.tensor_parallel} ranks")


def model_of_size(q):
    """Returns a model of --params in equal --layers, with --largest_layer, or raises a Failure."""
    sizes = [q.largest_layer] if q.largest_layer else []
    layers, rest = q.layers - len(sizes), q.params - sum(sizes)
    largest = f" of which the largest has {spaced(q.largest_layer)}" if sizes else ""
    refuse(rest < layers or (sizes and rest > layers * sizes[0]),
           f"{plural(q.params, 'parameter')} cannot be {plural(q.layers, 'layer')}{largest}")
    sizes += [rest // layers + (l < rest % layers) for l in range(layers)]
    return SimpleNamespace(sizes=sizes, active=q.params, blocks=q.layers, hidden=q.width,
                           heads=q.heads, vocabulary=0, head=False, inner=None, notes=[])


def set_layers(q):
    """Sets q.sizes, each layer's (trained, frozen) parameters in one ratio, or (trained,) if none
    are frozen; q.parts, the sums of each part; q.counted, of each part {size: how many layers}."""
    sizes = [sum(q.model.sizes)] if q.unwrapped else q.model.sizes
    count = sum(sizes)
    trained = share("--trainable", q.trainable, count, "COUNT") if q.trainable else count
    refuse(trained > count, f"--trainable {spaced(trained)} of {plural(count, 'parameter')}")
    # Frozen parameters up to the end of each layer, rounded down, so that they add up exactly.
    ends = [(count - trained) * end // count for end in accumulate([0, *sizes])]
    frozen = [after - before for before, after in pairwise(ends)]
    q.sizes = [(size,) for size in sizes]
    if trained != count:
        q.sizes = [(size - part, part) for size, part in zip(sizes, frozen)]
    refuse(min(map(min, q.sizes)) < 1, f"{plural(trained, 'trainable parameter')} and "
           f"{spaced(count - trained)} frozen ones cannot both be in each of {len(sizes)} layers")
    q.counted, q.parts = ([*map(count, zip(*q.sizes))] for count in (Counter, sum))


def set_activations(q):
    """Sets q.activations, a rank's peak in bytes, to what --activations says or to a formula's
    value, and q.formula to the formula with its numbers."""
    shape, attention = q.model, q.attention.lower()
    ours = attention == "programs" or q.write == "mpirun"
    fused = bool(FUSED.search(attention) or (q.config and not attention and not ours))
    refuse(not fused and attention not in ("", "eager", "disabled", "programs"),
           f"--attention: {q.attention:.40} is none of sdpa, flash_attention_2, eager, programs")
    q.formula = spaced(q.activations)
    if not q.sequence:
        return
    refuse(not q.config and not (shape.hidden and shape.heads),
           "--sequence needs --width and --heads")
    refuse(not shape.inner and q.dtype == "fp32", "--sequence counts activations in 16 bits only, "
           "not in --dtype fp32: say --activations")
    refuse(None in (shape.hidden, shape.heads, shape.blocks),
           f"{q.config} lacks a width, heads or layers: say --activations")
    # Bytes of the loss per token. The programs' loss takes the logits and their gradient, in the
    # dtype. That of transformers takes 12 bytes a word of the vocabulary: log-probabilities, their
    # gradient and the logits' gradient, in fp32 (PyTorch's cross_entropy).
    has_loss, per_word = shape.head and not q.liger, 2 * BYTES[q.dtype] if ours else 12
    loss = per_word * (shape.vocabulary or 0) if has_loss else 0
    formula = by_parts if shape.inner else by_korthikanti
    q.activations, q.formula = formula(q, ours, fused, loss)
    refuse(q.activations > 1e15, f"{q.activations:.0e} bytes of activations fit nowhere")


def by_parts(q, ours, fused, loss):
    """Returns (bytes of activations, their formula) of a family whose blocks are known. ours: the
    programs' llama, else transformers'; fused: no s x s matrices are stored; loss: bytes per
    token. With --recompute full each block keeps its input, and one at a time keeps all."""
    shape, width = q.model, BYTES[q.dtype]
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    stored = not fused and q.recompute != "attention"
    pairs = shape.heads * q.sequence * width if stored else 0  # bytes per token of s x s matrices
    # Once, not per block: last output, its norm, a gradient; dq, dk, dv in two layouts; `pairs`.
    once = width * (3 * shape.hidden + 2 * (queries + 2 * keys)) + pairs
    block = (our_block if ours else transformers_block)(shape, width, queries, keys, pairs)
    rows = q.sequence * q.batch  # ours rounds each tensor up to 64 bytes
    rows = -(-rows * width // 64) * 64 // width if ours else rows
    inputs = shape.blocks - 1 if q.recompute == "full" else 0
    whole = shape.blocks - inputs
    return rows * (inputs * width * shape.hidden + whole * block + once + loss), (
        f"{rows} x ({inputs} x {width * shape.hidden} + {whole} x {block} + {once} + {loss})")


def by_korthikanti(q, _, fused, loss):
    """Returns what by_parts() does, for any other transformer in 16 bits, by arXiv 2205.05198,
    sections 4 and 5. A layer keeps s b (34 h + 5 a s) bytes; a is heads. With --recompute attention
    it does not keep the matrices, 5 a s; with full it keeps its input, 2 h, and one layer all."""
    shape = q.model
    kept, whole = {"none": (0, shape.blocks), "attention": (34, 0), "full": (2, 1)}[q.recompute]
    block = 34 * shape.hidden + (0 if fused else 5 * shape.heads * q.sequence)
    return q.sequence * q.batch * (shape.blocks * kept * shape.hidden + whole * block + loss), (
        f"{q.sequence} x {q.batch} x ({shape.blocks} x {kept} x {shape.hidden} + "
        f"{whole} x {block} + {loss})")


def our_block(shape, width, queries, keys, pairs):
    """Returns the bytes that our llama's block keeps of a token (common/train/llama.cpp): the input
    and the norm of each half; queries and attention's output; keys and values; gate, up and their
    product; `pairs`, bytes of the s x s matrices. width: an element's; queries, keys: elements."""
    return width * (4 * shape.hidden + 2 * (queries + keys) + 3 * shape.inner) + pairs


def transformers_block(shape, width, queries, keys, pairs):
    """Returns what our_block() does, for transformers' Llama, Mistral, Qwen2, Qwen3, as measured by
    plan_model_test.py. A norm keeps its input and 4 bytes in fp32 and both its products, the MLP
    gate, its SiLU, up, and the product, attention queries, keys, values, its output; if fused also
    4 bytes a head, if eager softmax in fp32 and 16 bits, and keys and values for all heads."""
    kept = 8 * shape.hidden + 8 + width * (
        4 * shape.hidden + 2 * (queries + keys) + 4 * shape.inner)
    if shape.family == "qwen3":  # norms of queries and keys, by head
        kept += (4 + width) * (queries + keys) + 4 * (shape.heads + shape.kv_heads)
    if not pairs:
        return kept + 4 * shape.heads
    softmax = 4 + (width if width == 2 else 0)
    return kept + 2 * width * (queries - keys) + pairs * softmax // width


def set_plans(q, named):
    """Sets q.cards, the plans that are compared, and q.shards. named: --deepspeed's text. Raises a
    Failure for a plan that does not run on these ranks or in this dtype, or that --write lacks."""
    q.notes += q.model.notes
    q.cards = [card for card in CHAPTERS if card.mixed_precision]  # in fp32 02 is 03
    if q.chapter:
        refuse(q.chapter not in PLANS, f"--chapter: {q.chapter} is none of "
               + ", ".join(card.name for card in ALL))
        card = PLANS[q.chapter]
        q.cards = [as_deepspeed(card, q.to_owners) if q.card and q.card.theirs else card]
        refuse(q.dtype != "fp32" and not q.cards[0].mixed_precision,
               f"{q.chapter} has no --dtype {q.dtype}: say --dtype fp32")
    elif q.card:
        q.cards = [q.card]
        if q.card.theirs:
            q.notes += [f"{named[:80] or 'the line'} is planned as {q.card.name}, with DeepSpeed's "
                        "own bytes and buffers"]
    if q.convention == "deepspeed":
        q.cards = [as_deepspeed(card, q.to_owners)
                   if card.stage > 1 and card.place("optimizer") != DISK else card
                   for card in q.cards]
    refuse(q.shards and q.convention == "deepspeed", "--convention deepspeed knows no --shards")
    refuse(q.ranks % min(q.hpz, q.ranks or q.hpz), f"zero_hpz_partition_size {q.hpz} does not "
           f"divide {q.ranks} ranks: DeepSpeed stops")
    q.shards = q.shards or (q.gpus_per_machine if q.hybrid else 0)
    refuse(q.shards and q.ranks % q.shards and q.ranks > q.shards,
           f"{q.ranks} ranks are no multiple of the {q.shards} that share a model's state")
    if 0 < q.shards < q.ranks:
        q.notes += [f"state is sharded among {q.shards} ranks, which are N in what follows, and "
                    f"replicated {q.ranks // q.shards} times"]
    if q.write:
        can = [card.name for card in ALL if WRITERS[q.write][1](card)]
        wanted, q.cards = q.cards, [card for card in q.cards if card.name in can]
        refuse(not q.cards, f"--write {q.write} cannot say {wanted[0].name}: it can say "
               + ", ".join(can))


def written(q):
    """Returns the chosen plan as --write's text; raises a Failure if none is chosen or fits."""
    refuse(not q.plan, f"--write {q.write}: which plan? Say --gpu or --chapter")
    if q.gpu and not q.plan.fits:
        raise Failure(advice(q), 6)
    return WRITERS[q.write][0](q, q.plan.card)


def main():
    q = question(sys.argv[1:])
    unsaid = not q.ranks
    answer(q)
    if q.write:
        return print(written(q))
    if q.json:
        return print(json.dumps({plan.name: {
            title: {label.strip(): figure for label, figure in rows.items()}
            for title, _, rows in figures(q, plan)} for plan in q.plans}, indent=2))
    if not (q.scale and unsaid):  # --scale's table has all numbers of ranks
        print(*told(q), sep="\n")
    if q.scale or q.draw:
        steps = scaled(q)
        what = f"{plural(sum(q.parts), 'parameter')}, {q.dtype}"
        if q.batch * q.sequence:
            what += f", {spaced(q.batch * q.sequence)} tokens a micro-batch"
        if q.link:
            what += f", links of {q.link:g} Gbit/s a rank"
        if q.scale:
            about = [what, *q.notes] if unsaid else []
            print(*map(folded, about), *table(q, steps), "", *map(folded, notes(q, steps)),
                  sep="\n")
        if q.draw:
            Path(q.draw).write_text(steps_over_ranks(steps, what), "utf-8")
