# SPDX-License-Identifier: MIT
"""The planner reads models by their config.json. Its layers and activations are those of
transformers. Without transformers it says what to do."""
import json
import shutil
import signal
import subprocess
import sys

import pytest
from programs import SKIPPED

from planner import model
from planner.question import transformers_block
from runs import Failure

# Prints, for every family that transformers makes as SMALL as below: its name, our layers'
# parameters, transformers' count of all, and its counts of the blocks.
BOTH = """if True:
    import json, sys, torch
    import count_layers
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    small = json.loads(sys.argv[1])
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            with torch.device("meta"):
                theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **small))
        except Exception:
            continue
        blocks = [sum(p.numel() for p in m.parameters()) for m in theirs.modules() if type(m)
                  .__name__ in (theirs._no_split_modules or ()) and "Layer" in type(m).__name__]
        ours = count_layers.answer(small | {"model_type": family}).get("sizes")
        print(json.dumps([family, ours, theirs.num_parameters(), blocks]))"""
# Prints, for each family and attention, the bytes that a block keeps of a token in bf16: what a
# model of two blocks keeps more than one of one block.
KEPT = """if True:
    import json, sys, torch
    from transformers import AutoConfig, AutoModelForCausalLM
    small = json.loads(sys.argv[1])
    def kept(family, blocks, attention):
        config = AutoConfig.for_model(family, **small | {"num_hidden_layers": blocks})
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        own = {p.untyped_storage().data_ptr() for p in model.bfloat16().parameters()}
        found = {}
        def keep(tensor):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage
            return tensor
        ids = torch.zeros((1, 64), dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(input_ids=ids, labels=ids).loss
        return sum(of.nbytes() for at, of in found.items() if at not in own)
    for family in sys.argv[2:]:
        for how in ("sdpa", "eager"):
            print(json.dumps([family, how, (kept(family, 2, how) - kept(family, 1, how)) / 64]))"""
SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
         "num_key_value_heads": 2, "vocab_size": 500, "intermediate_size": 96, "pad_token_id": 0}
QWEN3 = {"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 128,
         "num_hidden_layers": 48, "num_key_value_heads": 4, "vocab_size": 151936,
         "num_experts": 128, "moe_intermediate_size": 768}  # Qwen3-30B-A3B


def counted(python, files):
    """Returns what count_layers.py, run by `python`, says of config.json objects, or its code."""
    done = subprocess.run([python, "-B", model.COUNTER], input=json.dumps(files), text=True,
                          capture_output=True)
    return done.returncode or json.loads(done.stdout.splitlines()[-1])


def with_transformers():
    return next((python for python in dict.fromkeys((sys.executable, shutil.which("python3")))
                 if counted(python, []) != SKIPPED), None) or pytest.skip("no transformers")


def read(values, folder):
    (folder / "config.json").write_text(json.dumps(values, ensure_ascii=False))
    return model.read(str(folder))


def test_layers_are_those_of_transformers(tmp_path):
    python = with_transformers()
    done = subprocess.run([python, "-B", "-c", BOTH, json.dumps(SMALL)], capture_output=True,
                          cwd=model.COUNTER.parent)
    rows = [row for row in map(json.loads, done.stdout.splitlines()) if row[1]]
    assert len(rows) >= 50 and sum(len(blocks) == 3 for *_, blocks in rows) >= 30, done
    for family, ours, count, blocks in rows:
        assert sum(ours) == count and (len(blocks) != 3 or set(blocks) <= set(ours)), family
    same = [QWEN3 | {"architectures": [f"{family.capitalize()}{task}"], "model_type": family,
                     "num_experts": 0, "num_hidden_layers": 2} | other
            for family in model.FAMILIES for task in ["Model"] + [f"For{task}" for task in (
                "CausalLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")]
            for other in (SMALL, {"attention_bias": True}, {"mlp_bias": True, "num_labels": 3},
                          {"tie_word_embeddings": True, "id2label": {"0": "x"}})]
    same += [{"model_type": family} for family in model.FAMILIES]
    for file, theirs in zip(same, counted(python, same)):
        ours = vars(read(file, tmp_path))
        assert theirs | {"notes": 0} == {key: ours[key] for key in theirs} | {"notes": 0}, file
    idle = 48 * (128 - 8) * 3 * 2048 * 768
    assert counted(python, [QWEN3])[0]["active"] == 30532122624 - idle


def test_a_block_keeps_what_that_of_transformers_does(tmp_path):
    done = subprocess.run([with_transformers(), "-B", "-c", KEPT, json.dumps(SMALL),
                           *model.FAMILIES], capture_output=True)
    rows = [*map(json.loads, done.stdout.splitlines())]
    assert len(rows) == 2 * len(model.FAMILIES), done
    for family, how, kept in rows:
        of = read(SMALL | {"model_type": family}, tmp_path)
        mixed, keys, pairs = 4 * 16, 2 * 16, 4 * 64 * 2 * (how == "eager")
        assert kept == transformers_block(of, 2, mixed, keys, pairs), (family, how)


def test_without_transformers_there_are_two_ways_out(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "COUNTER", tmp_path / "counter.py")
    typed = "; or say --params 30532122624 --layers 50 --largest_layer 623120640 in"
    for counter, says in (("exit(77)", "pip install transformers torch`"), (
            "exit('ill')", "and transformers ends with 'ill'"),
            ("print('[{\"error\": \"none knows it\"}]')", "qwen3, and none knows it")):
        model.COUNTER.write_text(counter)
        # As in ./tutorial plan, a write to a counter that has ended would kill this process.
        before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        with pytest.raises(Failure, match=says + typed):
            read(QWEN3 | {"more": "\u00e9" * 30000}, tmp_path)
        signal.signal(signal.SIGPIPE, before)
    with pytest.raises(Failure, match=f"--largest_layer {500_000 * 2048} in"):  # the embedding's
        read(QWEN3 | {"vocab_size": 500_000}, tmp_path)
