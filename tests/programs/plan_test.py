# SPDX-License-Identifier: MIT
"""The planner from outside: on models that the programs run it says what they say and what they
count, to the byte and the element; it fits the page, and what is wrong it refuses in a sentence.
"""
import json
import re
import shlex

import pytest
from programs import MIXED, ON_RANKS, ROOT, own_options

import tables

CARDS = {card["name"]: card for card in json.loads((ROOT / "notes/cards.json").read_text())}
PHASES = ("forward", "backward", "update")
MODELS = ("--task text --width 16 --layers 2 --batch 5", "--task mlp --width 7 --layers 3",
          "--task toy --batch 3")
ANY = "--params 7.5e9 --ranks 64"
# What is asked, the exit code and the words of the sentence.
BAD = [("", 2, "--params, --task"), ("--params 7B", 2, "--ranks, --card"),
       ("--params 7B --task mlp --ranks 2", 2, "--params, --task, not both"),
       (f"{ANY} --bytes ''", 2, "--bytes needs a value"),
       ("--params 7.5 --ranks 2", 2, "7.5, whole number"),
       *((f"--params {text} --ranks 2", 2, f"--params, {text}, 10 000 000 000 000")
         for text in ("7x", "0", "-1", "nan", "inf", "2e13", "1e999")),
       ("--params 7B --ranks 4097", 2, "--ranks, 4097, 4096"),
       ("--params 1 --ranks 2", 2, "1 parameter cannot fill 32 layers"),
       ("--params 1 --ranks 2 --layers 1 --largest-layer 5", 2, "1 parameter cannot be 1 layer"),
       ("--params 7B --ranks 2 --largest-layer 100M", 2, "7 000 000 000, 32 layers, 100 000 000"),
       ("--params 7B --card 80gb", 2, "--card, 80gb, 80GB"),
       (f"{ANY} --convention theirs", 2, "theirs, paper, deepspeed"),
       *((f"{ANY} --bytes {text}", 2, f"--bytes, {text}, P,G,K")
         for text in ("2", "3,2,8", "2,2,17", "2,2,8,1", "2,-2,8", "2,2,-8")),
       (f"{ANY} --bytes 2,2,8 --dtype bf16", 2, "--bytes, --dtype"),
       (f"{ANY} --batch 4", 2, "--batch, --task, --sequence"),
       *((f"{ANY} --sequence 9 --heads 2 --width 8 {more}", 2, words) for more, words in (
           ("", "--sequence needs --batch"), ("--batch 1 --recompute half", "half, none, full"),
           ("--activations 1GB", "says what --sequence"), ("--batch 1 --dtype fp32", "16 bit"))),
       (f"{ANY} --sequence 1M --heads 1K --width 65536 --batch 65536", 2, "bytes of activations"),
       *((f"{ANY} --trainable {text}", 2, words) for text, words in (
           ("101%", "--trainable, 101%"), ("31", "31 trainable"), ("7499999999", "1 frozen"))),
       *((f"{ANY} --card 24GB --headroom {text}", 2, f"--headroom, {text}, 4GB or 5%")
         for text in ("24GB", "100%", "1")),
       (f"{ANY} --convention deepspeed --dtype fp32", 2, "deepspeed, fp32"),
       (f"{ANY} --deepspeed /dev/zero", 3, "cannot read /dev/zero"),
       ("--config none.json --ranks 2", 3, "none.json, No such file"),
       (f"{ANY} --config none.json", 2, "--config says what --params"),
       ("--task mlp --ranks 2 --bytes 2,2,8", 2, "--bytes, --params"),
       (f"{ANY} --host 80GB", 2, "--host, --card"),
       ("--params 7B --card 80GB --host 80", 2, "--host, 80, 80GB"),
       (f"{ANY} --bus 0", 2, "--bus, 0"), (f"{ANY} --link 1e-4", 2, "--link, from 0.001 to 1e9"),
       (f"{ANY} --latency 5", 2, "--latency, --link"),
       (f"{ANY} --chapter 01_adam", 2, "01_adam, 02_distributed_adam, 06_zero3"),
       (f"{ANY} --chapter 02_distributed_adam", 2, "02_distributed_adam, bf16, fp32"),
       (f"{ANY} --prefetch 3", 2, "--prefetch, 3"), (f"{ANY} --foo", 2, "--foo"),
       ("--task text --width 12 --ranks 2", 2, "--width 12, 8"),
       ("--task text --data nowhere --ranks 2", 3, "nowhere, No such file")]


def start(programs, text, *cwd):
    return programs.start([str(programs.build / "plan"), *shlex.split(text)], *cwd)


def plan(programs, text, *cwd):
    """As (what is printed, JSON)."""
    printed, exact = (start(programs, words, *cwd) for words in (text, f"{text} --json"))
    assert [(outcome.code, outcome.err) for outcome in (printed, exact)] == [(0, "")] * 2
    assert max(map(len, printed.out.splitlines())) <= 80
    return printed.out, json.loads(exact.out)


WORK = [(chapter, MODELS[number % 3], dtype, prefetch) for number, chapter in enumerate(ON_RANKS)
        for dtype, prefetch in (("fp32", 0), ("bf16", 2)) if chapter in MIXED or dtype == "fp32"]


def said_of(mine, full, ranks):
    """What --plan prints of a chapter's part of the answer; workspace the CPU has none of."""
    kinds, host = mine["kinds"], mine.get("host_kinds", {})
    state = sum(kinds[kind]["resident"] for kind in ("parameters", "gradients", "optimizer")) / full
    here, there = CARDS[mine["name"]]["bytes"].values()
    places = f" on the device {sum(host.values()) / full:g} = {there} on its host" if host else ""
    return [
        f"bytes of state a parameter: {state:g} = {here}{places}",
        *(f"{kind} {of['resident']:,} {of['peak']:,}" for kind, of in kinds.items()
          if kind != "workspace"),
        *(f"{kind} {bytes:,} {bytes:,}" for kind, bytes in host.items()),
        *(f"{name} {bytes:,} {bytes * ranks // full} x 1/{ranks}" for name, bytes in (
            zip(("to the host", "to the device"), mine["copied"].values())) if bytes),
        f"padding, all ranks {mine['padding_sent_by_all_ranks']:,}",
        f"scalars {mine['scalars_sent']}",
        *(f"{phase} {n:,} {n * ranks // (full * (ranks - 1))} x {ranks - 1}/{ranks}"
          for phase, n in ((phase, mine["phases"][phase]["elements"]) for phase in PHASES))]


@pytest.mark.parametrize("chapter, model, dtype, prefetch", WORK)
def test_like_a_run(programs, chapter, model, dtype, prefetch):
    """What the ledger and the communicator have counted; and what --plan says of it."""
    ranks, steps, own = 3, 2, f"{model} --device cpu"
    _, planned = plan(programs, f"{own} --dtype {dtype} --prefetch {prefetch} --accumulate 2 "
                      f"--ranks {ranks} --chapter {chapter}")
    mine, = planned["chapters"]
    own = [*own.split(), "--accumulate", 2, *own_options(chapter, dtype, prefetch)]
    asked = ["--plan", "--ranks", ranks, *own, "--device-memory"]
    said = programs.run(0, chapter, *asked, "1GB").out
    assert said.endswith("\n\nfits into --device-memory\n")
    assert "--device-memory allows 1 000: " in programs.run(0, chapter, *asked, "0.001MB").out
    rows = [line.replace(",", " ").split() for line in said.splitlines()]
    for row in said_of(mine, planned["padded_parameters"], ranks):
        assert row.replace(",", " ").split() in rows
    run, _, summary = programs.logged(ranks, chapter, *own, "--steps", steps)
    assert all(run[key] == planned[key] for key in ("parameters", "padded_parameters", "layers"))
    memory, traffic = summary["memory"], summary["traffic"]
    total = memory.pop("total")
    assert mine["kinds"] == {kind: {key: of[key] for key in ("resident", "peak")}
                             for kind, of in memory.items()}
    assert all(of["reserved"] == of["peak"] for of in memory.values())
    assert (mine["resident"], mine["reserved"]) == (total["resident"], total["reserved"])
    host = {kind: of["reserved"] for kind, of in summary.get("host_memory", {}).items()}
    assert mine.get("host_kinds", {}) == host and mine["on_host"] == sum(host.values())
    for direction, copied in summary.get("bus", {}).items():
        assert steps * mine["copied"][direction] == copied["counted"] > 0
    for phase in PHASES:
        assert steps * mine["phases"][phase]["elements"] == traffic["phases"][phase]["counted"]
    assert steps * mine["scalars_sent"] == traffic["scalars"]["counted"]
    assert steps * mine["padding_sent_by_all_ranks"] == traffic["padding"]["counted"]


PAGE = (ROOT / "notes/choosing.md").read_text()


def test_the_page(programs, tmp_path):
    """Every row that it shows; the numbers themselves are checked where no program is."""
    words = "--params 30e9 --card 80GB"
    assert f"$ build/plan {words}\n\n{plan(programs, words)[0]}```\n" in PAGE
    assert f"<!-- measured: fits -->\n\n{tables.fits(programs)}\n\n<!-- end -->" in PAGE
    judged = re.findall(r"\| `(--params [^`]*)`: (.*) \|\n", PAGE)
    for words, figures in judged:
        told = set(re.split(r"[\s,;]+", start(programs, words).out))
        assert set(re.findall(r"[\d.]*\d", figures)) <= told, words
    assert len(judged) == 19
    file, text = re.search(r"```json\n(.*?)```.*?```text\n(.*?)```", PAGE, re.DOTALL).groups()
    (tmp_path / "ds_config.json").write_text(file)
    words, = re.findall(r"`(build/plan --deepspeed ds_config.*?)`", PAGE)
    done = start(programs, words.removeprefix("build/plan "), tmp_path)
    assert done.out.startswith(f"{text}\n8 000 000 000 parameters in 32 layers, bf16, on 5 ranks\n")
    described(tmp_path, QWEN)
    words, text = re.search(r"`build/plan (--config .*?)`.*?text\n(.*?)```", PAGE, re.S).groups()
    printed = iter(start(programs, words, tmp_path).out.splitlines())
    assert not [line for line in text.splitlines() if line not in printed], "in this order"


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
def test_a_model(programs, tmp_path, values, more, parameters):
    """As published; the terms that are printed make the difference to Korthikanti's formula."""
    described(tmp_path, values, **more)
    out, told = plan(programs, "--config config.json --ranks 2 --sequence 128 --batch 3", tmp_path)
    assert (told["parameters"], told["layers"]) == (parameters, values[5] + 2)
    (block, pair), (beside, _), logits = (
        told["config"][key] for key in ("block_bytes", "beside_bytes", "logits_bytes"))
    assert eval(re.search("activations, bytes: (.*)", out)[1].replace("x", "*")) == \
        told["activations"] == 128 * 3 * (
            values[5] * (block + pair * 128) + beside + pair * 128 + logits)
    terms = re.findall(r"^  ([+-]\d+) ", out, re.MULTILINE)
    assert block == 34 * values[1] + sum(map(int, terms)) and len(terms) >= 2


@pytest.mark.parametrize("more, words", [
    ({"num_experts": 128}, "num_experts is 128, experts, another rank, --trainable"),
    ({"model_type": "gemma"}, "gemma, llama, qwen3"), ({"vocab_size": None}, "has no vocab_size"),
    ({"hidden_size": "4096"}, 'hidden_size is "4096", whole number'),
    ({"num_key_value_heads": 3}, "32, multiple, 3"), ({"hidden_size": 4097}, "has no head_dim"),
    ({"mlp_bias": 1}, "mlp_bias is 1, a boolean")])
def test_no_model(programs, tmp_path, more, words):
    described(tmp_path, LLAMA, **more)
    test_refused(programs, f"--config {tmp_path}/config.json --ranks 2", 3, words)


def test_activations_and_headroom(programs):
    """A card's headroom is 5 %."""
    out, told = plan(programs, "--params 7e9 --ranks 4 --card 80GB --sequence 2048 --batch 4 "
                     "--width 4096 --heads 32")
    assert told["headroom"] == 4e9
    words, = re.findall(r"activations, bytes: (.*)", out)
    assert eval(words.replace("x", "*")) == told["activations"] == 122406567936
    assert told["advice"].endswith("or fewer activations.") and " 56.25 %" in out


BEGIN = '{"bf16": {"enabled": true}, "zero_optimization": {'


@pytest.mark.parametrize("text, chapter", [
    ('"offload_optimizer": {"device": "cpu"}}}', "03_mixed_precision"),
    ('"stage": 1}}', "04_zero1"), ('"stage": 3}}', "06_zero3"),
    ('"stage": 2, "offload_optimizer": {"device": "none"}}}', "05_zero2"),
    ('"stage": 3, "offload_optimizer": {"device": "cpu"}}}', "07_offload")])
def test_a_configuration(programs, tmp_path, text, chapter):
    """The command line is stronger; there chapters have the names that tools use, too."""
    (tmp_path / "ds.json").write_text(BEGIN + text)
    for more, name in (("--bytes 2,2,8", chapter), ("--chapter zero3_offload", "07_offload"),
                       ("--chapter zero2", "05_zero2"), ("--chapter zero0", "03_mixed_precision")):
        words = f"--params 8e9 --ranks 5 --deepspeed ds.json {more}"
        told = plan(programs, words, tmp_path)[1]
        assert ([column["name"] for column in told["chapters"]], told["dtype"]) == ([name], "bf16")


def test_older_and_longer_keys(programs, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({
        "zero_optimization": {"stage": 3, "cpu_offload": True}, "bfloat16": {"enabled": True},
        "zero_optimization.stage": 1, "": {"stage": 1},
        "optimizer": {"type": "adamw", "params": {"\x1b" + "a" * 100: 1}},
        "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}))
    out, told = plan(programs, "--params 8e9 --ranks 4 --deepspeed ds.json", tmp_path)
    assert (told["chapters"][0]["name"], told["dtype"], told["accumulate"]) == \
        ("07_offload", "bf16", 4)
    assert "\x1b" not in out and max(map(len, out.splitlines())) <= 80


def test_every_key_of_the_page_is_known(programs, tmp_path):
    page = (ROOT / "notes/frameworks.md").read_text().split("| key | what it does")[1]
    keys = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) - {
        "zero_optimization", "offload_optimizer", "device", "pin_memory", "bf16"}
    anywhere = dict.fromkeys(keys, "auto")
    (tmp_path / "ds.json").write_text(json.dumps(anywhere | {
        "zero_optimization": anywhere | {"stage": 3}, "gradient_accumulation_steps": 16}))
    told = plan(programs, "--params 8e9 --ranks 5 --deepspeed ds.json", tmp_path)[1]
    unknown = set(told["deepspeed"]["unknown"])
    assert [key for key in keys if {key, f"zero_optimization.{key}"} <= unknown] == []
    assert len(keys) > 8 and told["accumulate"] == 16


@pytest.mark.parametrize("text, words", [
    ("", "no JSON"), ("[" * 60000, "nests deeper"), ("{}", "no section zero_optimization"),
    (BEGIN + '"stage": "2"}}', "stage, not a number"), (BEGIN + '"stage": 4}}', "not 0, 1, 2 or 3"),
    (BEGIN + '"overlap_comm": 3}}', "overlap_comm is 3, boolean"), (" " * (1 << 21), "2097152"),
    (BEGIN + '"offload_optimizer": 3}}', "offload_optimizer is 3, not a section"),
    (BEGIN + '"offload_optimizer": {"device": "tpu"}}}', "tpu, nvme"),
    (BEGIN + '}, "fp16": {"enabled": true}}', "both bf16 and fp16"),
    (BEGIN + '}, "optimizer": {"type": "SGD"}}', "type is .SGD, not an Adam"),
    (BEGIN + '}, "train_batch_size": 192, "train_micro_batch_size_per_gpu": 2}', "ranks is 1.5"),
    (BEGIN + '}, "gradient_accumulation_steps": 0}', "steps is 0, 65536")],
    ids=lambda text: text[-40:])
def test_no_configuration(programs, tmp_path, text, words):
    (tmp_path / "ds.json").write_text(text)
    test_refused(programs, f"{ANY} --deepspeed {tmp_path}/ds.json", 3, words)


def test_host_link_and_bus(programs):
    out, told = plan(programs, "--params 30e9 --card 80GB --host 120GB --accumulate 16 --link 100 "
                     "--latency 5 --bus 20 --compute 900")
    assert (told["ranks"], told["ranks_found"]) == (4, True)
    assert (told["card"], told["host"], told["bus_gb_per_s"]) == (80e9, 120e9, 20)
    assert told["link"] == {"gbit_per_s": 100, "latency_us": 5}
    assert " ".join(out.split()).endswith(told["advice"])
    last = told["chapters"][-1]
    # A layer, 16 micro-batches.
    assert [last["phases"][phase]["collectives"] for phase in PHASES] == [16 * 32, 2 * 16 * 32, 0]
    rows = {line[:24].strip(): line[24:].split() for line in out.splitlines()}
    for row, figure in (("copies, ms", last["copies_ms"]),
                        ("communication, ms", last["communication_ms"]),
                        ("step at most, ms", last["communication_ms"] + last["copies_ms"] + 900),
                        ("at best, ms", last["step_ms"]["at_best"])):
        assert rows[row][-1] == f"{figure:.2f}"


def test_costs(programs):
    """Of a parameter in 07; why they are so is plan_test.cpp's."""
    for more, costs in (("--dtype fp32", [4, 4, 12]), ("--bytes 4,4,16", [4, 4, 16]),
                        ("--convention megatron", [2, 4, 12])):
        out, told = plan(programs, f"--params 1e9 --card 80GiB {more}")
        assert (told["card"], told["chapters"][-1]["bytes_a_parameter"]) == (80 << 30, costs)
        assert (": optimizer state 12, with master weights" in out) == (more == "--dtype fp32")


def test_words(programs):
    out, _ = plan(programs, "--params 13e9 --ranks 8 --chapter 6")
    assert "host" not in out and "bus" not in out
    out, _ = plan(programs, "--params 1e13 --layers 4096 --ranks 4096 --accumulate 65536")
    assert "-" not in out.replace("(N - 1)", ""), "no count is below 0"
    out, _ = plan(programs, "--params 7e9 --trainable 0.5% --ranks 3")
    assert "\n35 000 000 are trained (35 000 064 with padding), 6 965 000 000 frozen" in out
    assert out.count("\n    a frozen one ") == 2
    out = start(programs, f"{ANY} --link 0.001 --latency 1e9").out
    assert len(re.search("communication, ms(.*)", out)[1].split()) == 5, "a blank between"
    helped = start(programs, "--help")
    assert helped.code == 0 and max(map(len, helped.out.splitlines())) <= 80


@pytest.mark.parametrize("text, code, words", BAD)
def test_refused(programs, text, code, words):
    outcome = start(programs, text)
    assert (outcome.code, outcome.out) == (code, "")
    assert re.fullmatch(r"plan: .{1,250}\n", outcome.err), "one sentence"
    for word in words.split(", "):
        assert re.search(word, outcome.err)


def test_the_scripts_read_the_cards_as_they_are(programs):
    """build/plan --cards > notes/cards.json, after a card has changed."""
    assert start(programs, "--cards").out == (ROOT / "notes/cards.json").read_text()
