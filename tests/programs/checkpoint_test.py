# SPDX-License-Identifier: MIT
"""A run that is saved and resumed, by any chapter on any number of ranks, has the bits of a run in
one piece. The files name neither chapter nor ranks. However a run ends, earlier saves stay."""
import itertools
import json
import re
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
from programs import ALONE, DATA, ON_RANKS, RESOURCES, USAGE, bits, own_options, read_log

import findings
import memory
import report
from recording import Trace
from runs import elements_sent
from numpy_model import Case, initial_parameters, layer_digests, matrices

DDP, MIXED, ZERO1, ZERO2, ZERO3, OFFLOAD, INFINITY = ON_RANKS
FILES = ["model.safetensors", "optimizer.safetensors"]
SMALL = "--task mlp --width 7 --layers 3 --batch 3".split()
HARD = "--clip 0.5 --weight-decay 0.1 --accumulate 2".split()


def read_tensors(path):
    """Returns (the metadata of a safetensors file, its tensors by name)."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    assert start % 8 == 0, "elements are not aligned"
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    return metadata, {
        name: np.frombuffer(data[start:], "<f4", np.prod(at["shape"], dtype=int),
                            at["data_offsets"][0]).reshape(at["shape"])
        for name, at in header.items()}


def write_tensors(path, tensors):
    """Writes a safetensors file without metadata, as other programs do."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": {"<f4": "F32", "<f2": "F16", "<u2": "BF16"}[tensor.dtype.str],
                        "shape": list(tensor.shape),
                        "data_offsets": [at, at := at + tensor.nbytes]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + b"".join(tensor.tobytes() for tensor in tensors.values()))


def same_files(one, other):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


def told(run):
    """Returns the bits in which two runs must agree: each step's, and the layers' last digests."""
    _, steps, summary = run
    return ([(line["step"], line["skipped"], bits(line["loss"]), bits(line["grad_norm"]),
              line.get("loss_scale")) for line in steps], summary["layer_digests"])


# ---- To the bit ----------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype, skips", (("fp32", 0), ("bf16", 0), ("fp16", 2)))
@pytest.mark.parametrize("family", ([DDP, MIXED, ZERO1], [ZERO2, ZERO3, OFFLOAD, INFINITY]))
def test_another_chapter_goes_on(programs, folder, family, dtype, skips):
    """After each step another chapter of the family resumes the run, in fp16 also before and after
    skipped steps. Its log has the same lines, its files the same bytes."""
    family = [chapter for chapter in family if dtype == "fp32" or chapter != DDP]
    options = [*SMALL, *HARD, "--steps", 6, *(["--lr", 0.05] if dtype == "fp16" else [])]

    def run(chapter, *more):
        return told(programs.logged(3, chapter, *options, *own_options(chapter, dtype, 1), *more))

    lines, digests = run(family[0], "--save", folder / "whole", "--save-every", 1, "--keep", 6)
    assert [line[1] for line in lines].count(True) == skips
    for chapter, k in zip(itertools.cycle(family[1:] + family[:1]), range(1, 6)):
        ours, from_here = folder / f"{chapter}{k}", folder / f"whole/step_{k}"
        assert run(chapter, "--save", ours, "--resume", from_here) == (lines[k:], digests)
        assert same_files(ours / "step_6", folder / "whole/step_6")


def test_another_number_of_ranks_goes_on(programs, folder):
    """Any chapter on N ranks resumes with the bits of 01, which takes N micro-batches instead. The
    newest checkpoint of the folder is resumed, and two are kept."""
    def run(ranks, chapter, steps, *more):
        micro = ["--accumulate", ranks] if chapter == ALONE else []
        return programs.logged(0 if chapter == ALONE else ranks, chapter, "--task", "toy",
                               "--batch", 3, *own_options(chapter, "fp32", 1), *micro,
                               "--steps", steps, *more)[2]["layer_digests"]

    chain = folder / "chain"
    run(4, DDP, 2, "--save", chain)
    for steps, (ranks, chapter) in enumerate(
            ((2, ZERO2), (3, INFINITY), (1, ALONE), (4, OFFLOAD), (2, INFINITY)), 3):
        expected = run(ranks, ALONE, steps, "--resume", chain)
        assert run(ranks, chapter, steps, "--resume", chain, "--save", chain) == expected
        assert {path.name for path in chain.iterdir()} == {f"step_{steps - 1}", f"step_{steps}"}


@pytest.mark.parametrize("chapter", (ZERO1, INFINITY))
def test_log_and_trace_go_on(programs, folder, chapter):
    """A run is resumed from a step before its last one, and its log's end is cut off. Then scripts
    read its log and its trace as those of a run in one piece."""
    log = folder / "part.log"
    log.touch()
    for steps, name, more in ((5, "whole", ""), (3, "part", "--save saved --save-every 1"),
                              (5, "part", "--resume saved/step_2")):
        log.write_text(earlier := log.read_text().partition('{"summary')[0][:-9])
        outcome = programs.run(2, chapter, *SMALL, *own_options(chapter, "fp32", 1), *more.split(),
                               "--steps", steps, "--log", f"{name}.log", "--trace",
                               f"{name}.trace", cwd=folder)
        assert outcome.code == 0, outcome
    assert log.read_text().startswith(earlier.partition('{"step":3')[0] + '{"run":')
    whole, part = (report.load(folder / f"{name}.log") for name in ("whole", "part"))
    assert told(read_log(log)) == told(read_log(whole.log))
    study = findings.Study([whole, part], [])
    assert report.holds(study) and study.compared[0].alike
    assert elements_sent(whole) == elements_sent(part)
    one, other = Trace(folder / "whole.trace"), Trace(folder / "part.trace")
    for rank in (0, 1):
        events = [[(event["task"], event["args"]["step"]) for event in
                   trace.program(rank, *range(1, 6))] for trace in (one, other)]
        assert events[0] == events[1] and one.about == other.about
        assert max(event["ts"] + event.get("dur", 0) for event in other.program(rank, 1, 2)) < \
            min(event["ts"] for event in other.program(rank, 3))
    assert [*memory.table(other, part)] == [*memory.table(one, whole)]


@pytest.mark.parametrize("ranks, chapter, other, dtype", (
    (2, DDP, OFFLOAD, "fp32"), (3, ZERO2, INFINITY, "bf16")))
def test_gpus(gpu, folder, ranks, chapter, other, dtype):
    """On GPUs, too, another chapter resumes the run with the same bytes."""
    def run(chapter, steps, name, *more):
        gpu.logged(ranks, chapter, *SMALL, *own_options(chapter, dtype, 1), "--steps", steps,
                   "--device", "cuda", "--comm", "mpi", "--save", folder / name, *more)

    run(chapter, 4, "whole", "--save-every", 2)
    run(other, 4, "part", "--resume", folder / "whole/step_2")
    assert same_files(folder / "part/step_4", folder / "whole/step_4")


# ---- The file ------------------------------------------------------------------------------------

def test_python_reads_it(programs, folder):
    """Python reads names, shapes, bytes and digests. For --keep step_11 is newer than step_9."""
    case = Case("text", width=256, layers=2, batch=2)  # a layer is written in several pieces
    words = [*case.options(), "--dtype", "fp32"]
    summary = programs.logged(2, ZERO1, *words, "--steps", 11, "--save", folder, "--save-every", 1,
                              "--keep", 3)[2]
    assert {path.name for path in folder.iterdir()} == {"step_9", "step_10", "step_11"}
    again = programs.run(0, MIXED, *words, "--steps", 11, "--resume", folder)
    assert (again.code, again.err) == (0, "") and "/step_11 has made 11" in again.out, again
    files = [folder / "step_11" / name for name in FILES]
    (metadata, model), (_, moments) = map(read_tensors, files)
    ours = {f"layers.{l}.{name}": part.shape
            for l, both in enumerate(matrices(case, initial_parameters(case)))
            for name, part in zip(("weight", "bias"), both)}
    assert {name: tensor.shape for name, tensor in model.items()} == ours
    assert set(moments) == {f"{name}.exp_avg{rest}" for name in model for rest in ("", "_sq")}
    assert all((moments[f"{name}.exp_avg_sq"] >= 0).all() for name in model)
    size = sum(file.stat().st_size - 8 - struct.unpack("<Q", file.read_bytes()[:8])[0]
               for file in files)
    planned = programs.run(0, ZERO1, *words, "--plan", "--ranks", 2).out
    assert re.search(rf"(?s)a checkpoint +{size:,}\s.* two headers\n".replace(",", " "), planned)
    digests = layer_digests(case, np.concatenate([model[name].ravel() for name in ours]))
    assert [f"{digest:016x}" for digest in digests] == summary["layer_digests"]
    for l, digest in enumerate(digests):
        assert sum(int(metadata[f"digest layers.{l}.{name}"], 16) for name in ("weight", "bias")) \
            % 2**64 == digest
    assert {name: said for name, said in metadata.items() if "digest" not in name} == {
        "format": "pt", "data": "a text of 65044 bytes with digest f90e76786f7468b2",
        "task": "text",
        "width": "256", "layers": "2", "seed": "1", "dtype": "fp32", "step": "11", "updates": "11",
        "loss_scale": "1", "good_steps": "0", "lr": "0.002", "beta1": "0.9", "beta2": "0.999",
        "eps": "1e-08", "weight_decay": "0", "clip": "0"}  # nothing of chapters or ranks


def test_transformers_is_told_the_model(saved):
    """config.json has each key under transformers' name. transformers itself is not needed here."""
    assert json.loads((saved / "llama/step_1/config.json").read_text()) == {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
        "vocab_size": 256, "hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4,
        "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}


def test_a_run_begins_with_others_weights(programs, folder):
    """Tensors of --init may be in any order, and in fp32, fp16 or bf16, the upper half of fp32."""
    case = Case("text", width=256, layers=3, batch=2)
    kinds = itertools.cycle((np.asarray, np.float16, lambda it: it.view("<u2").ravel()[1::2]))
    stored = {f"layers.{l}.{name}": next(kinds)(part * np.float32(1.5)).reshape(part.shape)
              for l, both in enumerate(matrices(case, initial_parameters(case)))
              for name, part in zip(("bias", "weight"), reversed(both))}
    write_tensors(folder / "weights", stored)
    programs.logged(2, ZERO3, *case.options(), "--dtype", "fp32", "--steps", 1, "--lr", 0,
                    "--init", folder / "weights", "--save", folder / "begun")
    begun = read_tensors(folder / "begun/step_1" / FILES[0])[1]
    for name, tensor in stored.items():
        wide = tensor.astype("<u4") << 16 if tensor.dtype == np.uint16 else tensor.astype("<f4")
        assert (begun[name] == wide.view("<f4")).all(), name


# ---- What is refused -----------------------------------------------------------------------------

@pytest.fixture(name="saved", scope="module")
def saved_once(programs, tmp_path_factory):
    """Checkpoints that the cases below copy, change and resume."""
    saved = tmp_path_factory.mktemp("saved")
    programs.logged(1, MIXED, *SMALL, "--dtype", "fp32", "--steps", 2, "--save", saved / "mlp",
                    "--save-every", 1)
    programs.logged(1, MIXED, *LLAMA, "--steps", 1, "--save", saved / "llama")
    for name in ("mlp/step_9.old", "empty"):
        (saved / name).mkdir()
    (saved / "other").write_text("to be or not to be, that")
    yield saved
    shutil.rmtree(saved)


def spoil(name, change):
    """Returns a function that changes the bytes of a file in a folder."""
    def of(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))
    return of


def say(**metadata):
    """Returns a function that changes metadata in the header of a file's bytes."""
    def of(data):
        end = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:end])
        header["__metadata__"].update(metadata)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[end:]
    return of


LLAMA = "--task llama --width 16 --layers 1 --sequence 4 --batch 1 --dtype fp32".split()
MLP = " ".join(SMALL) + " --dtype fp32 --steps 4 "
RESUMED, MODEL, OTHER = MLP + "--resume mlp ", "mlp/step_2/" + FILES[0], "mlp/step_2/" + FILES[1]
LLAMA_RESUMED = " ".join(LLAMA) + " --steps 2 --resume llama/step_1 "


# Exit code, what changes the copied checkpoints, options, and a pattern of the one sentence.
@pytest.mark.parametrize("code, change, options, words", (
    (DATA, None, RESUMED.replace("--width 7", "--width 8"), 'it has width "7", this run "8"'),
    (DATA, None, RESUMED + "--seed 2", 'it has seed "1", this run "2"'),
    (DATA, None, RESUMED.replace("fp32", "bf16"), 'it has dtype "fp32", this run "bf16"'),
    (DATA, None, RESUMED.replace("mlp --width 7 --layers 3", "toy"), 'it has layers "3", this '),
    (DATA, None, LLAMA_RESUMED + "--data other", 'it has data "a text of 65044 bytes'),
    (DATA, None, LLAMA_RESUMED + "--heads 4",
     'it has shape "llama: .* heads 8/4,.*, this run ".* 4/2,'),
    (USAGE, None, RESUMED.replace("--steps 4", "--steps 1"),
     "--steps 1: mlp/step_2 has made 2 already"),
    (0, None, RESUMED.replace("--steps 4", "--steps 2"), "mlp/step_2 has made 2 already"),
    (DATA, spoil(MODEL, lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]),
     MLP + "--init " + MODEL, 'it has digest layers.2.bias "'),
    (DATA, spoil(MODEL, lambda data: data.replace(b"digest layers.2.b", b"unread layers.2.b")),
     RESUMED, 'it has digest layers.2.bias null, this run "'),
    (DATA, spoil(OTHER, lambda data: data.replace(b'"step":"2"', b'"step":"3"')), RESUMED,
     'optimizer.safetensors: it has step "3", this run "2"'),
    (DATA, spoil(OTHER, lambda data: data[:-4]), RESUMED,
     r"optimizer.safetensors: it has .* in 1340 bytes behind its header"),
    *((DATA, spoil(MODEL, say(step=step)), RESUMED,
       f'model.safetensors: it has step "{step}", which is no number from 0 to 2147483647$')
      for step in ("-3", "nan", "2.5", "", "2147483648", "1e999")),
    (DATA, spoil(MODEL, say(updates="3")), RESUMED,
     'it has updates "3", which is no number from 0 to 2$'),
    *((DATA, spoil(MODEL, say(loss_scale=scale)), RESUMED,
       f'it has loss_scale "{scale}", which is no number from 1.4') for scale in ("0", "inf")),
    (DATA, lambda folder: (folder / OTHER).unlink(), RESUMED, "optimizer.safetensors: it is no fi"),
    (DATA, None, MLP + "--init empty", "cannot read empty: it is no file"),
    (DATA, None, MLP + "--resume empty", "cannot read empty/model.safetensors: it is no file"),
    (DATA, None, MLP + "--resume " + MODEL, "it is no file"),
    (USAGE, None, MLP + "--resume mlp/step_1 --save mlp", "step 2 is there, not resumed"),
    (USAGE, None, MLP + "--save empty/../mlp", "step 2 is there, not resumed"),
    (RESOURCES, None, MLP + "--save /proc/none", "--save /proc/none: No such file or directory")))
def test_it_is_refused(programs, folder, saved, code, change, options, words):
    """The program says why in one sentence, before its first step, and does not touch the log."""
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    if change:
        change(folder)
    (folder / "log").write_text("kept")
    outcome = programs.run(0, MIXED, *options.split(), "--log", "log", cwd=folder)
    assert outcome.code == code, outcome
    if words:
        said, = (outcome.err or outcome.out).splitlines()
        assert re.search(words, said), said
        assert (folder / "log").read_text() == "kept"


@pytest.mark.parametrize("ranks, how, words", (
    (2, 'FAULT="full 0 13" LD_PRELOAD=libinjector.so', "rank 0/2: .*No space left on device"),
    (2, 'FAULT="full 1 7" LD_PRELOAD=libinjector.so', "rank 1/2: .*No space left on device"),
    (2, 'FAULT="pread 1 40 5" LD_PRELOAD=libinjector.so',
     "rank 1/2: --offload-dir /var/tmp: .* could not be read: Input/output error"),
    (2, 'FAULT="denied 0 1" LD_PRELOAD=libinjector.so', "step.partial: Read-only file system"),
    (0, "ulimit -f 1;", ".*.safetensors: File too large")))
def test_the_system_refuses(programs, folder, ranks, how, words):
    """Where a save fails, the run goes on, and leaves no half-written file. The next save is whole.
    The injector also lets pwrite write less than it is given, and refuses to rename or remove a
    file before all that was written is synced."""
    program = programs.command(0, INFINITY if ranks else ALONE, "--task", "mlp", "--layers", 3,
                               "--batch", 3, "--steps", 3, "--save-every", 1, "--keep", 1, "--save")
    launch = [programs.mpiexec, "-n", str(ranks)] if ranks else []
    outcome = programs.start(
        [*launch, "bash", "-c", how + ' exec "$@"', "bash", *program, "saved"], folder)
    assert outcome.code == RESOURCES and "parameters " in outcome.out, outcome
    lines = outcome.own_errors()
    assert lines and all(re.search(r": step \d is not saved: .*" + words, x) for x in lines), lines
    assert not list(folder.glob("saved/*.partial"))
    if ranks:
        programs.start([*launch, *program, "whole"], folder)
        assert [path.name for path in (folder / "saved").iterdir()] == ["step_3"]
        assert same_files(folder / "saved/step_3", folder / "whole/step_3")


# ---- What ends a run -----------------------------------------------------------------------------

@pytest.mark.parametrize("ranks, chapter, rank", ((0, ALONE, 0), (2, ZERO3, 0), (2, ZERO3, 1)),
                         ids=("whole alone", "whole first", "whole other"))
def test_killed_at_every_call(programs, folder, ranks, chapter, rank):
    """A rank is killed at each call on a file during a save. The checkpoint before it can be
    resumed, and ends with the same bytes."""
    words = "--task mlp --width 3 --layers 1 --batch 1 --steps 3 --save-every 1".split()
    programs.logged(ranks, chapter, *words, "--save", folder / "whole")
    program = programs.command(ranks, chapter, *words, "--save", "saved", "--keep", 1, "--log",
                               "log")
    for number in itertools.count(1):
        shutil.rmtree(folder / "saved", ignore_errors=True)
        ended = programs.start(program, folder, LD_PRELOAD=programs.injector,
                               FAULT=f"file {rank} {number}")
        # Some launchers end with 0 although a rank was killed.
        whole = ended.code == 0 and "\nparameters " in ended.out
        if not whole:
            resume = ["--resume", "./saved"] if any(folder.glob("saved/step_?")) else []
            again = programs.start([*program, *resume], folder)
            assert again.code == 0, (ended, again)
        assert same_files(folder / "saved/step_3", folder / "whole/step_3")
        assert re.findall('(?m)^{"step":(.)', (folder / "log").read_text()) == [*"123"]
        if whole:
            break
    assert number > 10


@pytest.mark.parametrize("ranks, chapter", ((0, ALONE), (2, INFINITY)))
def test_a_signal_saves(programs, folder, ranks, chapter):
    if ranks and not programs.passes_signals:
        pytest.skip("this launcher ends its ranks when it gets a signal")
    log = folder / "log"
    program = programs.command(ranks, chapter, *SMALL, "--quiet", "--log", log, "--save", folder)
    with subprocess.Popen([*program, "--steps", str(10**8)], stderr=subprocess.PIPE) as process:
        while not log.exists() or log.stat().st_size < 3000:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    *_, last, saved = map(json.loads, log.read_text().splitlines())
    assert saved["save"]["step"] == last["step"] and "failure" not in saved["save"]
    again = [*program, "--steps", str(last["step"] + 1), "--resume", folder]
    assert programs.start(again).code == 0
    assert len(read_log(log)[1]) == last["step"] + 1
