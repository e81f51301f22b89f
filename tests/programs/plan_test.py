# SPDX-License-Identifier: MIT
"""The planner: published figures, plans that are no chapter, others' files in and out, the page,
refusals; and on models that the programs run their own predictions."""
import ast
import json
import math
import re
import shlex
import subprocess

import pytest
from programs import MIXED, ON_RANKS, ROOT, own_options

import plan
import tables
from runs import Failure

PAGE = (ROOT / "notes/choosing.md").read_text()
ANY = "--params 8e9 --ranks 5"


def asked(words):
    q = plan.question(shlex.split(words))
    plan.answer(q)
    return q


def rank(words):
    """Of the one plan that is asked about."""
    return asked(words).plans[0]


def printed(words, cwd=None, code=0):
    done = subprocess.run([str(ROOT / "tutorial"), "plan", *shlex.split(words)], cwd=cwd,
                          capture_output=True, text=True)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


# Table 1 of arXiv 1910.02054v3, in GB, by ranks: of three models, of each stage 1, 2, 3.
CELLS = {1: "120 120 120 2048 2048 2048 16000 16000 16000",
         4: "52.5 41.3 30 896 704 512 7000 5500 4000",
         16: "35.6 21.6 7.5 608 368 128 4750 2875 1000",
         64: "31.4 16.6 1.88 536 284 32 4187 2218 250",
         256: "30.4 15.4 0.47 518 263 8 4046 2054 62.5",
         1024: "30.1 15.1 0.12 513 257 2 4011 2013 15.6"}


@pytest.mark.parametrize("ranks", CELLS)
def test_the_papers_table(ranks):
    """The first model's cells are rounded, the others' are cut off."""
    for model, cells in zip(("7.5e9", "128e9", "1e12"), zip(*[iter(CELLS[ranks].split())] * 3)):
        for cell, stage in zip(cells, asked(f"--params {model} --ranks {ranks}").plans[1:4]):
            decimals = len(cell.partition(".")[2])
            shown = (round if model == "7.5e9" else math.floor)(stage.held / 1e9 * 10 ** decimals)
            assert f"{shown / 10 ** decimals:.{decimals}f}" == cell


# Of 03 to 07 on the device, of 07 and 08 on the host, of 08 on the disk. Of Megatron-LM's page all
# three rows.
@pytest.mark.parametrize("words, formulas", [
    ("", "16|4 + 12/N|2 + 14/N|16/N|4/N|14/N|4/N|12/N"),
    ("--dtype fp32", "16|8 + 8/N|4 + 12/N|16/N|8/N|16/N|8/N|8/N"),
    ("--convention megatron --dtype fp16", "20|4 + 16/N|2 + 18/N|20/N|4/N|18/N|4/N|16/N"),
    ("--convention megatron", "18|6 + 12/N|2 + 16/N|18/N|6/N|16/N|6/N|12/N"),
    ("--convention megatron --dtype fp32", "16|8 + 8/N|4 + 12/N|16/N|8/N|12/N|8/N|8/N"),
    ("--convention deepspeed", "20|4 + 16/N|2 + 18/N|18/N|6/N|16/N|6/N|12/N"),
    ("--bytes 2,2,8", "12|4 + 8/N|2 + 10/N|12/N|4/N|10/N|4/N|8/N"),
    ("--bytes 4,4,8", "16|8 + 8/N|4 + 12/N|16/N|8/N|12/N|8/N|8/N")])
def test_conventions(words, formulas):
    """And DeepSpeed's estimators; and whose ratio of optimizer state and parameters it is."""
    q = asked(f"{ANY} {words}")
    told = [plan.state_formula(q, plan.PLANS[str(n)], *place) for n, *place in (
        *zip(range(3, 8)), (7, plan.HOST), (8, plan.HOST), (8, plan.DISK))]
    assert "|".join(told) == formulas and plan.state_formula(q, plan.PLANS["8"]) == "0"
    (p, _, k), first = plan.costs(q, q.cards[0]), q.plans[0]
    assert first.sent == p * sum(first.elements.values())
    assert plan.RATIOS[k / p] in " ".join(printed(f"{ANY} {words} --table").split())
    if "deepspeed" in words:
        one = f"--params 1024 --layers 1 --ranks 4 {words} --chapter"
        assert rank(f"{one} 05").reserved == 2 * 1024 + 18 * 1024 / 4
        assert rank(f"{one} 06").reserved == 18 * 1024 / 4 + 4 * 1024


# In GB, of 8 billion parameters on 5 ranks: held by kind; on the disk; on the host, of 08 with 3
# pieces of 2^20 elements; sent, copied down and up.
OFFLOADED = {"zero1_offload": (16, 16, 0, 0, 22.4, 25.6, 3.2, 3.2),
             "zero2_offload": (16, 3.2, 0, 0, 22.4, 25.6, 3.2, 3.2),
             "07_offload": (3.2, 3.2, 0, 0, 22.4, 38.4, 3.2, 3.2),
             "08_infinity": (0, 0, 0, 19.2, 6.437748736, 38.4, 3.2, 6.4),
             "zero3_offload": (0, 0, 0, 0, 25.6, 38.4, 3.2, 6.4)}


@pytest.mark.parametrize("name", OFFLOADED)
def test_offloaded(name):
    of = rank(f"{ANY} --chapter {name}")
    figures = *of.resident.values(), of.disk, of.host, of.sent, *of.copied.values()
    assert tuple(bytes_ / 1e9 for bytes_ in figures[:3] + figures[5:]) == OFFLOADED[name]
    # 16 micro-batches: parameters that lie on the host come up for 32 gathers, gradients go down 16
    # times; with gradients twice as large.
    streams = name in ("08_infinity", "zero3_offload")
    of = rank(f"{ANY} --chapter {name} --bytes 2,4,12 --accumulate 16")
    assert (*of.copied.values(), of.on_host["communication"]) == (
        (16 * 6.4e9, 32 * 3.2e9, 2 * 6.4e9 / 32) if streams else (6.4e9, 3.2e9, 6.4e9))
    assert plan.ZERO3.offloaded("07_offload") == plan.PLANS["07"], "so a chapter is offloaded"


def test_an_articles_file(folder):
    (folder / "ds_config.json").write_text("""{"zero_optimization": {
        "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "allgather_partitions": true, "allgather_bucket_size": 2e8, "reduce_scatter": true,
        "reduce_bucket_size": 2e8, "overlap_comm": true}, "bf16": {"enabled": true},
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}""")
    q = asked(f"{ANY} --deepspeed {folder}/ds_config.json --dtype fp32 --chapter 04")
    assert (q.cards[0].name, q.dtype) == ("04_zero1", "fp32"), "the command line is stronger"
    out = printed(f"{ANY} --gpu 44GB --deepspeed ds_config.json", folder)
    assert all(words in out for words in (
        "Take zero2_offload", "parameters 16.00 GB", "sends 25.60 GB", "3.20 GB less here",
        "buckets of 400.00 MB: 80 messages"))


@pytest.mark.parametrize("told", [
    "cpu none 07_offload", "cpu cpu zero3_offload", "cpu nvme zero3_offload disk",
    "nvme nvme 08_infinity disk", "nvme cpu 08_infinity", "nvme none 08_infinity GPU"])
def test_offload_in_a_configuration(folder, told):
    """With all the keys of a disk; what stays with the host here is said, w P/N bytes."""
    optimizer, param, name, *where = told.split()
    keys = {"nvme_path": "/disk", "pin_memory": True, "buffer_count": 4}
    (folder / "ds.json").write_text(json.dumps({
        "aio": {"queue_depth": 8}, "bf16": {"enabled": True}, "zero_optimization": {
            "stage": 3, "sub_group_size": 2e6, "offload_optimizer": {"device": optimizer, **keys},
            "offload_param": {"device": param, "max_in_cpu": 1e9, **keys}}}))
    words = f"{ANY} --deepspeed {folder}/ds.json"
    q, said = asked(words), printed(words)
    assert (q.cards[0].name, q.piece) == (name, 2000000) and "nothing here" not in said
    assert re.findall("stay with the host, 3.20 GB; DeepSpeed has them on the (.*)", said) == where


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_written_and_read(dtype, folder):
    told_apart = {str(card.held): card for card in reversed(plan.CHAPTERS[1:] + plan.MADE)}
    for card in told_apart.values():  # it knows a plan by what is held: the first of those alike
        words = f"{ANY} --chapter {card.name} --dtype {dtype} --accumulate 4 --piece 9"
        (folder / "ds.json").write_text(plan.written(asked(f"{words} --write deepspeed")))
        q = asked(f"{ANY} --deepspeed {folder}/ds.json")
        assert ("/var/tmp" in (folder / "ds.json").read_text()) == (card.name == "08_infinity")
        assert (q.cards, q.dtype, q.accumulate) == ([card], dtype, 4)
        assert (q.piece == 9) == (card.name == "08_infinity")


def test_six_lines_and_a_command(programs):
    for name, offloads in (("06", False), ("zero3_offload", True)):
        out = printed(f"{ANY} --chapter {name} --write fsdp2")
        calls = [node.func.id for node in ast.walk(ast.parse(out)) if isinstance(node, ast.Call)]
        assert (out.count("\n"), calls.count("fully_shard")) == (6, 2)
        assert ("CPUOffloadPolicy" in calls) == offloads
    for asks, name, last in (("--gpu 44GB", "05_zero2", "1"),
                             ("--chapter 08 --piece 999", "08_infinity", "999")):
        _, _, ranks, program, *words = printed(f"{ANY} {asks} --write mpirun").split()
        assert (program, words[-1]) == (f"build/{name}/{name}", last)
        assert programs.run(0, name, "--plan", "--ranks", ranks, *words).code == 0


def described(folder, values, **more):
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
    (LLAMA, {"attention_bias": True, "mlp_bias": True}, 8030261248 + 32 * (10240 + 32768))])
def test_published_models(folder, values, more, parameters):
    described(folder, values, **more)
    assert asked(f"--config {folder} --ranks 2").parts == [parameters]


def test_flags_of_others(folder):
    described(folder, QWEN)
    own = (f"--config {folder} --batch 2 --accumulate 8 --dtype fp16 --sequence 512 --ranks 4 "
           "--recompute full --chapter zero2_offload")
    theirs = (f"--model {folder} --model_type qwen3 --per_device_train_batch_size 2 --fp16 true "
              "--gradient_accumulation_steps 8 --max_length=512 --gradient_checkpointing true "
              "--bf16 false --nproc_per_node 4 --deepspeed zero2_offload")
    one, other = ((q.dtype, q.batch, vars(q.plans[0])) for q in map(asked, (own, theirs)))
    assert one == other


def test_activations():
    """5 a s / h is 80 in GPT-3, by section 4 of arXiv 2205.05198."""
    for how, each in (("none", 2 * (34 + 80)), ("attention", 2 * 34), ("full", 2 * 2 + 34 + 80)):
        q = asked("--params 1e9 --layers 2 --ranks 1 --sequence 2048 --batch 3 --width 12288 "
                  f"--heads 96 --recompute {how}")
        assert q.activations == 2048 * 3 * 12288 * each


def test_frozen_parameters():
    """On 4 ranks the trained 50, 25, 25 are padded to 64, 32, 32 = t, the frozen 450, 225, 225 to
    480, 256, 256 = f. Sent are 3/4 of t and f so often: forward, backward, update."""
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
    """There it fits, and on none fewer; where there is none, what every rank keeps is too much."""
    for words in ("--gpu 80GB", "--gpu 24GB --host 20GB --convention deepspeed",
                  "--gpu 70.5GB --headroom 2GB --activations 3GB"):
        q = asked(f"--params 9e9 {words}")
        assert q.headroom == (2e9 if "headroom" in words else q.gpu / 20)
        for of in q.plans:
            on = (plan.Rank(q, of.card, n) for n in range(1, 400))
            found = next((n for n, each in enumerate(on, 1) if each.host <= (q.host or 1e18)
                          and each.reserved + q.headroom <= q.gpu), None)
            assert of.fewest == found and (found or of.every > q.gpu - q.headroom)


def test_a_steps_time():
    """32 layers of 100, padded to 104 on 13 ranks, at 1 byte a nanosecond and 10 microseconds."""
    words, one = "--params 3200 --ranks 13 --accumulate 2 --link 8 --latency 10", 12 * 10.016e-3
    for chapter, times in (("04", 2), ("05", 3), ("06", 6), ("07", 6)):
        ms = rank(f"{words} --chapter {chapter} --compute 20 --bus 1e-3").ms
        whole, copies = 32 * times * one + one, 1.024 * (chapter == "07")  # and the step's two sums
        beside = max(whole, one + 20) if times == 6 else whole + 20
        assert list(ms.values()) == pytest.approx([whole, copies, 0, whole + copies + 20, beside])
        ms = rank(f"{words} --chapter {chapter} --compute 20 --prefetch 0").ms
        assert ms["step at best"] == ms["step at most"]
    out = " ".join(printed(f"{words} --chapter ddp --bucket 25MiB").split())
    assert "buckets of 26.21 MB: 2 messages to each rank with 0.24 ms of latency" in out
    assert "a copy of all gradients, 6.66 kB" in out


@pytest.mark.parametrize("words, w, k, n, again, trained, adam", [
    ("", 2, 12, 1, 0, 1, 50), ("--recompute full", 2, 12, 1, 2, 1, 50),
    ("--dtype fp32", 4, 8, 2, 0, 1, 9), ("--trainable 50%", 2, 12, 1, 0, 0.5, 50)])
def test_the_terms_of_a_streamed_step(folder, words, w, k, n, again, trained, adam):
    """An 8B model, by hand, in ms. A token takes 2 operations a parameter forward, as many to form
    it again, 4 backward, or 2 of a frozen parameter; Adam moves 28 bytes a parameter."""
    described(folder, LLAMA)
    said = printed(f"--config {folder} --ranks {n} --chapter 08 --sequence 2048 --batch 4 {words} "
                   f"--accumulate 4 --flops 80 --bus 25 --disk 5 --adam {adam}").split("takes ")[1]
    each, of_rank = 8030261248 / 80e9, 8030261248 / n
    forward, backward = 8192 * 2 * each, 8192 * (2 + again + 2 * trained) * each
    up, disk = w * of_rank / 25e6, k * of_rank * trained / 5e6
    down, update = up * trained, max(disk, by_adam := 28 * of_rank * trained / adam / 1e6)
    computed, copied = 4 * (forward + backward), 4 * (2 * up + down)
    told = [int(re.sub(r"\D", "", of)) for of in re.findall(r"\d[\d\s]*", said)]
    assert told[:-2] == [*map(round, (  # which are how much of the host --state host takes
        copied, update, computed + copied + update, max(computed, copied) + update - forward,
        8192, forward, backward, up, down, w * 80e12 / (2 * 25e9 * n),
        disk, disk, 9 * disk / ((4 + again + 2 * trained) * each), by_adam))]


# As a program takes it, and as the planner does.
SMALL = "--task llama --width 24 --heads 4 --hidden 40 --layers 3 --sequence 9 --batch 3"
MODELS = [("--task mlp --width 7 --layers 1", "--params 56 --layers 1"),
          ("--task text --width 16 --layers 2", "--params 4624 --layers 2 --largest_layer 4352"),
          ("--task toy --batch 3", "--params 70656 --layers 2 --largest_layer 65536"),
          (SMALL, "--config {} --sequence 9 --batch 3"),
          (f"{SMALL} --recompute", "--config {} --sequence 9 --batch 3 --recompute full"),
          ("--task mlp --width 800 --layers 1 --batch 2", "--params 640800 --layers 1")]
INFINITY = ON_RANKS[-1]
GRID = [(chapter, dtype, *MODELS[(at + turn) % len(MODELS)], 1 + (at + turn) % 3, 1 + turn,
         2 - turn)
        for at, chapter in enumerate(ON_RANKS) for dtype in ("fp32", "bf16") for turn in range(3)
        if chapter in MIXED or dtype == "fp32"]
GRID += [(INFINITY, dtype, f"{MODELS[2][0]} {theirs}", f"{MODELS[2][1]} {ours}", ranks, micro, 1)
         for dtype, ranks, micro in (("fp32", 3, 2), ("bf16", 1, 3)) for theirs, ours in (
             ("--piece 999", "--piece 999"), ("--state host", "--chapter zero3_offload"))]


@pytest.mark.parametrize("point", GRID, ids=str)
def test_like_the_programs(programs, folder, point):
    """Two formulas that know nothing of each other: the planner's, and what a run predicts."""
    chapter, dtype, theirs, ours, ranks, accumulate, prefetch = point
    described(folder, ("llama", 24, 40, 4, 2, 3, 256))
    mine = rank(f"--dtype {dtype} --ranks {ranks} --chapter {chapter} --accumulate {accumulate} "
                f"--prefetch {prefetch} {ours.format(folder)}")
    _, _, told = programs.logged(
        ranks, chapter, *theirs.split(), *own_options(chapter, dtype, prefetch), "--device", "cpu",
        "--steps", 1, "--accumulate", accumulate)
    kinds = [*mine.resident][:5 if "llama" in theirs else 4]  # of others it has no activations
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
    ("--params 30e9 --ranks 2 --gpu 80GB --host 31GB", "2 ranks of 80.00 GB and 31.00 GB "
     "of host: take 08_infinity on 4 ranks or more, 8.91 GB per rank, 30.04 GB on its host and"),
    # 8 bytes an element of a layer: two of parameters, two of gradients.
    ("--params 30e9 --gpu 7GB", "even 06_zero3 keeps 9.37 GB on every rank; take larger GPUs or"),
    ("--params 1e9 --gpu 9GB --activations 9GB", "take larger GPUs or fewer activations."),
    ("--params 1e12 --gpu 9GB --chapter 04", "or smaller layers, or a later chapter."),
    ("--params 30e9 --gpu 80GB --host 9MB --chapter 08", "08_infinity needs more of the host."),
    ("--params 1e9 --layers 1 --gpu 16GB", "16.00 GB per rank, and no chapter sends less.")])
def test_what_is_advised(words, says):
    assert says in plan.advice(asked(f"{words} --headroom 0%"))


def test_the_page(folder):
    """Every figure of it that the planner makes, and what other pages show."""
    pages = "".join(page.read_text() for page in [*ROOT.glob("0*/*.md"), *ROOT.glob("notes/*.md")])
    shown = re.findall(r"```text\n\$ \./tutorial plan (.*)\n\n([^`]*)```", pages)
    assert shown == [(words, printed(words)) for words, _ in shown] and shown
    assert f"<!-- measured: fits -->\n\n{tables.fits(None)}\n\n<!-- end -->" in PAGE
    judged = re.findall(r"\| `(--params [^`]*)`: (.*) \|\n", PAGE)
    for words, figures in judged:
        told = set(re.split(r"[\s,;]+", printed(f"{words} --table")))
        assert set(re.findall(r"[\d.]*\d", figures)) <= told, words
    (folder / "ds_config.json").write_text(re.search(r"```json\n(.*?)```", PAGE, re.S)[1])
    described(folder, QWEN)
    both = PAGE + (ROOT / "08_infinity/README.md").read_text()
    shown = re.findall(r"`\./tutorial plan ([^`]*config[^`]*)`[^`]*```text\n(.*?)```", both, re.S)
    for words, text in shown:
        lines = iter(printed(words, folder).splitlines())
        assert not [line for line in text.splitlines() if line not in lines], "in this order"
    assert (len(judged), len(shown)) == (6, 3)


def test_frozen_parameters_have_bytes_and_traffic_of_their_own():
    """In the plain answer."""
    said = " ".join(printed("--params 7e9 --ranks 4 --trainable 0.5% --chapter 07").split())
    for words in ("4/N bytes per trained parameter and 2/N per frozen one: parameters 3.50 GB",
                  "14/N bytes per trained parameter and 0 per frozen one",
                  "3A elements per trained parameter and 2A per frozen one, each x (N - 1)/N"):
        assert words in said


def test_every_key_of_the_page_is_known(folder):
    page = (ROOT / "notes/frameworks.md").read_text().split("| key | what it does")[1]
    keys = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) - {
        "zero_optimization", "offload_optimizer", "device", "pin_memory", "bf16"}
    anywhere = dict.fromkeys(keys - {"stage"}, "auto")
    (folder / "ds.json").write_text(json.dumps(anywhere | {
        "zero_optimization": anywhere | {
            "stage": 3, "cpu_offload": True, "offload_optimizer": anywhere | {"device": "cpu"}},
        "": {"\x1b": 1}, "bfloat16": {"enabled": True}, "zero_optimization.stage": 1,
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4}))
    q = asked(f"--params 8e9 --ranks 4 --deepspeed {folder}/ds.json")
    unknown = {json.loads(name) for name in q.keys["unknown"]}
    assert not [key for key in keys if {
        key, f"zero_optimization.{key}", f"zero_optimization.offload_optimizer.{key}"} <= unknown]
    assert (q.cards[0].name, q.dtype, q.accumulate) == ("07_offload", "bf16", 4)
    assert "\x1b" not in printed(f"--params 8e9 --ranks 4 --deepspeed {folder}/ds.json --table")


# What is asked, and words of the sentence.
BAD = [("", "--config, --params"), ("--params 7B", "--ranks, --gpu"), ("--params", "needs a value"),
       (f"{ANY} --config c", "--config says what --params"), (f"{ANY} --foo", "--foo is no option"),
       (f"{ANY} --flops 80 --compute 5", "--flops says what --compute"),
       *((f"--params {text} --ranks 2", f"--params: {text}, 10 000 000 000 000")
         for text in ("7x", "0", "-1", "nan", "1e999", "7.5")),
       ("--params 7B --ranks 4097", "--ranks: 4097, 4 096"), (f"{ANY} --prefetch 3", "3, 0 to 2"),
       ("--params 1 --ranks 2", "1 parameter cannot be 32 layers"), (f"{ANY} --bus 0", "--bus: 0"),
       (f"{ANY} --largest_layer 100M", "8 000 000 000, 32 layers, 100 000 000"),
       ("--params 7B --gpu 80gb", "--gpu: 80gb, 80GB"), (f"{ANY} --dtype fp8", "fp8, fp32, bf16"),
       *((f"{ANY} --bytes {text}", f"--bytes: {text}, P,G,K") for text in ("2", "3,2,8", "2,2,17")),
       (f"{ANY} --bytes 2,2,8 --dtype bf16", "--bytes, --dtype"),
       *((f"{ANY} --sequence 1000000 {more}", words) for more, words in (
           ("", "--sequence needs --batch"), ("--batch 9", "needs --width"),
           ("--batch 9 --activations 1GB", "--sequence says what --activations"),
           ("--batch 9 --width 9 --heads 9000", "fit nowhere"))),
       *((f"{ANY} --trainable {text}", words) for text, words in (
           ("101%", "101%"), ("31", "31 trainable"), ("9e9", "9 000 000 000 trainable"))),
       *((f"{ANY} --gpu 24GB --headroom {text}", "--headroom") for text in ("24GB", "100%", "1")),
       (f"{ANY} --convention deepspeed --dtype fp32", "deepspeed, 16 bit"),
       (f"{ANY} --chapter 01_adam", "01_adam, 02_dist, zero3_offload"),
       (f"{ANY} --chapter 02", "02, bf16, fp32"), (f"{ANY} --write mpirun", "--gpu or --chapter"),
       (f"{ANY} --write fsdp2 --chapter 05", "cannot say 05, 06_zero3"),
       (f"{ANY} --write fsdp2 --chapter 07", "cannot say 07, zero3_offload")]


@pytest.mark.parametrize("text, words", BAD)
def test_refused(text, words, code=2):
    with pytest.raises(Failure) as failure:
        plan.written(asked(text))
    assert failure.value.code == code and len(str(failure.value)) < 300
    assert [word for word in words.split(", ") if word not in str(failure.value)] == []


@pytest.mark.parametrize("more, words", [
    ({"num_experts": 128}, "num_experts is 128, experts, another rank, --trainable"),
    ({"model_type": "gemma"}, "gemma, llama, qwen3"), ({"vocab_size": None}, "vocab_size is null"),
    ({"hidden_size": "4096"}, 'hidden_size is "4096", whole number'),
    ({"num_key_value_heads": 3}, "32, multiple, 3"), ({"hidden_size": 4097}, "head_dim is null"),
    ({"mlp_bias": 1}, "mlp_bias is 1, a boolean")])
def test_no_model(folder, more, words):
    described(folder, LLAMA, **more)
    test_refused(f"--config {folder} --ranks 2", words, 3)


BEGIN = '{"bf16": {"enabled": true}, "zero_optimization": {'


@pytest.mark.parametrize("text, words", [
    ("", "no JSON"), ("[" * 60000, "JSON"), ("{}", "zero_optimization is null"),
    (" " * 99999, "65 536"), (BEGIN + '"stage": 4}}', "stage is 4"),
    (BEGIN + '"offload_optimizer": {"device": "tpu"}}}', "tpu, nvme"),
    (BEGIN + '"stage": 2, "offload_param": {"device": "cpu"}}}', "offload_param, stage but 3"),
    (BEGIN + '"stage": 3, "offload_param": {"device": "cpu"}}}', "offload_param, nor without"),
    (BEGIN + '}, "fp16": {"enabled": true}}', "bf16.enabled"),
    (BEGIN + '}, "optimizer": {"type": "SGD"}}', 'type is "SGD", not an Adam'),
    (BEGIN + '}, "optimizer": {"type": 3}}', "type is 3, not an Adam"),
    (BEGIN + '}, "train_batch_size": 15, "train_micro_batch_size_per_gpu": 2}', "steps is 1.5"),
    (BEGIN + '}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 0}', "gpu is 0, above 0"),
    (BEGIN + '"reduce_bucket_size": -1}}', "size is -1, above 0"),
    (BEGIN + '}, "gradient_accumulation_steps": 1e9}', "steps is 1000000000.0, 65536")],
    ids=lambda text: text[-40:])
def test_no_configuration(folder, text, words):
    (folder / "ds.json").write_text(text)
    test_refused(f"{ANY} --deepspeed {folder}/ds.json", words, 3)


def test_from_outside(folder):
    """The script finds the caller's files and needs no compiler; codes; 80 columns."""
    for words, code in (("--config none.json --ranks 2", 3), (f"{ANY} --deepspeed /dev/zero", 3),
                        ("--params 70B --ranks 1 --gpu 9GB --write mpirun", 6), ("", 2)):
        assert re.fullmatch("plan: [^\n]+\n", printed(words, folder, code))
    helped = printed("--help")
    assert all(f"--{name}" in helped for name in plan.TAKES)
    assert max(map(len, (helped + printed(f"{ANY} --table")).splitlines())) <= 80
    exact = json.loads(printed(f"{ANY} --json"))["05_zero2"]["held throughout"]
    assert exact["resident"] == 38_400_000_000 > exact["parameters"]
