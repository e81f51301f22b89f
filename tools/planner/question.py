# SPDX-License-Identifier: MIT
"""From the command line to a question: the model's layers, their activations, the machine, and the
plans that are compared, all checked; and main(), which prints the answer."""
import json
import os
import re
import shlex
import sys
from collections import Counter
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

from drawings import steps_over_ranks
from runs import BYTES, ROOT, Failure, spaced

from . import model
from .files import WRITERS, File, deepspeed, fsdp, moments, read_file
from .line import EXCLUDES, GROUPS, NEEDS, OFF, ROWS, options_in, parser, refuse, value_of
from .machine import share
from .plan import ALL, CHAPTERS, DISK, LIVE, PLANS, answer, as_deepspeed
from .times import has_time, notes, operations, scaled, table
from .words import advice, figures, folded, plural, sized, told

# DeepSpeed's plans in ms-swift, LLaMA-Factory, xtuner and Lightning, as ds_z3_offload_config.json.
NAMED = re.compile(r"(deepspeed_|default_?|ds_)?(zero_?|stage_?|z)?(?P<stage>[0-3])"
                   r"(?P<away>_offload)?(_config)?(\.json)?")
# Names of attention that stores no s x s matrices. The others are eager, disabled, programs.
FUSED = re.compile("sdpa|flash|flex|fa[23]|true")


def asked_by_others(given):
    """The card and its numbers that DeepSpeed's file, accelerate's options or --fsdp ask for; and
    what each of the file's keys is here. Takes these options out of `given`."""
    stage, name, kind, fsdp_words = (given.pop(key, "") for key in (
        "zero_stage", "deepspeed", "distributed_type", "fsdp"))
    offload = {f"offload_{of}": {"device": given.pop(f"offload_{of}_device")}
               for of in ("optimizer", "param") if f"offload_{of}_device" in given}
    if given.pop("offload", False):
        offload = {f"offload_{of}": {"device": "cpu"} for of in ("optimizer", "param")}
    said = {key: given.pop(key) for key in [*given] if key.startswith("fsdp_")}
    kind, asks_for_fsdp = kind.upper(), said.keys() & {
        "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_offload_params"}
    fsdp_words = "" if fsdp_words.lower() in OFF else fsdp_words
    if fsdp_words or kind == "FSDP" or (asks_for_fsdp and kind == "" and not name):
        refuse(name, "say --fsdp or --deepspeed, not both")
        return fsdp(fsdp_words, said, given.get("accumulate", 1)), {}
    refuse(name and stage, "say --zero_stage or --deepspeed, not both")
    if name[:1] == "{" or os.path.exists(name):
        return deepspeed(read_file(name, loose=True), given)
    if name:
        named = NAMED.fullmatch(name.lower().replace("-", "_"))
        plan = f"zero{named['stage']}{named['away'] or ''}" if named else name
        if plan not in PLANS:
            read_file(name)  # neither a plan nor a file: raises why it cannot be read
        return {"card": as_deepspeed(PLANS[plan]), "piece": LIVE}, {}
    if stage or offload or kind == "DEEPSPEED":
        zero = {"stage": int(stage or 2), **offload}  # accelerate's default
        found, _ = deepspeed(File("the line", {"zero_optimization": zero}), given)
        del found["dtype"]
        return found, {}
    return {"card": PLANS["ddp"]} if kind[:6] == "MULTI_" or kind == "NO" else {}, {}


def told_ranks(given, names):
    """Sets `ranks` and `gpus_per_machine`. Machines times ranks of each are stronger than all but
    --ranks: in srun -N 2 -n 2 torchrun --nproc_per_node 8 --nnodes 2 the -n counts launchers."""
    each, machines = given.pop("nproc_per_node", 0), given.pop("nnodes", 0)
    if each and ("ranks" not in given or (machines and names["ranks"] != "--ranks")):
        given["ranks"] = each * (machines or 1)
    elif machines and "ranks" in given:
        each = -(-given["ranks"] // machines)
    if each:
        given.setdefault("gpus_per_machine", each)


def of_machine(name, given):
    """Options by a name of notes/machines.json, or by a file of the same form, whose figures may
    stand without their sources."""
    known = json.loads((ROOT / "notes/machines.json").read_text("utf-8"))
    refuse(name not in known and not os.path.isfile(name),
           f"--machine: {name or 'nothing':.40} is none of {', '.join(known)}, nor a file")
    kinds, found = {names.split()[0]: kind for names, kind, *_ in GROUPS["the machine"]}, {}
    for key, value in (known.get(name) or read_file(name)).items():
        try:
            refuse(key not in kinds, f"{name}: {key:.40} is no figure of a machine, as flops is")
            value = value[0] if isinstance(value, list) and value else value
            text = value if isinstance(value, str) else json.dumps(value)
            found[key] = value_of(f"{name}, {key}", text, kinds[key])
        except Failure as failure:
            raise Failure(str(failure), 3) from None
    if not {"flops", "compute"} & (found | given).keys():
        raise Failure(f"{name} says no flops, a GPU's TFLOP/s: say --flops or --compute", 3)
    if "link" in found and "node_link" not in found | given:
        raise Failure(f"{name} says link, Gbit/s between machines, but no node_link, within one", 3)
    if "compute" in given:
        found.pop("flops", 0)
    return found


def question(argv):
    """The options in argv with all that follows from them, as a namespace that answer() completes.
    Raises a Failure for what cannot be planned."""
    if len(argv) == 1 and " " in argv[0]:
        try:
            argv = shlex.split(argv[0])
        except ValueError as error:
            raise Failure(f"the line in quotes cannot be read: {error}", 2) from None
    line = bool(argv) and argv[0][:1] != "-"
    options, others = options_in(argv, line)
    given = vars(parser().parse_args(options))
    names = given.pop("names")
    # Options under another program's name are passed over, not refused, where they are of no use.
    theirs = {name for name, written in names.items() if line or written != f"--{name}"}
    if "config" in theirs and "params" in given and not os.path.exists(given["config"]):
        others.append(f"{names['config']} {given.pop('config'):.60}")
    refuse(not given.keys() & {"config", "params"}, "say --config, or --params, as 7.5e9")
    told_ranks(given, names)
    optim, named = given.pop("optim", ""), given.get("deepspeed", "")
    file, keys = asked_by_others(given)
    if "machine" in given:
        given = of_machine(given["machine"], given) | given
    known = given.keys() | file.keys()
    autos = ", ".join(word for word in others if " " in word)
    refuse(not known & {"gpu", "ranks"}, "say --ranks, or --gpu for the fewest that do"
           + f" ({autos} says neither)" * bool(autos))
    needed = "a batch" if "batch" not in known else "a model's config.json" * (
        not {"config", "width"} & known)
    if "sequence" in theirs and needed:
        others.append(f"{names['sequence']} {given.pop('sequence')}: activations need {needed}")
        known.discard("sequence")
    for name, needed in NEEDS.items():
        if name in given and needed not in known:
            refuse(name not in theirs, f"{names[name]} needs --{needed}")
            others.append(f"{names[name]} {given.pop(name)}")
    for name, excluded in EXCLUDES.items():
        for other in excluded:
            refuse(name in given and other in given, f"say {names.get(name)} or "
                   f"{names.get(other)}, not both")
    refuse(optim and not moments(optim) and "bytes" not in given, f"--optim {optim} is not an "
           "Adam, LAMB, Lion or Adagrad of known bytes: say them, as --bytes 2,2,12")
    unsaid = deepspeed(File("", {}), {})[0] | {
        option.split()[0]: value_of(option, *default, kind) if default else
        "" if kind in ("NAME", "FILE", "VALUE") else 0 for option, kind, _, *default in ROWS}
    unsaid |= {"card": None, "unwrapped": False, "hybrid": False, "notes": []}
    optim = {"moments": moments(optim) or 0} if optim else {}
    q = SimpleNamespace(**unsaid | file | optim | given, keys=keys)
    q.notes = [*q.notes, *passed_over(q, names)]
    if others:
        q.keys = keys | {"passed over": others}
    if q.bytes:
        found = re.fullmatch(r"([24]),(\d),(\d|1[0-6])", q.bytes)
        refuse(not found, f"--bytes: {q.bytes} is not P,G,K with P 2 or 4, G below 10, K up to 16")
        q.bytes = tuple(map(int, found.groups()))
        q.dtype = "bf16" if q.bytes[0] == 2 else "fp32"
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
    refuse((q.scale or q.draw) and not has_time(q), "--scale and --draw need a time: say --machine "
           "with --batch and --sequence, --link or --compute")
    refuse(q.step_tokens and not (q.scale or q.draw), "--step_tokens needs --scale or --draw")
    refuse(q.draw and Path(q.draw).suffix != ".svg", f"--draw {q.draw:.60} is no name.svg")
    refuse(q.step_tokens % max(1, q.batch * q.sequence), f"--step_tokens {spaced(q.step_tokens)} "
           f"are no whole micro-batches of {spaced(q.batch * q.sequence)}")
    return q


def passed_over(q, names):
    """A note on each of adapters, quantized weights and tensor parallelism, which no plan has."""
    kind, bits = q.finetuning_type.lower(), q.quantization_bit
    if kind not in ("", "full") and not q.trainable:
        yield (f"{names['finetuning_type']} {q.finetuning_type:.40}: planned as if all parameters "
               "were trained; if an adapter is, say --trainable, as 0.5%")
    if bits not in ("", "0") or "qlora" in kind:
        yield (f"{names['finetuning_type' if bits in ('', '0') else 'quantization_bit']} is left "
               "out: weights are planned in full, not quantized")
    if q.tensor_parallel not in ("", "0", "1"):
        yield (f"{names['tensor_parallel']} is left out: each layer is planned whole, not cut "
               f"among {q.tensor_parallel} ranks")


def model_of_size(q):
    """A model of --params parameters: --layers equal layers, one of them --largest_layer if said.
    Raises a Failure where they do not add up."""
    sizes = [q.largest_layer] * (q.largest_layer > 0)
    layers, rest = q.layers - len(sizes), q.params - sum(sizes)
    refuse(rest < layers or (sizes and rest > layers * sizes[0]),
           f"{plural(q.params, 'parameter')} cannot be {plural(q.layers, 'layer')}"
           + f" of which the largest has {spaced(q.largest_layer)}" * len(sizes))
    sizes += [rest // layers + (l < rest % layers) for l in range(layers)]
    return SimpleNamespace(sizes=sizes, active=q.params, blocks=q.layers, hidden=q.width,
                           heads=q.heads, vocabulary=0, head=False, inner=None, notes=[])


def set_layers(q):
    """Sets q.sizes: each layer's (trained, frozen) parameters in one ratio, (trained,) if none are
    frozen; q.parts: their sums; q.counted: of each part {size: how many layers}."""
    sizes = [sum(q.model.sizes)] if q.unwrapped else q.model.sizes
    count = sum(sizes)
    trained = share("--trainable", q.trainable, count, "COUNT") if q.trainable else count
    ends = [(count - trained) * end // count for end in accumulate([0, *sizes])]
    q.sizes = [(size - b + a, b - a)[:1 + (trained != count)]
               for size, a, b in zip(sizes, ends, ends[1:])]
    refuse(trained > count, f"--trainable {spaced(trained)} of {plural(count, 'parameter')}")
    refuse(min(map(min, q.sizes)) < 1, f"{plural(trained, 'trainable parameter')} and "
           f"{spaced(count - trained)} frozen ones cannot both be in each of {len(sizes)} layers")
    q.counted, q.parts = ([of(part) for part in zip(*q.sizes)] for of in (Counter, sum))


def set_activations(q):
    """Sets q.activations, a rank's peak in bytes, to what --activations says or to a formula's
    value, and q.formula to the formula with its numbers. transformers' loss takes 12 bytes a token
    and word: log-probabilities, their gradient and the logits' in fp32 (PyTorch's cross_entropy).
    Ours takes the logits and their gradient, in the dtype."""
    m, s, b, w, said = q.model, q.sequence, q.batch, BYTES[q.dtype], q.attention.lower()
    h, a, layers = m.hidden, m.heads, m.blocks
    ours = said == "programs" or q.write == "mpirun"
    fused = bool(FUSED.search(said) or (q.config and not said and not ours))
    refuse(not fused and said not in ("", "eager", "disabled", "programs"),
           f"--attention: {q.attention:.40} is none of sdpa, flash_attention_2, eager, programs")
    q.formula = spaced(q.activations)
    if not s:
        return
    refuse(not q.config and not (h and a), "--sequence needs --width and --heads")
    refuse(not m.inner and q.dtype == "fp32", "--sequence counts activations in 16 bits only, not "
           "in --dtype fp32: say --activations")
    refuse(None in (h, a, layers), f"{q.config} lacks a width, heads or layers: say --activations")
    loss = (2 * w if ours else 12) * (m.vocabulary or 0) * m.head * (not q.liger)
    if m.inner:
        # With --recompute full a block keeps its input, and one at a time has all. `once`: beside
        # the blocks are an output, its norm, a gradient; in a block's backward gradients of
        # queries, keys, values, by head and by token. Our rows round s b w up to 64 bytes.
        mixed, keys = a * m.head_dim, m.kv_heads * m.head_dim
        pairs = a * s * w * (q.recompute != "attention" and not fused)
        once = w * (3 * h + 2 * (mixed + 2 * keys)) + pairs
        block_of = our_block if ours else transformers_block
        block = block_of(m, w, mixed, keys, 0 if fused else pairs)
        rows = -(-s * b * w // 64) * 64 // w if ours else s * b
        inputs = layers - 1 if q.recompute == "full" else 0
        q.activations = rows * (inputs * w * h + (layers - inputs) * block + once + loss)
        q.formula = (f"{rows} x ({inputs} x {w * h} + {layers - inputs} x {block} + {once} + "
                     f"{loss})")
    else:
        # A layer keeps s b (34 h + 5 a s) bytes. With --recompute attention it does not keep the
        # matrices, 5 a s; with full it keeps its input, 2 h, and one layer at a time has all. (By
        # Korthikanti and others, arXiv 2205.05198, sections 4 and 5)
        kept, full = {"none": (0, layers), "attention": (34, 0), "full": (2, 1)}[q.recompute]
        block = 34 * h + (0 if fused else 5 * a * s)
        q.activations = s * b * (layers * kept * h + full * block + loss)
        q.formula = f"{s} x {b} x ({layers} x {kept} x {h} + {full} x {block} + {loss})"
    refuse(q.activations > 1e15, f"{q.activations:.0e} bytes of activations fit nowhere")


def our_block(m, w, mixed, keys, pairs):
    """Bytes that a block of our llama keeps of a token (common/train/llama.cpp): the input of each
    half, and its norm; queries and attention's output; keys, values; gate, up, their product; and
    `pairs`, the bytes of the s x s matrices."""
    return w * (4 * m.hidden + 2 * (mixed + keys) + 3 * m.inner) + pairs


def transformers_block(m, w, mixed, keys, pairs):
    """The same of transformers' Llama, Mistral, Qwen2 and Qwen3. A norm keeps its input in fp32 and
    both of its products; the MLP gate, its SiLU, up, their product; attention queries, keys,
    values, its output, and 4 bytes a head. Eager attention keeps softmax in fp32 and a 16-bit copy,
    and keys and values for all heads. (Measured in tests/programs/plan_model_test.py.)"""
    kept = 8 * m.hidden + w * (4 * m.hidden + 2 * (mixed + keys) + 4 * m.inner) + 8
    if m.family == "qwen3":  # norms of queries and keys, by head
        kept += (4 + w) * (mixed + keys) + 4 * (m.heads + m.kv_heads)
    if not pairs:
        return kept + 4 * m.heads
    return kept + 2 * w * (mixed - keys) + pairs * (4 + w * (w == 2)) // w


def set_plans(q, named):
    """Sets q.cards, the plans that are compared, and q.shards. Raises a Failure for a plan that
    does not run on these ranks or in this dtype, or that --write cannot say."""
    q.notes += q.model.notes
    q.cards = [card for card in CHAPTERS if card.mixed_precision]  # in fp32 02 is 03
    if q.chapter:
        refuse(q.chapter not in PLANS, f"--chapter: {q.chapter} is none of "
               + ", ".join(card.name for card in ALL))
        q.cards = [as_deepspeed(PLANS[q.chapter]) if q.card and q.card.theirs else PLANS[q.chapter]]
        refuse(q.dtype != "fp32" and not q.cards[0].mixed_precision,
               f"{q.chapter} has no --dtype {q.dtype}: say --dtype fp32")
    elif q.card:
        q.cards = [q.card]
        q.notes += [f"{named[:80] or 'the line'} is planned as {q.card.name}, with DeepSpeed's own "
                    "bytes and buffers"] * q.card.theirs
    if q.convention == "deepspeed":
        q.cards = [as_deepspeed(card) if card.stage > 1 and card.place("optimizer") != DISK else
                   card for card in q.cards]
    refuse(q.shards and q.convention == "deepspeed", "--convention deepspeed knows no --shards")
    refuse(q.ranks % min(q.hpz, q.ranks or q.hpz), f"zero_hpz_partition_size {q.hpz} does not "
           f"divide {q.ranks} ranks: DeepSpeed stops")
    q.shards = q.shards or q.hybrid * q.gpus_per_machine
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
    """The plan that fits, as a configuration or command for --write. Raises a Failure if none is
    chosen, or if it does not fit."""
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
    if not (q.scale and unsaid):  # the table is of all numbers of ranks
        print(*told(q), sep="\n")
    if q.scale or q.draw:
        found = scaled(q)
        what = f"{plural(sum(q.parts), 'parameter')}, {q.dtype}"
        if q.batch * q.sequence:
            what += f", {spaced(q.batch * q.sequence)} tokens a micro-batch"
        if q.link:
            what += f", links of {q.link:g} Gbit/s a rank"
        if q.scale:
            print(*map(folded, [what, *q.notes] * unsaid), *table(q, found), "",
                  *map(folded, notes(q, found)), sep="\n")
        if q.draw:
            Path(q.draw).write_text(steps_over_ranks(found, what), "utf-8")
