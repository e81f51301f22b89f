# SPDX-License-Identifier: MIT
"""The planner gives published figures, plans DeepSpeed's and FSDP's runs, reads and writes their
files, prints what pages show, refuses wrong input, and predicts what the programs predict."""
import ast
import json
import math
import random
import re
import shlex
import subprocess
import time

import pytest
from programs import MIXED, ON_RANKS, ROOT, own_options

import tables
from planner import plan, times
from planner.line import OWN, flag
from planner.question import question, written
from planner.words import LABELS, advice, told
from runs import Failure

PAGE = (ROOT / "notes/choosing.md").read_text()
ANY = "--params 8e9 --ranks 5"


def asked(words):
    """Returns the answered question of a command line."""
    q = question(shlex.split(words))
    plan.answer(q)
    return q


def rank(words):
    """Returns the Rank of the first plan that these words ask for."""
    return asked(words).plans[0]


def configured(words=ANY, **config):
    """Returns the answered question of these words and of DeepSpeed's configuration `config`."""
    return asked(f"{words} --deepspeed '{json.dumps(config)}'")


def times_of(words, beside=False):
    q = asked(words)
    return times.step(q, q.cards[0], q.ranks, beside)


def printed(words, cwd=None, code=0):
    done = subprocess.run([str(ROOT / "tutorial"), "plan", *shlex.split(words)], cwd=cwd,
                          capture_output=True, text=True)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


# {ranks: GB by table 1 of arXiv 1910.02054v3, at stages 1, 2, 3 of each of three models}.
CELLS = {1: "120 120 120 2048 2048 2048 16000 16000 16000",
         4: "52.5 41.3 30 896 704 512 7000 5500 4000",
         16: "35.6 21.6 7.5 608 368 128 4750 2875 1000",
         64: "31.4 16.6 1.88 536 284 32 4187 2218 250",
         256: "30.4 15.4 0.47 518 263 8 4046 2054 62.5",
         1024: "30.1 15.1 0.12 513 257 2 4011 2013 15.6"}


@pytest.mark.parametrize("ranks", CELLS)
def test_the_papers_table(ranks):
    """The table rounds the first model's cells, and cuts off the others' digits."""
    for model, cells in zip(("7.5e9", "128e9", "1e12"), zip(*[iter(CELLS[ranks].split())] * 3)):
        for cell, stage in zip(cells, asked(f"--params {model} --ranks {ranks}").plans[1:4]):
            decimals = len(cell.partition(".")[2])
            shown = (round if model == "7.5e9" else math.floor)(stage.held / 1e9 * 10 ** decimals)
            assert f"{shown / 10 ** decimals:.{decimals}f}" == cell


# Bytes of state per parameter: 03 to 07 on the device, 07 and 08 on the host, 08 on the disk;
# 08 with --state host and zero3_offload on the host. Megatron-LM's page has the rows of megatron.
@pytest.mark.parametrize("words, formulas", [
    ("", "16|4 + 12/N|2 + 14/N|16/N|4/N|14/N|4/N|12/N|16/N|20/N"),
    ("--dtype fp32", "16|8 + 8/N|4 + 12/N|16/N|8/N|16/N|8/N|8/N|16/N|24/N"),
    ("--convention megatron --dtype fp16",
     "20|4 + 16/N|2 + 18/N|20/N|4/N|18/N|4/N|16/N|20/N|20/N"),
    ("--convention megatron", "18|6 + 12/N|2 + 16/N|18/N|6/N|16/N|6/N|12/N|18/N|18/N"),
    ("--convention megatron --dtype fp32", "16|8 + 8/N|4 + 12/N|16/N|8/N|12/N|8/N|8/N|16/N|16/N"),
    ("--convention deepspeed", "20|4 + 16/N|2 + 18/N|18/N|2/N|16/N|6/N|12/N|18/N|18/N"),
    ("--bytes 2,2,8", "12|4 + 8/N|2 + 10/N|12/N|4/N|10/N|4/N|8/N|12/N|12/N"),
    ("--bytes 4,4,8", "16|8 + 8/N|4 + 12/N|16/N|8/N|12/N|8/N|8/N|16/N|16/N")])
def test_conventions(words, formulas):
    """--table also has the label that LABELS gives to these bytes of parameter and state."""
    q = asked(f"{ANY} {words}")
    by = {card.name[:2]: card for card in q.cards} | {
        "host": plan.STATE_HOST, "theirs": plan.PLANS["zero3_offload"]}
    told = [plan.state_formula(plan.terms(q, by[card]), *place) for card, *place in (
        *((f"0{n}",) for n in range(3, 8)), ("07", plan.HOST), ("08", plan.HOST),
        ("08", plan.DISK), ("host", plan.HOST), ("theirs", plan.HOST))]
    assert "|".join(told) == formulas and plan.state_formula(plan.terms(q, by["08"])) == "0"
    (p, _, k), first = plan.costs(q, q.cards[0]), q.plans[0]
    sends = 4 if words == "--convention megatron" else p  # of bf16 it sends gradients in fp32
    assert first.sent == sends * sum(first.elements.values())
    label = "as asked" if "bytes" in words else LABELS[p, k]
    assert label in " ".join(printed(f"{ANY} {words} --table").split())


# What DeepSpeed 0.19.6's estimate_zero2_ and estimate_zero3_model_states_mem_needs return. A row
# begins with millions of parameters, in all and in the largest layer, and with GPUs, 8 in a host.
# Then come pairs, GiB of a host and of a GPU: at stage 2 with the optimizer on the host, and with
# nothing there; at stage 3 with optimizer and parameters there, with the optimizer, with nothing,
# each time with zero_init true, then false.
ESTIMATES = """
2900 32 1 64.82 5.40 16.21 54.02 72.92 0.12 72.92 0.12 64.82 5.52 64.82 5.52 0.18 48.73 16.21
    48.73;
2900 32 8 129.64 5.40 129.64 11.48 72.92 0.12 129.64 0.12 64.82 0.79 129.64 0.79 1.43 6.20
    129.64 6.20;
7000 131 2 156.46 13.04 78.23 71.71 176.02 0.49 176.02 0.49 156.46 7.01 156.46 7.01 1.46 59.16
    78.23 59.16;
7000 131 8 312.92 13.04 312.92 27.71 176.02 0.49 312.92 0.49 156.46 2.12 312.92 2.12 5.86 15.16
    312.92 15.16;
13000 164 1 290.57 24.21 72.64 242.14 326.89 0.61 326.89 0.61 290.57 24.83 290.57 24.83 0.92
    218.54 72.64 218.54;
13000 164 4 290.57 24.21 290.57 78.70 326.89 0.61 326.89 0.61 290.57 6.66 290.57 6.66 3.67 55.09
    290.57 55.09;
13000 164 24 1743.44 24.21 581.15 33.29 108.96 0.61 581.15 0.61 96.86 1.62 581.15 1.62 7.33 9.69
    581.15 9.69"""


@pytest.mark.parametrize("row", ESTIMATES.split(";"))
def test_deepspeeds_estimates(row):
    count, largest, ranks, *told = row.split()
    plans = ["zero2_offload", "05", *(f"{name} --zero_init {init}" for name in (
        "zero3_offload", "07", "06") for init in ("true", "false"))]
    found = [rank(f"--params {count}M --layers 99 --largest_layer {largest}M --ranks {ranks} "
                  f"--convention deepspeed --chapter {name}") for name in plans]
    assert [f"{size / 2 ** 30:.2f}" for of in found for size in (of.machine, of.reserved)] == told
    # To the byte: 6.65e9 parameters on 2 GPUs (the case of DeepSpeed's pull request 1536).
    of = rank("--params 6650M --ranks 2 --convention deepspeed --chapter zero2_offload")
    assert (of.reserved, of.machine, of.host) == (13_300_000_000, 159_600_000_000, 79_800_000_000)


# GB of a rank, of 8 billion parameters on 5 ranks, so 1.6e9 in a shard: parameters, gradients and
# optimizer state on the device; all on the disk; all on the host; sent in a step; copied to the
# host, to the device. 08's host also has 3 pieces of 2^20 elements. DeepSpeed's optimizer state on
# the host has 16 bytes an element, with an fp32 copy of gradients; at stages 1 and 2 new parameters
# lie there, too; "+ 3.2" is pinned memory that loading the parameters leaves.
OFFLOADED = {"zero1_offload": (16, 16, 0, 0, 28.8, 38.4, 3.2, 3.2),
             "zero2_offload": (16, 0, 0, 0, 28.8, 38.4, 3.2, 3.2),
             "07_offload": (3.2, 3.2, 0, 0, 22.4, 38.4, 3.2, 3.2),
             "08_infinity": (0, 0, 0, 19.2, 6.437748736, 38.4, 3.2, 6.4),
             "08_state_host": (0, 0, 0, 0, 25.6, 38.4, 3.2, 6.4),
             "zero3_offload": (0, 0, 0, 0, 32 + 3.2, 38.4, 3.2, 6.4),
             "zero3_offload_param": (0, 3.2, 19.2, 0, 3.2 + 3.2, 38.4, 3.2, 6.4)}


@pytest.mark.parametrize("name", OFFLOADED)
def test_offloaded(name):
    of = rank(f"{ANY} --chapter {name}")
    figures = *of.resident.values(), of.disk, of.host, of.sent, *of.copied.values()
    assert tuple(bytes_ / 1e9 for bytes_ in figures[:3] + figures[5:]) == OFFLOADED[name]
    # Gradients now have 4 bytes, in 16 micro-batches. Parameters on the host are copied up for 32
    # gathers; down go gradients 16 times or, where Adam is on the device, new parameters once. Else
    # gradients go down, and new parameters up, once.
    streams = name[:2] == "08" or name == "zero3_offload"
    of = rank(f"{ANY} --chapter {name} --bytes 2,4,12 --accumulate 16")
    assert of.copied == ({"to_host": 16 * 6.4e9, "to_device": 32 * 3.2e9} if streams else
                         {"to_host": 3.2e9, "to_device": 32 * 3.2e9} if "param" in name else
                         {"to_host": 6.4e9, "to_device": 3.2e9})
    # A program borrows 4/5 of a layer for messages. On its host lie the shard's gradients for Adam
    # or, where micro-batches are added there, two layers'.
    if name[0] == "0":
        assert of.borrowed["communication"] == 2 * 4 * 0.25e9 / 5
        assert of.on_host["communication"] == (2 * 6.4e9 / 32 if streams else 6.4e9)


@pytest.mark.parametrize("words, held, borrowed, host", [
    # Borrowed are a bucket of 5e8 elements (1 GB), with overlap_comm two, and from stage 2 on a
    # layer's gradients (0.25 GB); at stage 3 also a copy of the bucket, and 1e9 parameters in whole
    # layers or stage3_max_live_parameters. Stage 2's update borrows 4 bytes for each gradient of a
    # shard (4 GB), when all this is free again, so only the larger of both counts.
    ("stage=2", 30, 4, 0), ("stage=2 overlap_comm=true reduce_bucket_size=2e9", 30, 8.25, 0),
    ("stage=1 reduce_bucket_size=1e9", 44, 2, 0),
    ("stage=2 contiguous_gradients=false", 30, 4, 0), ("stage=3", 16, 2 + 0.25 + 2, 0),
    ("stage=3 max_live_parameters=0", 16, 2.5, 0),
    ("stage=3 zero_hpz_partition_size=2", 24, 4.25, 0), ("stage=3 mics_shard_size=2", 64, 4.25, 0),
    ("stage=1 data_types.grad_accum_dtype=fp32", 16 + 32 + 12 * 1, 1, 0),
    ("stage=2 bf16.bf16_master_weights_and_grads=true bf16.bf16_optimizer_states=true",
     16 + 8 * 1, 1.25, 0),
    ("stage=2 bf16.bf16_master_weights_and_grads=true cpu_offload=true", 16, 1.25, 14),
    ("stage=2 bf16.enabled=false", 32 + 4 + 12 * 1, 2.5, 0),
    ("stage=3 bf16.enabled=false", 4 + 4 + 8 * 1, 8.5, 0),
    ("stage=3 sub_group_size=0 offload_optimizer.device=nvme", 2, 4.25, 2 + 4 * 4),
    ("stage=2 optimizer.type=Adam8bit", 16 + 8 * 1, 4, 0),
    ("stage=2 optimizer.type=Lion", 16 + 10 * 1, 4, 0),
    ("stage=2 optimizer.type=Adagrad", 16 + 10 * 1, 4, 0),
    ("stage=2 optimizer.type=AdamW4bit", 16 + 7 * 1, 4, 0),
    ("optimizer.type=OneBitAdam", 8 * (2 + 2 + 16), 1, 0),
    # On the host: gradients (2) and 4 buffers of a sub-group (16), 5 of 1e8 parameters, 1e9 more.
    ("stage=3 offload_optimizer.device=nvme offload_param.device=nvme", 0, 4.25, 18 + 5 * 0.2 + 2),
    ("stage=2 cpu_offload=true", 16, 1.25, 18),
    ("stage=2 cpu_offload=true gradient_accumulation_steps=2", 16, 1.25, 20),
    ("stage=3 offload_optimizer.device=cpu", 2, 4.25, 18),
    ("stage=3 offload_optimizer.device=cpu offload_optimizer.ratio=0.25 sub_group_size=25e7",
     2 + 12, 4.25, 6)])
def test_deepspeeds_bytes(words, held, borrowed, host):
    """GB of 8 billion parameters in 64 layers on 8 ranks, so that 1/N is 1 GB a byte, by hand."""
    config = {"bf16": {"enabled": True}}
    below = r"(?<!\S)(?!bf16|fp16|data_types|optimizer|gradient)"
    words = re.sub(below, "zero_optimization.", words)
    for key, text in (word.split("=") for word in words.split()):
        *path, last = key.split(".")
        section = config
        for name in path:
            section = section.setdefault(name, {})
        section[last] = json.loads(text) if re.match(r"\d|true|false", text) else text
    of = configured("--params 8e9 --layers 64 --ranks 8", **config).plans[0]
    assert (of.held / 1e9, (of.reserved - of.held) / 1e9, of.host / 1e9) == (held, borrowed, host)


TO_OWNERS = {"use_multi_rank_bucket_allreduce": False}


@pytest.mark.parametrize("keys, formulas", [
    ({"stage": 1}, ["3", "0"]), ({"stage": 2}, ["1 + 2A", "0"]), ({"stage": 3}, ["3A", "2A"]),
    ({"stage": 1} | TO_OWNERS, ["2", "0"]), ({"stage": 2} | TO_OWNERS, ["1 + A", "0"]),
    ({"stage": 3} | TO_OWNERS, ["3A", "2A"]),
    ({"stage": 2, "reduce_scatter": False} | TO_OWNERS, ["1 + 2A", "0"]),
    ({"stage": 2, "contiguous_gradients": False} | TO_OWNERS, ["1 + 2A", "0"]),
    ({"stage": 2, "contiguous_gradients": False, "cpu_offload": True} | TO_OWNERS, ["1 + A", "0"])])
def test_deepspeed_sends(keys, formulas):
    """Stages 1 and 2 all-reduce gradients, unless a bucket is reduced to each owner. Of frozen
    parameters, the second formula, nothing is reduced."""
    words = "--params 8e9 --layers 64 --ranks 8 --trainable 4e9"
    assert configured(words, zero_optimization=keys).plans[0].formulas["sent"] == formulas
    if keys["stage"] == 1:  # with --chapter's stage gradients are reduced as the file says
        of = configured(f"{words} --chapter 05", zero_optimization=keys).plans[0]
        assert of.formulas["sent"][0] == {"3": "1 + 2A", "2": "1 + A"}[formulas[0]]


@pytest.mark.parametrize("stage, parameters, gradients", [(0, 1, 1), (2, 1, 2), (3, 2, 1)])
def test_gradients_sent_in_fp32(stage, parameters, gradients):
    """Gathered parameters have 2 bytes; both halves of the all-reduce of stages 0 to 2 have 4."""
    of = configured("--params 8e9 --layers 64 --ranks 8", bf16={"enabled": True},
                    communication_data_type="fp32", zero_optimization={"stage": stage}).plans[0]
    assert of.sent == 7e9 * (parameters * (2 if stage else 4) + gradients * 4)


def test_a_bucket_that_transformers_fills_in(folder):
    """transformers makes "auto" the width squared. At stage 0 few gradients are one bucket."""
    described(folder, LLAMA)
    of = configured(f"--config {folder} --ranks 8", bf16={"enabled": True}, zero_optimization={
        "stage": 1, "reduce_bucket_size": "auto"}).plans[0]
    assert of.reserved - of.held == 2 * 4096 ** 2
    assert rank("--params 1e8 --ranks 8 --deepspeed zero0").borrowed["communication"] == 2e8


def test_adam_on_deepspeeds_host():
    """This Adam moves 28 bytes a parameter, as 07's does: gradients' fp32 copy is not state."""
    words = "--params 8e9 --ranks 1 --adam 28"
    assert [rank(f"{words} {plan_}").adam for plan_ in (
        "--chapter 07", "--deepspeed zero3_offload")] == [28 * 8e9] * 2


@pytest.mark.parametrize("words, held, sent, among", [
    ("1", 8, 3, 16), ("2", 16 + 7, 2, 16), ("3", 128, 2, 16), ("4", 16, 3, 8), ("5", 16 + 14, 2, 8),
    ("4 --shards 2", 64, 3, 2), ("4 --ranks 4", 32, 3, 4), ("3 --accumulate 4", 128, 2, 16),
    ("1 --accumulate 4", 1 + 6 + 16, 2 * 4 + 1, 16), ("2 --accumulate 4", 16 + 6 + 16, 2, 16),
    ("2 --accumulate 4 --fsdp_reshard_after_forward false", 16 + 6 + 16, 4 + 1, 16)])
def test_fsdps_bytes(words, held, sent, among):
    """GB of 8 billion parameters on 16 ranks, of which `among` share a model's state. `sent`: how
    often (among - 1)/among of all elements are sent. All micro-batches but the last run under
    no_sync: a rank has whole gradients, sent once."""
    of = rank(f"--params 8e9 --ranks 16 --use_fsdp --fsdp_sharding_strategy {words}")
    replicas = of.ranks // among  # groups of ranks, which average their shards' gradients
    between = 2 * (replicas - 1) / replicas / among
    assert (of.held, of.sent) == (held * 1e9, 16e9 * (sent * (among - 1) / among + between))


@pytest.mark.parametrize("accumulate", (1, 4))
@pytest.mark.parametrize("convention", ("", "--convention megatron"))
@pytest.mark.parametrize("words", (
    *(f"--chapter 0{n}" for n in range(3, 9)), "--deepspeed zero1", "--deepspeed zero2",
    "--deepspeed zero3", *(f"--use_fsdp --fsdp_sharding_strategy {n}" for n in (1, 2)),
    "--use_fsdp --fsdp_reshard_after_forward false"))
def test_a_step_on_a_link_alone_takes_its_bytes_time(words, convention, accumulate):
    """Nothing but the link, of 50 GB/s, takes time here, so bytes and times count the same."""
    q = asked(f"--params 8e9 --ranks 16 --link 400 {words} {convention} --accumulate {accumulate}")
    for beside in times.ways(q, q.cards[0]):
        step = times.step(q, q.cards[0], 16, beside)["step"]
        assert step == pytest.approx(q.plans[0].sent / 50e6, rel=1e-3), beside


def test_what_follows_from_a_configuration(folder):
    """A file says the dtype and, on 5 ranks, the samples of a micro-batch, and how many
    micro-batches there are. The command line overrides files."""
    for bf16, fp16, dtype in (
            ("auto", "auto", "bf16"), ("auto", True, "fp16"), (False, "auto", "fp16"),
            (True, "auto", "bf16"), ("auto", False, "bf16"), (False, False, "fp32")):
        assert configured(bf16={"enabled": bf16}, fp16={"enabled": fp16}).dtype == dtype
    for batch, micro, steps, *found in ((80, "auto", 4, 4, 4), (80, 2, "auto", 2, 8),
                                        (80, "auto", "auto", 16, 1), ("auto", 3, 2, 3, 2)):
        q = configured(train_batch_size=batch, train_micro_batch_size_per_gpu=micro,
                       gradient_accumulation_steps=steps)
        assert [q.batch, q.accumulate] == found
    (folder / "a.json").write_text('{"micro_batch_size": 2, "accumulate": 4}')
    q = asked(f"{ANY} --accumulate 3 --config_file {folder}/a.json")
    assert (q.batch, q.accumulate) == (2, 3)
    q = configured(f"{ANY} --optim adamw_8bit", bf16={"enabled": True}, optimizer={"type": "Lion"})
    assert q.plans[0].held == 8e9 * (2 + 2 + 4 + 2)
    assert rank(f"{ANY} --adam_offload").name == "zero2_offload", "by accelerate's default"


def test_what_no_plan_has():
    """A key whose effect no plan counts is named as left out, unless it is off."""
    zero, beside = map(str.split, ("""zero_quantized_weights zero_quantized_gradients zenflow
        zero_quantized_nontrainable_weights zeropp_loco_param reduce_scatter""",
                             """tensor_parallel expert_parallel moe pipeline
        sequence_parallel_size torch_autocast amp fp8 sparse_attention compression_training
        quantize_training weight_quantization elasticity progressive_layer_drop"""))
    for on in (5, 1):
        keys = configured(**dict.fromkeys(beside, on), zero_optimization=dict.fromkeys(zero, on) | {
            "stage": 3, "reduce_scatter": on == 1}).keys
        assert {line.split('"')[1].rpartition(".")[2] for line in keys["left out"]} == {
            *(zero + beside) * (on > 1)} and not keys["unknown"]


@pytest.mark.parametrize("line, ranks, of_a_machine", [
    ("torchrun --nproc_per_node 4 --nnodes 2", 8, 4), ("mpirun -N 4 -n 8", 8, 4),
    ("accelerate launch --num_machines 3 --num_processes 8", 8, 3), ("mpiexec -N 4 -n 8", 8, 4),
    ("srun -N 4 -n 8", 8, 2), ("mpirun -np 16", 16, 8), ("NPROC_PER_NODE=4 NNODES=2 swift", 8, 4),
    ("CUDA_VISIBLE_DEVICES=0,3,5 python", 3, 3), ("torchrun --nproc_per_node 4 --ranks 3", 3, 3),
    ("torchrun --nproc_per_node 4 --gpus_per_machine 2", 4, 2)])
def test_ranks_of_a_line(line, ranks, of_a_machine):
    of = rank(f"{line} train.py --params 8e9 --chapter 07")
    assert (of.ranks, of.machine / of.host) == (ranks, of_a_machine)


def test_an_articles_file(folder):
    (folder / "ds_config.json").write_text("""{"zero_optimization": {
        "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "allgather_partitions": true, "allgather_bucket_size": 2e8, "reduce_scatter": true,
        "reduce_bucket_size": 2e8, "overlap_comm": true}, "bf16": {"enabled": true},
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}""")
    q = asked(f"{ANY} --deepspeed {folder}/ds_config.json --dtype fp32 --chapter 04")
    assert (q.cards[0].name, q.dtype) == ("04_zero1", "fp32"), "the command line overrides"
    out = printed(f"{ANY} --gpu 44GB --deepspeed ds_config.json", folder)
    assert all(words in out for words in (
        "by zero2_offload", "Take zero2_offload", "16.00 GB, 2 bytes per", "sends 38.40 GB",
        "ds_config.json is planned as zero2_offload, with DeepSpeed's own bytes and",
        "buckets of 400.00 MB: 80 messages"))


@pytest.mark.parametrize("told", [
    "cpu none 07_offload 3.2 28.8 0", "cpu cpu zero3_offload 0 35.2 0",
    "cpu nvme zero3_offload 0 31.8 3.2", "nvme nvme 08_infinity 0 8.024 28.8",
    "nvme cpu 08_infinity 0 11.424 25.6", "nvme none 08_infinity 3.2 5.024 25.6",
    "none cpu zero3_offload_param 22.4 6.4 0"])
def test_offload_in_a_configuration(told):
    """`told`: devices of the optimizer and of parameters, the plan, GB on device, host and disk. By
    hand, for a rank's 1.6e9 parameters: on a disk a parameter takes 2 bytes, its optimizer state
    with an fp32 gradient 16. The host then has room for 1e9 and 5 x 1e8 such parameters, and for
    4 buffers of a sub-group, 4 bytes an element."""
    optimizer, param, name, *sizes = told.split()
    keys = {"nvme_path": "/disk", "pin_memory": True, "buffer_count": 4}
    words = f"{ANY} --deepspeed " + shlex.quote(json.dumps({
        "aio": {"queue_depth": 8}, "bf16": {"enabled": True}, "zero_optimization": {
            "stage": 3, "sub_group_size": 114e6, "offload_optimizer": {"device": optimizer, **keys},
            "offload_param": {"device": param, "max_in_cpu": 1e9, **keys, "buffer_count": 5}}}))
    q, said = asked(words), printed(words)
    assert (q.cards[0].name, q.piece) == (name, 114000000) and "of no effect here" not in said
    of = q.plans[0]
    assert [of.held / 1e9, of.host / 1e9, of.disk / 1e9] == [*map(float, sizes)]
    assert said.startswith(f"8 000 000 000 parameters in 32 layers, bf16, on 5 ranks, by {name}\n")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_written_and_read(dtype):
    for card in plan.CHAPTERS[1:] + plan.MADE:
        text = written(asked(f"{ANY} --chapter {card.name} --dtype {dtype} --accumulate 4 --piece 9"
                             " --largest_layer 300M --prefetch 2 --write deepspeed"))
        q, zero = configured(**json.loads(text)), json.loads(text)["zero_optimization"]
        assert ("/var/tmp" in text) == (card.name == "08_infinity")
        assert [zero.get(key, 0) / 3e8 for key in (
            "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_max_live_parameters")] == (
                [1, 2, 3] if card.stage == 3 else [1, 0, 0])
        same = plan.as_deepspeed(card, to_owners=not card.theirs)
        assert (q.cards, q.dtype, q.accumulate) == ([same], dtype, 4)
        assert (q.piece == 9) == (card.name == "08_infinity")


def test_six_lines_and_a_command(programs):
    for name, offloads in (("06", False), ("zero3_offload", True)):
        out = printed(f"{ANY} --chapter {name} --write fsdp2")
        calls = [node.func.id for node in ast.walk(ast.parse(out)) if isinstance(node, ast.Call)]
        assert "reshard_after_forward=block is not model.model.layers[-1], " in out
        assert (out.count("\n"), calls.count("fully_shard")) == (6, 2) and "in fp32" in out
        assert ("CPUOffloadPolicy" in calls) == offloads
    for asks, name, last in (("--gpu 44GB", "05_zero2", "1"),
                             ("--chapter 08 --piece 999", "08_infinity", "999")):
        _, _, ranks, program, *words = printed(f"{ANY} {asks} --write mpirun").split()
        assert (program, words[-1]) == (f"build/{name}/{name}", last)
        assert programs.run(0, name, "--plan", "--ranks", ranks, *words).code == 0


def described(folder, values, **more):
    """Writes a model's config.json: the values of the keys below, and `more` keys."""
    keys = ("model_type", "hidden_size", "intermediate_size", "num_attention_heads",
            "num_key_value_heads", "num_hidden_layers", "vocab_size")
    (folder / "config.json").write_text(json.dumps(dict(zip(keys, values)) | more))


LLAMA = ("llama", 4096, 14336, 32, 8, 32, 128256)
QWEN = ("qwen3", 4096, 12288, 32, 8, 36, 151936)


@pytest.mark.parametrize("values, more, parameters", [
    (LLAMA, {}, 8030261248), (("llama", 4096, 11008, 32, None, 32, 32000), {}, 6738415616),
    (("qwen2", 3584, 18944, 28, 4, 28, 152064), {}, 7615616512), (QWEN, {}, 8190735360),
    (("mistral", 4096, 14336, 32, 8, 32, 32000), {"head_dim": None}, 7241732096),
    (("qwen3", 1024, 3072, 16, 8, 28, 151936), {"head_dim": 128, "tie_word_embeddings": True},
     596049920),
    (LLAMA, {"attention_bias": True, "mlp_bias": True}, 8030261248 + 32 * (10240 + 32768)),
    (LLAMA, {"architectures": ["ForTokenClassification"]}, 8030261248 - 128256 * 4096 + 2 * 4097),
    # Defaults of Qwen2Config and Qwen3Config count: biases, and norms of 128, are in each block.
    (["qwen2"], {}, 4096 * (303873 + 32 * (4 * 4096 + 3 * 22016 + 2 + 3))),
    (["qwen3"], {"attention_bias": True}, 4096 * (303873 + 32 * (4 * 4096 + 3 * 22016 + 2 + 4))
     + 32 * 256)])
def test_published_models(folder, values, more, parameters):
    described(folder, values, **more)
    q = asked(f"--config {folder} --ranks 2")
    assert q.parts == [parameters] and ("counted as" in str(q.notes)) == ("architectures" in more)


def test_a_command_for_a_model(folder):
    """--write mpirun writes a program's command, and refuses models that its llama cannot be."""
    described(folder, ("llama", 64, 96, 4, 2, 3, 500))
    words = (f"--config {folder} --ranks 4 --chapter 06 --batch 2 --sequence 32 --recompute full "
             "--accumulate 3 --prefetch 2 --write mpirun")
    assert written(asked(words)) == (
        "mpirun -n 4 build/06_zero3/06_zero3 --task llama --layers 3 --width 64 --heads 4 "
        "--kv-heads 2 --hidden 96 --vocab 500 --sequence 32 --recompute --batch 2 --dtype bf16 "
        "--accumulate 3 --prefetch 2")
    for more in ({"tie_word_embeddings": True}, {"mlp_bias": True}, {"head_dim": 8},
                 {"vocab_size": 65537}, {"model_type": "qwen3"}, {"architectures": ["LlamaModel"]}):
        described(folder, ("llama", 64, 96, 4, 2, 3, 500), **more)
        test_refused(words, "the programs' llama has no biases")


def test_flags_of_others(folder):
    described(folder, QWEN)
    own = (f"--config {folder} --batch 2 --accumulate 8 --dtype fp16 --sequence 512 --ranks 4 "
           "--recompute full --chapter zero2_offload")
    theirs = (f"--model {folder} --model_type qwen3 --per_device_train_batch_size 2 --fp16 true "
              "--gradient_accumulation_steps 8 --max_length=512 --gradient_checkpointing true "
              "--bf16 false --nproc_per_node 4 --deepspeed zero2_offload")
    one, other = ((q.dtype, q.batch, vars(q.plans[0])) for q in map(asked, (own, theirs)))
    assert one == other


def test_activations(folder):
    """By hand: Llama-2-7B in transformers keeps inputs of 31 blocks, all of one, what lies beside,
    and for the loss 12 bytes a word. 5 a s / h is 80 in GPT-3 (arXiv 2205.05198, section 4)."""
    described(folder, ("llama", 4096, 11008, 32, 32, 32, 32000))
    block = 16 * 4096 + 4 * 8192 + 8 * 11008 + 4 * 32 + 8  # bytes by saved_tensors_hooks
    ours = 2 * (4 * 4096 + 2 * 8192 + 3 * 11008)
    beside, pairs = 2 * (3 * 4096 + 2 * 3 * 4096), 32 * 8192  # of a token: heads x scores
    for more, kept, words in (
            ("", block + beside, 12), (" --liger", block + beside, 0),
            (" --attention eager", block - 4 * 32 + beside + (6 + 2) * pairs, 12),
            (" --attention programs", ours + beside + (2 + 2) * pairs, 4),
            (" --attn_implementation flash_attention_2 --liger", block + beside, 0)):
        q = asked(f"--config {folder} --ranks 8 --batch 1 --max_length 8192 "
                  f"--gradient_checkpointing{more}")
        assert q.activations == 8192 * (31 * 8192 + kept + words * 32000)
        assert q.activations == eval(q.formula.replace("x", "*")), "what is printed says so"
    for how, layer in (("none", 34 * 2), ("full", 2 * 2 + 34)):
        q = asked("--params 1e9 --layers 2 --ranks 1 --sequence 2048 --batch 3 --width 12288 "
                  f"--heads 96 --attention sdpa --recompute {how}")
        assert q.activations == 2048 * 3 * 12288 * layer == eval(q.formula.replace("x", "*"))
    for how, each in (("none", 2 * (34 + 80)), ("attention", 2 * 34), ("full", 2 * 2 + 34 + 80)):
        q = asked("--params 1e9 --layers 2 --ranks 1 --sequence 2048 --batch 3 --width 12288 "
                  f"--heads 96 --recompute {how}")
        assert q.activations == 2048 * 3 * 12288 * each


def test_frozen_parameters():
    """On 4 ranks the trained 50, 25, 25 are padded to 64, 32, 32 (t in all), the frozen 450, 225,
    225 to 480, 256, 256 (f). In forward, backward and update 3/4 of `sent` leave a rank."""
    assert asked("--params 19990 --layers 2 --trainable 0.1% --ranks 2").parts == [20, 19970]
    t, f, sums = 128, 992, 2 * 3 * 64 // 4
    window, gathers = 2 * 2 * (64 + 480) + 2 * 2 * 64 + sums, (2 * (t + f), 2 * (2 * t + f), 0)
    for chapter, held, borrowed, sent, messages in (
            ("03", 16 * t + 2 * f, sums, (0, 2 * t, 0), 6),
            ("04", 4 * t + 12 * t // 4 + 2 * f, sums, (0, t, t), 6),
            ("05", 2 * t + 14 * t // 4 + 2 * f, 2 * 64 + sums, (0, 2 * t, t), 9),
            ("06", 16 * t // 4 + 2 * f // 4, window, gathers, 18),
            ("07", 4 * t // 4 + 2 * f // 4, window, gathers, 18)):
        of = rank("--params 1000 --trainable 10% --largest_layer 500 --layers 3 --ranks 4 "
                  f"--accumulate 2 --chapter {chapter}")
        assert (of.held, of.reserved, of.collectives) == (held, held + borrowed, messages)
        assert tuple(n * 4 // 3 for n in of.elements.values()) == sent


def test_the_fewest_ranks():
    """`fewest` is the first number of ranks that fits. If none does, without --host, `every` is too
    much: what a rank keeps however many there are."""
    for words in ("--gpu 80GB", "--gpu 24GB --host 20GB --convention deepspeed",
                  "--gpu 70.5GB --headroom 2GB --activations 3GB"):
        q = asked(f"--params 9e9 {words}")
        assert q.headroom == (2e9 if "headroom" in words else q.gpu / 20)
        for of in q.plans:
            on = (plan.Rank(q, of.card, n) for n in range(1, 400))
            found = next((n for n, each in enumerate(on, 1) if each.host <= (q.host * 0.95 or 1e18)
                          and each.reserved + q.headroom <= q.gpu), None)
            assert of.fewest == found and (found or q.host or of.every > q.gpu - q.headroom)


def test_what_else_is_printed():
    """No other test implies these figures: copies by direction; what the fewest ranks would
    reserve; buckets of trained parameters alone; the last reduce-scatter, which is layer 0's."""
    said = " ".join(printed(f"{ANY} --chapter zero3_offload").split())
    assert "copies 3.20 GB to its host, 6.40 GB back" in said
    assert "but 25.60 GB of its host" in " ".join(printed(f"{ANY} --chapter 08").split())
    words = "--params 30e9 --ranks 2 --gpu 80GB --host 31GB --chapter 08"
    then = json.loads(printed(f"{words} --json"))["08_infinity"]["on such a GPU"]
    of = rank(f"{words.replace('--ranks 2', '--ranks 5')}")
    assert (then["fewest ranks"], then["reserved then"], then["on the host then"]) == (
        "5", of.reserved, of.host) and of.reserved == 2 * 937.5e6 * (2 + 2 + 4 / 5)
    said = printed("--params 7e9 --ranks 4 --trainable 0.5% --chapter 03 --bucket 25MiB")
    assert "buckets of 26.21 MB: 6 messages" in said  # three hold 70 MB; an all-reduce sends twice
    ms = times_of("--params 320 --layers 2 --largest_layer 256 --ranks 4 --link 8 --latency 10 "
                  "--chapter 06 --compute 20")
    largest, other, latency = 256 / 4 * 2 * 3e-6, 64 / 4 * 2 * 3e-6, 0.03  # ms, of 2 bytes each
    assert ms["messages exposed"] + ms["messages hidden"] == pytest.approx(
        3 * (largest + other + 2 * latency) + 0.03 + 48e-6)
    # Exposed are layer 0's gather and its reduce-scatter, and the step's two sums.
    assert ms["step"] == pytest.approx(20 + 2 * (latency + largest) + 0.03 + 48e-6)


def test_a_pasted_line(folder):
    """The planner uses a launcher's and a trainer's options that change bytes, and names others."""
    described(folder, LLAMA)
    own = f"--config {folder} --ranks 8 --gpus_per_machine 4 --batch 1 --sequence 2048"
    for line, same in (
            ("torchrun --nproc_per_node=4 --nnodes 2 --master_port 29500 train.py --bf16 True "
             f"--model_name_or_path {folder} --per_device_train_batch_size 1 --tf32 --strange 3 "
             "--max_length 2048 --gradient_checkpointing --deepspeed zero2_offload",
             f"{own} --recompute full --deepspeed zero2_offload"),
            (f"srun -N 2 --ntasks-per-node=4 python t.py --model {folder} --cutoff_len 2048 "
             "--per_device_train_batch_size 1 --flash_attn fa2 --fsdp 'shard_grad_op'",
             f"{own} --chapter 05"),
            (f"NPROC_PER_NODE=4 NNODES=2 swift sft --model {folder} --torch_dtype float16 "
             "--per_device_train_batch_size 1 --max_length 2048 --attn_impl eager --optim lion_8bit"
             " --deepspeed default-zero3 --gradient_accumulation_steps auto",
             f"{own} --dtype fp16 --attention eager --optim lion_8bit --deepspeed zero3")):
        one, other = (vars(asked(words).plans[0]) for words in (line, same))
        assert one == other
    said = printed(f"torchrun train.py --model {folder} --tf32 --strange 3 --lora_rank 8 --ranks 2 "
                   "--train_type lora --nproc_per_node auto")
    assert "over: --tf32, --strange, --nproc_per_node auto" in \
        " ".join(said.split()) and "say --trainable" in said


def test_files_of_others(folder):
    """The planner reads what accelerate and transformers write, and loose JSON."""
    pytest.importorskip("json5")
    pytest.importorskip("yaml")
    for text, name, dtype, ranks in (
            ("deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n"
             "  offload_param_device: none\nmixed_precision: fp16\nnum_processes: 6\n",
             "07_offload", "fp16", 6),
            ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2\n"
             "mixed_precision: bf16\nnum_processes: 8\n", "05_zero2", "bf16", 8),
            ('{"fsdp": "full_shard offload"}', "08_state_host", "bf16", 4),
            ("{'zero_optimization': {'stage': 1,}, /* so */'fp16': {'enabled': true}, // and so\n}",
             "04_zero1", "fp16", 4),
            ('{"bf16": {"enabled": true}}  # no section', "03_mixed_precision", "bf16", 4)):
        (folder / "file").write_text(text)
        q = asked(f"--params 8e9 --deepspeed {folder}/file" + " --ranks 4" * (ranks == 4))
        assert (q.cards[0].name, q.dtype, q.ranks) == (name, dtype, ranks)


def test_a_steps_time():
    """A step of 32 layers of 100 elements, padded to 104 on 13 ranks, at 1 byte a nanosecond and 10
    microseconds a message. `one`: a layer's gather, in ms, 12 hops of 16 bytes."""
    words, one = "--params 3200 --ranks 13 --accumulate 2 --link 8 --latency 10", 12 * 10.016e-3
    for chapter, count in (("04", 2), ("05", 3), ("06", 6), ("07", 6)):
        for prefetch, beside in ((0, False), (1, False), (1, True)):
            ms = times_of(f"{words} --chapter {chapter} --compute 20 --prefetch {prefetch}", beside)
            whole = 32 * count * one + one  # the last `one` is the step's two sums
            assert ms["computation"] == pytest.approx(20)
            assert ms["messages exposed"] + ms["messages hidden"] == pytest.approx(whole)
            assert ms["step"] == pytest.approx(20 + ms["messages exposed"])
            assert (ms["messages hidden"] > 1) == (prefetch > 0 and (count == 6 or beside))
        copies = times_of(f"{words} --chapter {chapter} --compute 20 --bus 1e-3")["step"]
        least = times_of(f"{words} --chapter {chapter} --compute 20")["step"]
        assert 0 <= copies - least <= 1.024 * (chapter == "07")
    out = " ".join(printed(f"{words} --chapter ddp --bucket 25MiB").split())
    assert "buckets of 26.21 MB: 2 messages to each rank in a step, with 0.24 ms of latency" in out
    assert "DDP copies all gradients into them, 6.66 kB, unless gradient_as_bucket_view" in out
    assert "DDP" not in printed(f"{words} --chapter 05 --bucket 25MiB"), "which shards gradients"


def test_a_steps_time_in_deepspeed(folder):
    """step() ends with the update's gathers, so overlap_comm hides gradients alone; a bucket that
    never fills leaves after backward, and at stage 3 nothing is hidden without overlap_comm. An
    all-reduce takes as long as two reduce-scatters."""
    one = 12 * 10.016e-3
    for stage, overlap, size, hidden, *others in (
            (1, True, 104, 62), (1, True, 104, 31, TO_OWNERS), (1, False, 104, 0),
            (1, None, 104, 0), (1, True, 3328, 0),
            (3, True, 104, 1), (3, None, 104, 1), (3, False, 104, 0)):
        zero = {"stage": stage, "reduce_bucket_size": size} | (
            {} if overlap is None else {"overlap_comm": overlap}) | dict(*others)
        (folder / "ds.json").write_text(json.dumps({"zero_optimization": zero,
                                                    "bf16": {"enabled": True}}))
        q = asked(f"--params 3200 --ranks 13 --link 8 --latency 10 --compute 20 "
                  f"--deepspeed {folder}/ds.json")
        ms, = (times.step(q, q.cards[0], 13, beside) for beside in times.ways(q, q.cards[0]))
        if stage == 1:
            assert ms["messages hidden"] == pytest.approx(hidden * one, rel=0.02, abs=1e-9)
            assert ms["messages exposed"] > 32 * one
        else:
            assert (ms["messages hidden"] > one) == hidden


def test_hybrid_shards_and_a_near_gather(folder):
    """32 layers of 128 elements are cut among 4 of 16 ranks. These 4 send each other parts; once a
    step four replicas add up gradients. ZeRO++ gathers a layer again among 4 ranks."""
    words = "--params 4096 --ranks 16 --accumulate 3 --chapter"
    for chapter, backward in (("06", 6), ("05", 3), ("03", 2)):
        of, cut = rank(f"{words} {chapter} --shards 4"), 16 if chapter == "03" else 4
        between = 2 * 4096 // 4 * 3 // 4 * (cut == 4)
        assert of.elements["backward"] == backward * 4096 * (cut - 1) // cut + between
        layers = 32 * (backward + {"06": 3, "05": 1, "03": 0}[chapter] + 2 * (cut == 4))
        assert of.collectives == layers
    (folder / "ds.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": '
                                    '{"stage": 3, "zero_hpz_partition_size": 4}}')
    of = rank(f"{words} 06 --deepspeed {folder}/ds.json")
    assert of.elements["backward"] == 3 * (4096 * 15 // 16 + 4096 * 3 // 4)
    assert of.elements["forward"] == 4096 * 15 // 16 + 2 * 4096 * 3 // 4


def test_a_step_over_ranks(folder):
    """--scale takes one's own machine, and puts in brackets what does not fit. --draw makes a
    picture, --step_tokens fixes the tokens of a step."""
    (folder / "own.json").write_text('{"link": [100, "sold as"], "node_link": 100, "flops": 400, '
                                     '"gpu": "64GB"}')
    words = "--config llama3_8b --machine own.json --batch 1 --sequence 2048 --scale"
    out = printed(f"{words} --draw steps.svg", folder)
    rows = [line.split() for line in out.partition("ms of a step\n")[2].splitlines()]
    assert rows[0] == ["N", "A", *"03 03+ 04 04+ 05 05+ 06 07 08".split()]
    assert [row[0] for row in rows[1:12]] == [str(1 << power) for power in range(11)]
    q = asked(words.replace("own.json", f"{folder}/own.json"))
    ms = times.step(q, q.cards[1], 64, beside=True)["step"]
    assert rows[7][2].startswith("(") and rows[7][5] == f"{ms:.0f}*" and q.gpu == 64e9
    drawing = (folder / "steps.svg").read_text()
    assert drawing.count('stroke-dasharray="3 4"') > 20 and drawing.count(">07<") == 2
    assert "not said" not in out and "Adam on the GPU (--memory)" in " ".join(out.split())
    beside = printed(f"{words} --beside --step_tokens 131072", folder)
    rows = [line.split() for line in beside.partition("ms of a step\n")[2].splitlines()]
    assert rows[0][2:] == "03+ 04+ 05+ 06 07 08".split()
    assert [row[:2] for row in rows[1:8]] == [[str(1 << n), str(64 >> n)] for n in range(7)]
    assert rows[8] == []


@pytest.mark.parametrize("words, w, k, n, again, trained, adam", [
    ("", 2, 12, 1, 0, 1, 50), ("--recompute full", 2, 12, 1, 2, 1, 50),
    ("--dtype fp32", 4, 8, 2, 0, 1, 9), ("--trainable 50%", 2, 12, 1, 0, 0.5, 50)])
def test_the_terms_of_a_streamed_step(folder, words, w, k, n, again, trained, adam):
    """The times, by hand, of an 8B model in ms. A token takes 2 operations a weight in forward,
    without the embedding, and 2 s q for attention; as many to form a block again; in backward twice
    as many, or once for frozen weights. Adam moves 28 bytes a parameter, `adam` GB/s. w, k: bytes
    of a parameter and of its state; again: operations a weight to form a block again."""
    described(folder, LLAMA)
    said = printed(f"--config {folder} --ranks {n} --chapter 08 --sequence 2048 --batch 4 {words} "
                   f"--accumulate 4 --flops 80 --bus 25 --disk 5 --adam {adam}")
    parameters, head, attention = 8030261248, 128256 * 4096, 32 * 2 * 2048 * 4096
    of_rank, blocks = parameters / n, parameters - 2 * head - 4096
    tokens, each = 8192, 2 * (blocks + head) + attention
    forward = tokens * each / 80e9
    backward = tokens * (2 * (blocks + head) * (1 + trained) + 2 * attention
                         + again / 2 * (2 * blocks + attention)) / 80e9
    up, disk = w * of_rank / 25e6, k * of_rank * trained / 5e6
    by_adam = 28 * of_rank * trained / adam / 1e6
    told = [int(re.sub(r"\D", "", of)) for of in re.findall(
        r"\d[\d\s]*", said[said.index("a micro-batch of"):said.index("--state host")])]
    assert told == [*map(round, (
        tokens, forward, backward, up, up * trained, up * 80e9 / each, disk, disk,
        9 * disk * tokens / (forward + backward), by_adam))]
    step = re.search(r"takes ([\d\s]*) ms per step: computation ([\d\s]*) ms", said)
    step, computed = (int(re.sub(r"\D", "", of)) for of in step.groups())
    assert computed == round(4 * (forward + backward))
    # The next forward hides a part of the update. 1 to 2 % are not hidden: copies of the first two
    # layers and of the head, and the last gradients' way to the host. With --adam 9 the step is
    # longer, because the host adds up gradients for longer than backward lasts.
    least = computed + max(disk, by_adam) - forward
    assert adam == 9 or 1.01 * least < step < 1.02 * least


# Options of a small model, as a program takes them, and as the planner does.
SMALL = "--task llama --width 24 --heads 4 --hidden 40 --layers 3 --sequence 9 --batch 3"
MODELS = [("--task mlp --width 7 --layers 1", "--params 56 --layers 1"),
          ("--task text --width 16 --layers 2", "--params 4624 --layers 2 --largest_layer 4352"),
          ("--task toy --batch 3", "--params 70656 --layers 2 --largest_layer 65536"),
          (SMALL, "--config {} --sequence 9 --batch 3 --attention programs"),
          (f"{SMALL} --recompute",
           "--config {} --sequence 9 --batch 3 --attention programs --recompute full"),
          ("--task mlp --width 800 --layers 1 --batch 2", "--params 640800 --layers 1")]
INFINITY = ON_RANKS[-1]
GRID = [(chapter, dtype, *MODELS[(at + turn) % len(MODELS)], 1 + (at + turn) % 3, 1 + turn,
         2 - turn)
        for at, chapter in enumerate(ON_RANKS) for dtype in ("fp32", "bf16") for turn in range(3)
        if chapter in MIXED or dtype == "fp32"]
GRID += [(INFINITY, dtype, f"{MODELS[2][0]} {theirs}", f"{MODELS[2][1]} {ours}", ranks, micro, 1)
         for dtype, ranks, micro in (("fp32", 3, 2), ("bf16", 1, 3)) for theirs, ours in (
             ("--piece 999", "--piece 999"), ("--state host", "--chapter 08_state_host"))]


@pytest.mark.parametrize("point", GRID, ids=str)
def test_like_the_programs(programs, folder, point):
    """The planner's formulas and a run's predictions, written independently, agree."""
    chapter, dtype, theirs, ours, ranks, accumulate, prefetch = point
    described(folder, ("llama", 24, 40, 4, 2, 3, 256))
    mine = rank(f"--dtype {dtype} --ranks {ranks} --chapter {chapter} --accumulate {accumulate} "
                f"--prefetch {prefetch} {ours.format(folder)}")
    _, _, told = programs.logged(
        ranks, chapter, *theirs.split(), *own_options(chapter, dtype, prefetch), "--device", "cpu",
        "--steps", 1, "--accumulate", accumulate)
    kinds = [*mine.resident][:5 if "llama" in theirs else 4]  # it plans a llama's activations only
    assert {kind: (held := mine.resident[kind], held + mine.borrowed[kind]) for kind in kinds} == {
        kind: (told["memory"][kind]["predicted_resident"], told["memory"][kind]["predicted"])
        for kind in kinds}
    for of, figures in (
            (told.get("host_memory", {}), mine.on_host), (told.get("bus", {}), mine.copied),
            (told.get("disk_memory", {}), mine.on_disk), (told["traffic"]["phases"], mine.elements),
            (told.get("disk", {}), dict.fromkeys(("read", "write"), mine.disk))):
        assert {name: each["predicted"] for name, each in of.items() if each["predicted"]} == {
            name: figure for name, figure in figures.items() if figure}


@pytest.mark.parametrize("words, says", [
    ("--params 7.5e9 --ranks 64 --gpu 31GB", "Take 05_zero2 on 64 ranks of 31.00 GB: 17.57 GB per "
     "rank; 04_zero1 would need 31.87 GB, or 169 ranks."),
    ("--params 30e9 --ranks 2 --gpu 80GB --host 31GB", "2 ranks of 80.00 GB and 31.00 GB of host "
     "(08_infinity needs 60.04 GB of a rank's host): take 08_infinity on 4 ranks or more, 8.91 GB "
     "per rank, 30.04 GB on its host (120.15 GB for the 4 ranks of a machine) and"),
    # A layer's element takes 10 bytes: two slots of parameters and gradients, other ranks' shards.
    ("--params 30e9 --gpu 7GB", "even 06_zero3 keeps 9.37 GB on every rank; take larger GPUs or"),
    ("--params 1e9 --gpu 9GB --activations 9GB", "take larger GPUs or fewer activations."),
    ("--params 1e12 --gpu 9GB --chapter 04", "or smaller layers, or a later chapter."),
    ("--params 30e9 --gpu 80GB --host 9MB --chapter 08", "08_infinity needs more of the host."),
    ("--params 70e9 --gpu 80GB --ranks 64 --shards 8 --chapter 06",
     "06_zero3 reserves 161.33 GB; take more --shards, or larger GPUs."),
    *(("--params 1e9 --ranks 1 --layers 1 --chapter 05 --gpu 80GB --activations " + more, says) for
      more, says in (("67.8GB", "may fit in --gpu 80GiB."), ("67.9GB", "79.90 GB per rank.\n"))),
    ("--params 1e9 --layers 1 --gpu 16GB", "16.00 GB per rank, and no chapter sends less.")])
def test_what_is_advised(words, says):
    more = " --host_headroom 0%" * ("--host" in words)
    assert says in advice(asked(f"{words} --headroom 0%{more}")) + "\n"


def test_the_page(folder):
    """All that choosing.md and other pages show of the planner's answers is what it prints."""
    pages = "".join(page.read_text() for page in [*ROOT.glob("0*/*.md"), *ROOT.glob("notes/*.md")])
    shown = re.findall(r"```text\n\$ \./tutorial plan (.*)\n\n([^`]*)```", pages)
    assert shown == [(words, printed(words)) for words, _ in shown] and shown
    for made in (tables.fits, tables.published, tables.hybrid):
        assert f"<!-- measured: {made.__name__} -->\n\n{made(None)}\n\n<!-- end -->" in PAGE
    judged = re.findall(r"\| `(--params [^`]*)`: (.*) \|\n", PAGE)
    for words, figures in judged:
        told = set(re.split(r"[\s,;]+", printed(f"{words} --table")))
        assert set(re.findall(r"[\d.]*\d", figures)) <= told, words
    (folder / "ds_config.json").write_text(re.search(r"```json\n({\n.*?)```", PAGE, re.S)[1])
    described(folder, QWEN)
    both = PAGE + (ROOT / "08_infinity/README.md").read_text()
    shown = re.findall(r"`\./tutorial plan ([^`]*config[^`]*)`[^`]*```text\n(.*?)```", both, re.S)
    for words, text in shown:
        lines = iter(printed(words, folder).splitlines())
        assert not [line for line in text.splitlines() if line not in lines], "in this order"
    assert (len(judged), len(shown)) == (2, 4)


def test_frozen_parameters_have_bytes_and_traffic_of_their_own():
    """The plain answer tells trained and frozen parameters apart."""
    said = " ".join(printed("--params 7e9 --ranks 4 --trainable 0.5% --chapter 07").split())
    for words in ("4/N bytes per trained parameter and 2/N per frozen one: parameters 3.50 GB",
                  "14/N bytes per trained parameter and 0 per frozen one",
                  "3A elements per trained parameter and 2A per frozen one, each x (N - 1)/N"):
        assert words in said
    of = rank("--params 8e9 --ranks 4 --trainable 4e9 --accumulate 2 --fsdp full_shard")
    assert of.formulas["sent"] == ["1 + 2A", "2A"], "gradients once, parameters in each"


def test_every_key_of_the_page_is_known(folder):
    page = (ROOT / "notes/frameworks.md").read_text().split("| key | what it does")[1]
    keys = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) - {
        "zero_optimization", "offload_optimizer", "device", "pin_memory", "bf16"}
    anywhere = dict.fromkeys(keys - {"stage", "offload_param"}, "auto")
    (folder / "ds.json").write_text(json.dumps(anywhere | {
        "zero_optimization": anywhere | {
            "stage": 3, "cpu_offload": True, "offload_optimizer": anywhere | {"device": "cpu"}},
        "": {"\x1b": 1}, "bfloat16": {"enabled": True}, "zero_optimization.stage": 1,
        "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}))
    q = asked(f"--params 8e9 --ranks 4 --deepspeed {folder}/ds.json")
    unknown = {json.loads(name) for name in q.keys["unknown"]}
    assert not [key for key in keys if {
        key, f"zero_optimization.{key}", f"zero_optimization.offload_optimizer.{key}"} <= unknown]
    assert (q.cards[0].name, q.dtype, q.accumulate) == ("07_offload", "bf16", 4)
    assert "\x1b" not in printed(f"--params 8e9 --ranks 4 --deepspeed {folder}/ds.json --table")


# (wrong input, words of the sentence that refuses it).
BAD = [("", "--config, --params"), ("--params 7B", "--ranks, --gpu"), ("--params", "needs a value"),
       (f"{ANY} --gpu=--", "--gpu needs a value"),
       ("torchrun --x.yaml=3 --strange.yaml 1", "--config, --params"),
       (f"{ANY} --config c", "say --config or --params"), (f"{ANY} --foo", "--foo is no option"),
       (f"{ANY} --flops 80 --compute 5", "say --flops or --compute"),
       *((f"--params {text} --ranks 2", f"--params: {text}, 10 000 000 000 000")
         for text in ("7x", "0", "-1", "nan", "1e999", "7.5")),
       ("--params 7B --ranks 4097", "--ranks: 4097, 4 096"), (f"{ANY} --prefetch 3", "3, 0 to 2"),
       ("--params 1 --ranks 2", "1 parameter cannot be 32 layers"), (f"{ANY} --bus 0", "--bus: 0"),
       (f"{ANY} --largest_layer 100M", "8 000 000 000, 32 layers, 100 000 000"),
       ("--params 7B --gpu 80xb", "--gpu: 80xb, 80GB"), (f"{ANY} --dtype fp8", "fp8, fp32, bf16"),
       *((f"{ANY} --bytes {text}", f"--bytes: {text}, P,G,K") for text in ("2", "3,2,8", "2,2,17")),
       (f"{ANY} --bytes 2,2,8 --dtype bf16", "--bytes, --dtype"),
       *((f"{ANY} --optim {of}", f"{of}, --bytes") for of in ("adam_mini", "apollo_adamw", "muon")),
       (f"{ANY} --latency 9", "--latency needs --link"), (f"{ANY} --shards 2", "5 ranks, 2 that"),
       *((f"{ANY} --sequence 1000000 {more}", words) for more, words in (
           ("", "--sequence needs --batch"), ("--batch 9", "needs --width"),
           ("--batch 9 --activations 1GB", "say --sequence or --activations"),
           ("--batch 9 --width 9 --heads 9000", "fit nowhere"))),
       *((f"{ANY} --trainable {text}", words) for text, words in (
           ("0%", "0 trainable parameters, 8 000 000 000"), ("31", "31 trainable"),
           ("101%", "101%"), ("9e9", "9 000 000 000 of 8 000 000 000"))),
       *((f"{ANY} --gpu 24GB --headroom {text}", "--headroom") for text in ("24GB", "100%", "1")),
       (f"{ANY} --convention deepspeed --dtype fp32", "deepspeed, fp32"),
       (f"{ANY} --chapter 01_adam", "01_adam, 02_dist, zero3_offload"),
       (f"{ANY} --chapter 02", "02, bf16, fp32"), (f"{ANY} --write mpirun", "--gpu or --chapter"),
       ("--config llama3_8b --machine tpu", "tpu, h100, a100"),
       (f"{ANY} --scale", "--scale, --machine, --compute"),
       (f"{ANY} --link 100 --scale", "--scale, need computation"),
       (f"{ANY} --machine h100 --batch 2 --width 64 --heads 1 --sequence 64 --scale "
        "--step_tokens 300", "300, 128"),
       (f"{ANY} --node_link 100", "--node_link needs --link"),
       (f"{ANY} --compute 9 --scale --draw steps.png", "steps.png, .svg"),
       (f"{ANY} --write fsdp2 --chapter 05", "cannot say 05, 06_zero3"),
       (f"{ANY} --write fsdp2 --chapter 07", "cannot say 07, zero3_offload")]


@pytest.mark.parametrize("text, words", BAD)
def test_refused(text, words, code=2):
    with pytest.raises(Failure) as failure:
        written(asked(text))
    assert failure.value.code == code and len(str(failure.value)) < 300
    assert [word for word in words.split(", ") if word not in str(failure.value)] == []


def test_no_line_ends_in_a_traceback(folder):
    """Each line of random options, values and words is answered, or refused in a sentence."""
    described(folder, LLAMA)
    (folder / "a.yaml").write_text("deepspeed_config: {zero_stage: 3}\nfsdp: [full_shard]\n")
    seed = time.time_ns()
    values = [*map(str, (folder, folder / "a.yaml", folder / "config.json", seed)), *"0 8 -1 x 7B",
              *"80GB 5% true none auto zero2 full_shard fp32 nvme {} [1] - -- = a.b=c".split()]
    pick = random.Random(seed).choice
    for _ in range(3000):
        words = [*pick((["--ranks=8"], ["torchrun", "--gpu=80GB"], ["torchrun"])), "--params=7B"]
        for _ in range(pick(range(5))):
            name = flag(pick([*OWN, "tf32", "x.yaml"]))
            value = pick(values)
            words += pick(([name], [f"{name}={value}"], [name, value], [value]))
        try:
            q = question(words)
            plan.answer(q)
            assert [*told(q)]
        except Failure as failure:
            assert "\n" not in str(failure) and len(str(failure)) < 400, (seed, words)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {shlex.join(words)}") from error


@pytest.mark.parametrize("more, words", [
    ({"model_type": "gemmx"}, "gemmx, llama, qwen3"),  # which no transformers knows
    ({"hidden_size": "4096"}, 'hidden_size is "4096", whole number'),
    ({"num_key_value_heads": 3}, "32, multiple, 3"),
    ({"mlp_bias": 1}, "mlp_bias is 1, not one of false, true")])
def test_no_model(folder, more, words):
    described(folder, LLAMA, **more)
    test_refused(f"--config {folder} --ranks 2", words, 3)


@pytest.mark.parametrize("text, words", [
    ('{"speed": 1}', "speed, flops"), ('{"flops": "fast"}', "fast, a number"),
    ('{"flops": [0]}', "own.json, flops: 0"), ('{"gpu": {}}', "gpu: {}"), ("[]", "JSON"),
    ("{}", "no flops"), ('{"flops": 400, "link": 92}', "no node_link"), ('{"gpu": null}', "null")])
def test_no_machine(folder, text, words):
    (folder / "own.json").write_text(text)
    test_refused(f"{ANY} --machine {folder}/own.json", words, 3)


BEGIN = '{"bf16": {"enabled": true}, "zero_optimization": {'


@pytest.mark.parametrize("text, words", [
    ("", "no JSON"), ("[" * 60000, "JSON"), ('{"zero_optimization": 2}', "optimization is 2"),
    (" " * 99999, "65 536"), (BEGIN + '"stage": 4}}', "stage is 4"),
    (BEGIN + '"offload_optimizer": {"device": "tpu"}}}', "tpu, nvme"),
    (BEGIN + '"stage": 2, "offload_param": "cpu"}}', 'is "cpu", a section'),
    (BEGIN + '"stage": 2, "offload_optimizer": {"ratio": 0.5}}}', "ratio is 0.5, at stage 3"),
    (BEGIN + '"stage": 2, "reduce_bucket_size": 1e400}}', "size is Infinity, whole number"),
    (BEGIN + '"stage": 2, "reduce_bucket_size": 1e-9}}', "size is 1e-09, whole number"),
    (BEGIN + '"stage": 1}, "optimizer": {"type": "OneBitAdam"}}', "ZeRO: DeepSpeed stops"),
    (BEGIN + '}, "fp16": true}', "fp16 is true, not a section"),
    (BEGIN + '}, "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, '
     '"gradient_accumulation_steps": 8}', "256, 4, 8, 5 ranks = 160; DeepSpeed stops"),
    (BEGIN + '}, "fp16": {"enabled": true}}', "bf16.enabled"),
    (BEGIN + '}, "optimizer": {"type": "SGD"}}', 'type is "SGD", not an Adam'),
    (BEGIN + '}, "optimizer": {"type": 3}}', "type is 3, not an Adam"),
    (BEGIN + '}, "train_batch_size": 15, "train_micro_batch_size_per_gpu": 2}', "15, multiple, 10"),
    (BEGIN + '}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 0}', "gpu is 0, above 0"),
    (BEGIN + '"reduce_bucket_size": -1}}', "size is -1, above 0"),
    (BEGIN + '}, "gradient_accumulation_steps": 1e9}', "steps is 1000000000, 65 536")],
    ids=lambda text: text[-40:])
def test_no_configuration(folder, text, words):
    (folder / "ds.json").write_text(text)
    test_refused(f"{ANY} --deepspeed {folder}/ds.json", words, 3)


def test_from_outside(folder):
    """The script finds the caller's files, needs no compiler, and prints at most 80 columns."""
    for words, code in (("--config none.json --ranks 2", 3), (f"{ANY} --deepspeed /dev/zero", 3),
                        (f"{ANY} --fsdp full_shard --fsdp_config none.json", 3),
                        ("--params 70B --ranks 1 --gpu 9GB --write mpirun", 6), ("", 2)):
        assert re.fullmatch("plan: [^\n]+\n", printed(words, folder, code))
    helped = printed("--help")
    assert all(f"--{name}" in helped for name in OWN if len(name) > 2)
    assert max(map(len, (helped + printed(f"{ANY} --table")).splitlines())) <= 80
    exact = json.loads(printed(f"{ANY} --json"))["05_zero2"]["held throughout"]
    assert (exact["resident"], exact["of it saved"]) == (38_400_000_000, "70.00 %")  # of 128 GB
