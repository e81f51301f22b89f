# SPDX-License-Identifier: MIT
"""What the planner reads: a model's config.json and a configuration of DeepSpeed; what it writes:
the latter, PyTorch's fully_shard, a command here."""
import json
import os

from runs import Failure, spaced
from trainers import ROOT

MOST_BYTES, MOST_PARAMETERS = 1 << 16, 10 ** 13
HOST, DISK = "sharded on the host", "sharded on the disk"
WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes an element
# What DeepSpeed's keys are here; and those that are nothing here. Either with all below them.
KEYS, NOTHING = json.loads((ROOT / "notes/deepspeed.json").read_text("utf-8")).values()


class File(dict):
    """The object in a file of JSON."""

    def __init__(self, path):
        self.path, values = path, None
        try:
            with open(path, "rb") as file:
                text = file.read(MOST_BYTES + 1)
            values = json.loads(text) if len(text) <= MOST_BYTES else None
        except OSError as error:
            raise Failure(f"cannot read {path}: {error.strerror}", 3) from None
        except (ValueError, RecursionError) as error:
            raise Failure(f"{path} is no JSON: {error!s:.120}", 3) from None
        if type(values) is not dict:
            raise Failure(f"{path} is no JSON object of at most {spaced(MOST_BYTES)} bytes", 3)
        super().__init__(values)

    def expect(self, holds, key, value, what):
        if not holds:
            raise Failure(f"{self.path}: {key:.60} is {json.dumps(value):.40}, not {what}", 3)

    def said(self, key, otherwise=None, most=0):
        """What the file says, or else this (null says nothing); a whole number where `most` is."""
        value = otherwise if self.get(key) is None else self[key]
        self.expect(value is not None, key, None, "there")
        self.expect(otherwise is not False or type(value) is bool, key, value, "a boolean")
        self.expect(not most or (type(value) is int and 1 <= value <= most), key, value,
                    f"a whole number from 1 to {most}")
        return value


class Decoder:
    """A model as its config.json says for transformers: llama, mistral, qwen2 or qwen3."""

    def __init__(self, path, kind):
        file = File(os.path.join(path, "config.json") if os.path.isdir(path) else path)
        for key in ("num_experts", "num_local_experts", "n_routed_experts"):
            file.expect(file.said(key, 0) == 0, key, file.get(key), "0: experts are no chapter, as "
                        "one may be another rank's; for LoRA say --params and --trainable")
        kind = kind or file.said("model_type")
        file.expect(kind in ("llama", "mistral", "qwen2", "qwen3"), "model_type", kind,
                    "llama, mistral, qwen2 or qwen3")
        h, a = (file.said(key, None, 1 << 16) for key in ("hidden_size", "num_attention_heads"))
        kv = file.said("num_key_value_heads", a, a)
        file.expect(a % kv == 0, "num_attention_heads", a, f"a multiple of the {kv} of keys")
        size = file.said("head_dim", None if h % a else h // a, 1024)
        self.path, self.hidden, self.heads, self.kv_heads = path, h, a, kv
        self.blocks = file.said("num_hidden_layers", None, 4094)
        self.vocabulary, self.inner = (
            file.said(key, None, 1 << 20) for key in ("vocab_size", "intermediate_size"))
        self.queries, self.keys = q, k = a * size, kv * size  # numbers of a token
        # Biases, and norms of queries and keys: Qwen2's and Qwen3's have no switch.
        self.small = {"qwen2": q + 2 * k, "qwen3": 2 * size}.get(kind, 0)
        if kind in ("llama", "qwen3") and file.said("attention_bias", False):
            self.small += q + 2 * k + h
        if kind == "llama" and file.said("mlp_bias", False):
            self.small += 2 * self.inner + h
        self.tied = file.said("tie_word_embeddings", False)  # the head is the embedding
        file.expect(sum(self.sizes()) <= MOST_PARAMETERS, "the number of parameters",
                    sum(self.sizes()), f"at most {spaced(MOST_PARAMETERS)}")

    def sizes(self):
        """Parameters of the embedding, of each block, of the last norm with the head."""
        h, words = self.hidden, self.vocabulary * self.hidden
        block = h * (2 * (self.queries + self.keys) + 3 * self.inner + 2) + self.small
        return [words, *[block] * self.blocks, h + words * (not self.tied)]

    def activations(self, tokens, batch, recompute, w):
        """Bytes from forward to backward as a formula, the ledger's (common/train/llama.cpp). A
        block keeps input, middle, both normed; queries and what they mix; keys, values; gate, up,
        product. Beside all lie an output, its norm, a gradient, the logits and theirs; in a block's
        backward gradients of queries, keys, values, by head and by token. Rows, one a token, fill
        64 bytes. Of a block that is formed again its input stays."""
        h, q, k = self.hidden, self.queries, self.keys
        kept, once = 4 * h + 2 * (q + k) + 3 * self.inner, 3 * h + 2 * (q + 2 * k)
        rows = -(-tokens * batch * w // 64) * 64 // w
        inputs = self.blocks - 1 if recompute == "full" else 0
        pairs = 0 if recompute == "attention" else self.heads * tokens
        return (f"{rows} x ({inputs} x {w * h} + {self.blocks - inputs} x ({w * kept} + "
                f"{w * pairs}) + {w * (once + pairs)} + {2 * w * self.vocabulary})")


def leaves(values, above=""):
    """Each key below those of its sections, and its value."""
    for key, value in values.items():
        name = above + ("?" if "." in key or not key else key)  # else it would read as another
        yield from leaves(value, name + ".") if value and type(value) is dict else [(name, value)]


def find(name, names):
    """The first that this is, or lies below."""
    return next((key for key in names if f"{name}.".startswith(f"{key}.")), None)


def read_deepspeed(path, ranks, accumulate):
    """What a configuration's keys are here; the plan, dtype and micro-batches that it asks for."""
    file, told = File(path), {"keys": [], "nothing here": [], "unknown": []}
    file.expect(type(file.get("zero_optimization")) is dict, "zero_optimization",
                file.get("zero_optimization"), "a section")
    said = {name.replace("bfloat16", "bf16"): value for name, value in leaves(file)}  # once so
    for name, value in said.items():
        if key := find(name, KEYS):
            told["keys"].append(
                f"{json.dumps(name):.60} = {json.dumps(value):.30}; here {KEYS[key]}")
        else:
            told["nothing here" if find(name, NOTHING) else "unknown"].append(
                f"{json.dumps(name):.60}")

    def value(key, otherwise, *values):
        found = said.get(key, otherwise)
        holds = json.dumps(found) in map(json.dumps, values) if values else \
            found == "auto" or (type(found) in (int, float) and found > 0)
        file.expect(holds, key, found,
                    f"any of {json.dumps(values)}" if values else "a number above 0")
        return found

    zero, yes = "zero_optimization.", ("auto", True, False)
    stage = value(zero + "stage", 0, 0, 1, 2, 3)
    once = "cpu" if value(zero + "cpu_offload", False, *yes) is True else "none"
    optimizer, parameters = (
        value(f"{zero}offload_{what}.device", otherwise, "none", "cpu", "nvme")
        for what, otherwise in (("optimizer", once), ("param", "none")))
    file.expect(parameters == "none" or (stage == 3 and optimizer != "none"),
                zero + "offload_param", "a device",
                "for any stage but 3, nor without offload_optimizer")
    bf16, fp16 = (value(f"{dtype}.enabled", False, *yes) for dtype in ("bf16", "fp16"))
    file.expect(bf16 is not True or fp16 is not True, "bf16.enabled", True, "to be so with fp16's")
    adam = said.get("optimizer.type", "Adam")
    file.expect("dam" in str(adam), "optimizer.type", adam, "an Adam")  # adamw, FusedAdam
    steps, batch, micro = (value(key, "auto") for key in (
        "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu"))
    if steps == "auto" and "auto" not in (batch, micro) and not accumulate:
        if not ranks:
            raise Failure(f"{path}: micro-batches follow from train_batch_size and --ranks: say "
                          "that or --accumulate", 2)
        steps = batch / (micro * ranks)
    steps = 1 if steps == "auto" else steps
    file.expect(1 <= steps <= 1 << 16 and steps % 1 == 0, "gradient_accumulation_steps", steps,
                "a whole number from 1 to 65536")
    dtype = "bf16" if bf16 is True or (bf16 == "auto" and fp16 is not True) else \
        "fp32" if fp16 is False else "fp16"
    chapter = f"zero{stage}" + "_offload" * (optimizer != "none" and stage > 0)
    if stage == 3 and optimizer != "none" and (optimizer == "nvme" or parameters == "none"):
        chapter = "08" if optimizer == "nvme" else "07"
    bucket, piece = (value(zero + key, "auto") for key in ("reduce_bucket_size", "sub_group_size"))
    return told, {"accumulate": int(steps), "chapter": chapter, "dtype": dtype,
                  "bucket": 0 if bucket == "auto" else bucket * WIDTHS[dtype],
                  "parameters": parameters} | ({} if piece == "auto" else {"piece": int(piece)})


def deepspeed(q, card):
    layer = max(map(sum, q.sizes))
    zero = {"stage": card.stage, "overlap_comm": card.prefetches, "reduce_bucket_size": layer}
    if card.stage == 3:
        zero |= {"stage3_prefetch_bucket_size": q.prefetch * layer,
                 "stage3_max_live_parameters": (q.prefetch + 1) * layer,
                 "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0}
    for key, kind in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if card.held[kind] == HOST:
            zero[key] = {"device": "cpu", "pin_memory": True}
        elif card.held[kind] == DISK:
            zero[key] = {"device": "nvme", "nvme_path": "/var/tmp"}
            zero["sub_group_size"] = q.piece
    dtype = {} if q.dtype == "fp32" else {q.dtype: {"enabled": True}}
    return json.dumps({"zero_optimization": zero, **dtype,
                       "gradient_accumulation_steps": q.accumulate,
                       "train_micro_batch_size_per_gpu": q.batch or "auto"}, indent=2)


def fsdp2(q, card):
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[q.dtype]
    away = ", offload_policy=CPUOffloadPolicy()" * (card.held["parameters"] == HOST)
    return f"""import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
how = dict(mp_policy=MixedPrecisionPolicy(torch.{dtype}, torch.float32){away})
for block in model.model.layers:
    fully_shard(block, reshard_after_forward=True, **how)
fully_shard(model, **how)"""


def mpirun(q, card):
    """On the programs' llama; without a --config on their own task."""
    m, task = q.model, ""
    if m and (m.small or m.tied or m.queries != m.hidden or m.vocabulary > 1 << 16):
        raise Failure(f"{m.path}: the programs' llama has no biases, no tied head, no heads of "
                      "another width, and at most 65 536 tokens", 2)
    if m:
        task = (f" --task llama --layers {m.blocks} --width {m.hidden} --heads {m.heads} "
                f"--kv-heads {m.kv_heads} --hidden {m.inner} --vocab {m.vocabulary}"
                + f" --sequence {q.sequence}" * (q.sequence > 0)
                + " --recompute" * (q.recompute == "full"))
    return (f"mpirun -n {q.ranks} build/{card.name}/{card.name}{task}" + f" --batch {q.batch}" * (
        q.batch > 0) + f" --dtype {q.dtype}" * card.mixed_precision
        + f" --accumulate {q.accumulate}" + f" --prefetch {q.prefetch}" * card.prefetches
        + f" --piece {min(q.piece, 1 << 30)}" * (card.held["optimizer"] == DISK))


# Each with the plans that it can say: FSDP2 is stage 3, and offloads all or nothing.
WRITERS = {"deepspeed": (deepspeed, lambda card: True),
           "fsdp2": (fsdp2, lambda card: card.stage == 3 and
                     card.held["parameters"] == card.held["optimizer"]),
           "mpirun": (mpirun, lambda card: card.name[0] == "0")}
