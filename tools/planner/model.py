# SPDX-License-Identifier: MIT
"""Counts a model's layers by its config.json. Those of Llama, Mistral, Qwen2 and Qwen3 it counts by
formulas, those of any other family with transformers, if a Python here has that."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace

from runs import ROOT, Failure, spaced

from .files import MOST_PARAMETERS, File, read_file

COUNTER, MISSING = Path(__file__).with_name("count_layers.py"), 77
PATIENCE = 60  # seconds in which transformers must load, perhaps from a slow disk, and count
# FAMILIES: {a family: the defaults of its keys, as in transformers' LlamaConfig and the others}.
# MIXTURES: {a family with experts: (a like one without, keys of the experts' number and width)}.
FAMILIES, MIXTURES = json.loads((ROOT / "notes/models.json").read_text("utf-8")).values()
# The configurations of models that --config takes by their names, in place of a file.
NAMED = json.loads((ROOT / "notes/published.json").read_text("utf-8"))["models"]
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def read(path, kind=""):
    """Returns the model in a config.json or a folder with one, as a namespace: what counted() of
    count_layers.py returns, and for our four families kv_heads, head_dim, `inner` (the MLP's width)
    and `small` (parameters of a block's biases and extra norms). The family is the file's or, if
    that is unknown here, --model_type's, `kind`. An unknown one, or a wrong key, is a Failure."""
    if path in NAMED and not os.path.exists(path):
        path = json.dumps(NAMED[path])
    file = read_file(os.path.join(path, "config.json") if os.path.isdir(path) else path)
    said, names = file.get("model_type") or kind or None, file.get("architectures") or [""]
    file.expect(type(said) is str, "model_type", said, "a name")
    file.expect(type(names) is list and type(names[0]) is str, "architectures", names, "of names")
    why = []
    for family in dict.fromkeys((said, kind or said)):
        counted = (by_formulas if family in FAMILIES else by_transformers)(file, family, names[0])
        if "error" not in counted:
            break
        why.append(counted["error"])
    else:
        raise Failure(f"{file.path}: {said:.60} is none of {', '.join(FAMILIES)}, and {why[0]}; "
                      f"or say {typed(file, said)}", 3)
    count, name, active = sum(counted["sizes"]), counted["name"], counted["active"]
    file.expect(1 <= count <= MOST_PARAMETERS, "the number of parameters", count,
                f"from 1 to {spaced(MOST_PARAMETERS)}")
    notes = [note for note, holds in (
        (f"--model_type {kind:.60} is passed over: the file says {said}",
         kind not in ("", said) and said == family),
        (f"the file says {said:.60}, counted as {family}: right only if their layers are alike",
         said != family),
        (f"architectures says {names[0]:.60}: counted as {name}",
         names[0].lower() not in ("", name.lower())),
        (f"{name} has no head over the vocabulary", not counted["head"]),
        (f"a token passes through {spaced(active)} parameters, not all experts'", active < count),
        ("quantization_config is left out: weights are planned in full, not quantized",
         file.get("quantization_config"))) if holds]
    return SimpleNamespace(path=path, family=family, **{"inner": None} | counted | {
        "notes": [*counted["notes"], *notes]})


def typed(file, family):
    """Returns the options to type in place of a file that cannot be counted; COUNT is a number that
    it does not say. The layers are the embedding, the blocks, and the last norm with the head."""
    inside = file["text_config"] if type(file.get("text_config")) is dict else file
    blocks = next((inside[key] for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
                   if type(inside.get(key)) is int), None)
    count = largest = "COUNT"
    like, experts, width = MIXTURES.get(family, ("", "", ""))
    needed = {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
              "vocab_size", experts, width}
    if needed <= file.keys() and not file.get("mlp_only_layers") and (
            file.get("decoder_sparse_step", 1) == 1):
        experts, each = (file.whole(key, None, 1, 1 << 20) for key in (experts, width))
        dense = file | dict.fromkeys(EXPERTS) | {"intermediate_size": experts * each}
        ends = by_formulas(File(file.path, dense), like, "")
        router = experts * ends["hidden"]
        count = sum(ends["sizes"]) + ends["blocks"] * router
        largest = max(ends["sizes"][0], ends["sizes"][1] + router)
    return (f"--params {count} --layers {blocks + 2 if blocks else 'N'} --largest_layer {largest} "
            "in place of the file")


def by_formulas(file, family, asked):
    """Returns what counted() does, for layers as in LlamaForCausalLM (transformers'
    modeling_llama.py) and the like. asked: the class's name, whose end says the task."""
    for key in (*EXPERTS, "vision_config"):
        file.expect(not file.get(key), key, file.get(key),
                    f"a key of {family}: say {typed(file, family)}")
    default = FAMILIES[family]

    def size(key, most, otherwise=None):
        number = file.whole(key, default.get(key, otherwise), 1, most)
        file.expect(number, key, None, "")
        return number

    hidden, heads = size("hidden_size", 1 << 16), size("num_attention_heads", 1 << 16)
    # A null means as many heads of keys as of queries. An absent key means the family's default.
    null, kv_heads = "num_key_value_heads" in file, default.get("num_key_value_heads", heads)
    kv_heads = file.whole("num_key_value_heads", heads if null else kv_heads)
    default_said = "" if null else f", {family}'s default"
    file.expect(heads % kv_heads == 0, "num_attention_heads", heads,
                f"a multiple of the {kv_heads} of keys{default_said}")
    head_dim = size("head_dim", 1024, None if hidden % heads else hidden // heads)
    words, inner = (size(key, 1 << 20) for key in ("vocab_size", "intermediate_size"))
    queries, keys = heads * head_dim, kv_heads * head_dim  # how many numbers of a token
    # Qwen2 always has biases, Qwen3 norms of queries and keys.
    small = {"qwen2": queries + 2 * keys, "qwen3": 2 * head_dim}.get(family, 0)
    if family in ("llama", "qwen3") and file.one_of("attention_bias", False, True):
        small += queries + 2 * keys + hidden
    if family == "llama" and file.one_of("mlp_bias", False, True):
        small += 2 * inner + hidden
    labels = file.get("id2label")
    labels = file.whole("num_labels", len(labels) if type(labels) is dict else 2, 1, 1 << 20)
    head_sizes = {
        "ForCausalLM": words * hidden, "Model": 0, "ForSequenceClassification": labels * hidden,
        "ForTokenClassification": labels * (hidden + 1), "ForQuestionAnswering": 2 * (hidden + 1)}
    task = next((task for task in head_sizes if asked.endswith(task)), "ForCausalLM")
    has_head = task == "ForCausalLM"
    tied = has_head and file.one_of("tie_word_embeddings", False, True)
    blocks = size("num_hidden_layers", 4094)
    block = hidden * (2 * (queries + keys) + 3 * inner + 2) + small
    sizes = [words * hidden, *[block] * blocks, hidden + (0 if tied else head_sizes[task])]
    absent = [f"{key} {value}" for key, value in default.items() if file.get(key) is None
              and not (null and key == "num_key_value_heads")]
    notes = [f"absent, so {family}'s default: {', '.join(absent)}"] if absent else []
    return {"name": family.capitalize() + task, "sizes": sizes, "active": sum(sizes),
            "blocks": blocks, "hidden": hidden, "heads": heads, "vocabulary": words,
            "head": has_head, "tied": tied, "kv_heads": kv_heads, "head_dim": head_dim,
            "inner": inner, "small": small, "notes": notes}


def by_transformers(file, family, _):
    """Returns what count_layers.py counts in this Python or the one on PATH, or {"error": why}. It
    has its own process, because transformers takes seconds to load, and may end a process."""
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    for python in dict.fromkeys(filter(None, (sys.executable, shutil.which("python3")))):
        try:
            with TemporaryFile("w+") as asked:  # a pipe's reader may end before it has read all
                json.dump([file | {"model_type": family}], asked)
                asked.seek(0)
                done = subprocess.run([python, "-B", COUNTER], stdin=asked, capture_output=True,
                                      text=True, env=quiet, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return {"error": f"transformers does not count it within {PATIENCE} s"}
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])[0]
        if done.returncode != MISSING:
            return {"error": f"transformers ends with {done.stderr.strip()[-200:]!r}"}
    return {"error": "no Python here has transformers, which counts it: `pip install transformers "
            "torch`"}
