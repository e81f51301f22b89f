# SPDX-License-Identifier: MIT
"""A run that is saved and gone on with, by any chapter, is the run in one piece; its files say
nothing of chapters or ranks; and no way to end a run loses what was saved before.
"""
import contextlib
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
from programs import (ALONE, DATA, INJECTOR, ON_RANKS, RESOURCES, USAGE, Outcome, bits,
                      own_options)

from numpy_model import Case, initial_parameters, layer_digests, matrices

DDP, MIXED, ZERO1, ZERO2, ZERO3, OFFLOAD = ON_RANKS
FILES = ["model.safetensors", "optimizer.safetensors"]
SMALL = "--task mlp --width 7 --layers 3 --batch 3".split()
TOY = "--task toy --batch 3".split()  # without biases
LLAMA = "--task llama --width 128 --layers 1 --hidden 400 --sequence 4 --batch 1".split()
HARD = "--clip 0.5 --weight-decay 0.1 --accumulate 2".split()


def read_tensors(path):
    """The metadata and the tensors, by name, of a file of safetensors."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    assert start % 8 == 0, "elements are not aligned"
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    return metadata, {
        name: np.frombuffer(data[start:], "<f4", np.prod(at["shape"], dtype=int),
                            at["data_offsets"][0]).reshape(at["shape"])
        for name, at in header.items()}


def write_tensors(path, tensors, metadata=None):
    header, at = {"__metadata__": metadata} if metadata else {}, 0
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
    _, steps, summary = run
    return ([(line["step"], line["skipped"], bits(line["loss"]), bits(line["grad_norm"]),
              line.get("loss_scale")) for line in steps], summary["layer_digests"])


@pytest.mark.parametrize("dtype, skips", (("fp32", 0), ("bf16", 0), ("fp16", 2)))
@pytest.mark.parametrize("family", ([DDP, MIXED, ZERO1], [ZERO2, ZERO3, OFFLOAD]))
def test_another_chapter_goes_on(programs, folder, family, dtype, skips):
    """At every place of a run, in fp16 just before and behind skipped steps: the same lines of the
    log, and the same bytes of the files."""
    family = [chapter for chapter in family if dtype == "fp32" or chapter != DDP]
    options = [*SMALL, *HARD, "--steps", 9, *(["--lr", 0.05] if dtype == "fp16" else [])]

    def run(chapter, *more):
        return told(programs.logged(3, chapter, *options, *own_options(chapter, dtype, 1), *more))

    lines, digests = run(family[0], "--save", folder / "whole", "--save-every", 1, "--keep", 9)
    assert [line[1] for line in lines].count(True) == skips
    for chapter, k in zip(itertools.cycle(family[1:] + family[:1]), range(1, 9)):
        ours, from_here = folder / f"{chapter}{k}", folder / f"whole/step_{k}"
        assert run(chapter, "--save", ours, "--resume", from_here) == (lines[k:], digests)
        assert same_files(ours / "step_9", folder / "whole/step_9")


def test_another_number_of_ranks_goes_on(programs, folder):
    """It is the run of so many ranks from there on: 01, one process that sees the samples of all,
    has its bits. A step that is skipped leaves the state, so that two numbers can write one."""
    def run(ranks, chapter, steps, *more):
        micro = ["--accumulate", ranks] if chapter == ALONE else []
        dtype = own_options(chapter, "fp32", 1)
        return programs.logged(0 if chapter == ALONE else ranks, chapter, *TOY, *dtype, *micro,
                               "--steps", steps, *more)[2]["layer_digests"]

    went = "--save", folder / "chain", "--resume", folder / "chain"
    run(4, DDP, 2, *went[:2])
    for steps, (ranks, chapter) in enumerate(((2, ZERO2), (3, ZERO3), (1, ALONE), (4, OFFLOAD)), 3):
        expected = run(ranks, ALONE, steps, *went[2:])
        assert run(ranks, chapter, steps, *went) == expected
    assert {path.name for path in (folder / "chain").glob("step*")} == {"step_5", "step_6"}
    state = folder / "16"
    sixteen = [*SMALL, "--dtype", "fp16"]
    programs.logged(2, MIXED, *sixteen, "--steps", 2, "--save", state)
    for ranks in (3, 4):
        programs.logged(ranks, ZERO3, *sixteen, "--loss-scale", 1e38, "--steps", 3,
                        "--resume", state, "--save", folder / str(ranks))
    assert same_files(folder / "3/step_3", folder / "4/step_3")


@pytest.mark.parametrize("ranks, chapter, other, dtype", (
    (2, DDP, OFFLOAD, "fp32"), (3, ZERO2, ZERO3, "bf16")))
def test_gpus(gpu, folder, ranks, chapter, other, dtype):
    """Theirs pass through page-locked memory."""
    def run(chapter, steps, name, *more):
        gpu.logged(ranks, chapter, *SMALL, *own_options(chapter, dtype, 1), "--steps", steps,
                   "--device", "cuda", "--comm", "mpi", "--save", folder / name, *more)

    run(chapter, 4, "whole", "--save-every", 2)
    run(other, 4, "part", "--resume", folder / "whole/step_2")
    assert same_files(folder / "part/step_4", folder / "whole/step_4")


def test_python_reads_and_writes_it(programs, folder):
    """Names, shapes and digests; weights that come without metadata, and in another order."""
    case = Case("text", width=256, layers=2, batch=2)  # more than a thread reads at once
    words = [*case.options(), "--dtype", "fp32"]
    weights = {f"layers.{l}.{name}": part * np.float32(1.5)
               for l, both in enumerate(matrices(case, initial_parameters(case)))
               for name, part in zip(("bias", "weight"), reversed(both))}
    write_tensors(folder / "init", weights)
    programs.logged(2, ZERO3, *words, "--steps", 1, "--lr", 0, "--init", folder / "init",
                    "--save", folder / "begun")
    begun = read_tensors(folder / "begun/step_1" / FILES[0])[1]
    assert all((begun[name] == weights[name]).all() for name in weights)
    summary = programs.logged(2, ZERO1, *words, "--steps", 3, "--save", folder / "ours")[2]
    metadata, model = read_tensors(folder / "ours/step_3" / FILES[0])
    _, moments = read_tensors(folder / "ours/step_3" / FILES[1])
    assert {name: tensor.shape for name, tensor in model.items()} == \
        {name: tensor.shape for name, tensor in weights.items()}
    assert set(moments) == {f"{name}.exp_avg{rest}" for name in model for rest in ("", "_sq")}
    assert all((moments[f"{name}.exp_avg_sq"] >= 0).all() for name in model)
    files = [(folder / "ours/step_3" / name).read_bytes() for name in FILES]
    size = sum(len(data) - 8 - struct.unpack("<Q", data[:8])[0] for data in files)
    planned = programs.run(0, ZERO1, *words, "--plan", "--ranks", 2).out
    assert f" = {size:,}".replace(",", " ") + " bytes, and two headers\n" in planned
    flat = np.concatenate([model[f"layers.{l}.{name}"].ravel() for l in range(2)
                           for name in ("weight", "bias")])
    ours = [f"{digest:016x}" for digest in layer_digests(case, flat)]
    assert ours == summary["layer_digests"]
    for l, digest in enumerate(ours):
        assert sum(int(metadata[f"digest layers.{l}.{name}"], 16) for name in ("weight", "bias")) \
            % 2**64 == int(digest, 16)
    assert (metadata["step"], metadata["updates"], metadata["format"]) == ("3", "3", "pt")


def test_a_file_may_have_16_bits(programs, folder):
    programs.logged(0, ALONE, *LLAMA, "--steps", 1, "--save", folder / "ours")
    kinds = itertools.cycle((np.asarray, np.float16, lambda it: it.view("<u2").ravel()[1::2]))
    stored = {name: next(kinds)(tensor).reshape(tensor.shape) for name, tensor in
              read_tensors(folder / "ours/step_1" / FILES[0])[1].items()}
    write_tensors(folder / FILES[0], stored)
    programs.logged(2, ZERO3, *LLAMA, "--dtype", "fp32", "--steps", 1, "--lr", 0, "--init",
                    folder / FILES[0], "--save", folder / "begun")
    for name, tensor in read_tensors(folder / "begun/step_1" / FILES[0])[1].items():
        wide = stored[name].astype("<u4") << 16 if stored[name].dtype == np.uint16 else \
            stored[name].astype("<f4")
        assert (tensor == wide.view("<f4")).all(), name


# ---- What is refused -----------------------------------------------------------------------------

@pytest.fixture(name="saved", scope="module")
def saved_once(programs, tmp_path_factory):
    """Two checkpoints, of steps 1 and 2."""
    saved = tmp_path_factory.mktemp("saved")
    programs.logged(0, ALONE, *SMALL, "--steps", 2, "--save", saved, "--save-every", 1)
    (saved / "step_9.old").mkdir()
    yield saved
    shutil.rmtree(saved)


def spoil_weight(step):
    data = bytearray((step / FILES[0]).read_bytes())
    data[-3] ^= 1
    (step / FILES[0]).write_bytes(data)


def spoil_step(step):
    path = step / FILES[1]
    path.write_bytes(path.read_bytes().replace(b'"step":"2"', b'"step":"3"'))


def spoil_digest(step):
    path = step / FILES[0]
    path.write_bytes(path.read_bytes().replace(b'"digest layers.2.b', b'"unread layers.2.b'))


@pytest.mark.parametrize("code, change, options, words", (
    (DATA, None, "--width 8", 'its run has width "7", this one "8"'),
    (DATA, None, "--seed 2", 'its run has seed "1", this one "2"'),
    (DATA, None, "--task toy", 'its run has layers "3", this one "2"'),
    (USAGE, None, "--steps 1", "--steps 1: saved/step_2 has made 2 already"),
    (0, None, "--steps 2", "saved/step_2 has made all 2 steps"),
    (DATA, spoil_weight, "", "layers.2.bias has digest .* and should have .*: it is not what was"),
    (DATA, spoil_weight, "--init saved/step_2/model.safetensors", "layers.2.bias has digest"),
    (DATA, spoil_digest, "", 'layers.2.bias has digest .* should have "": it is not what was'),
    (DATA, None, "--init fresh", "cannot read fresh: it is no file"),
    (DATA, spoil_step, "", 'optimizer.safetensors: its run has step "3", this one "2"'),
    (DATA, lambda step: (step / FILES[1]).unlink(), "", "optimizer.safetensors: it is no file"),
    (DATA, lambda step: os.truncate(step / FILES[1], 999), "", "header would have .* file has 999"),
    (DATA, None, "--resume empty", "--resume empty: there is no folder step_N"),
    (DATA, None, "--resume saved/step_1/model.safetensors", "there is no folder step_N"),
    (USAGE, None, "--resume saved/step_1 --save saved", "step 2 is there, and not resumed"),
    (USAGE, None, "--save fresh/../saved --resume saved/step_1", "step 2 is there, and not"),
    (RESOURCES, None, "--save /proc/none", "--save /proc/none: No such file or directory"),
))
def test_it_is_refused(programs, folder, saved, code, change, options, words):
    """In one sentence, before a step is made; a log that is there stays."""
    shutil.copytree(saved, folder / "saved")
    for name in ("empty", "fresh"):
        (folder / name).mkdir()
    if change:
        change(folder / "saved/step_2")
    resume = [] if re.search("--(resume|init)", options) else ["--resume", "saved"]
    given = [word for word in SMALL if "--task" not in options] or ["--batch", 3]
    for word in options.split():
        if word in given:
            given = given[:given.index(word)] + given[given.index(word) + 2:]
    (folder / "log").write_text("kept")
    outcome = programs.run(0, ALONE, *given, *resume, "--log", "log",
                           *(["--steps", 4] if "--steps" not in options else []),
                           *options.split(), cwd=folder)
    assert outcome.code == code, outcome
    said, = outcome.own_errors()
    assert re.search(words, said), said
    assert (folder / "log").read_text() == "kept"


@pytest.mark.parametrize("config, options, words", (
    ({"rope_theta": 10000, "max_position_embeddings": 9, "dtype": "bfloat16"}, "", None),
    ({"rope_theta": 5e5}, "", "config.json: its model has rope_theta 500000.0, this run's 10000.0"),
    ({"rope_parameters": {"rope_theta": 9}}, "", "its model has rope_theta 9, this run's 10000.0"),
    ({"rope_scaling": {"factor": 8.0}}, "", "rope_scaling {.factor.:8.0}, this run's null"),
    ({}, "--heads 4", "config.json: its model has num_attention_heads 8, this run's 4"),
    ({"lost": "lm_head.weight"}, "", "has no lm_head.weight, as its head is tied"),
    ({}, "--init a_part", "its model is in several files, which .*index.json lists"),
    ({}, "--init model.safetensors.index.json", "its model is in several files, which .* lists"),
    ({}, "--resume saved --heads 4", 'has shape "llama: .* heads 8/4,.* this one ".* 4/2,')))
def test_another_llama_is_refused(programs, folder, config, options, words):
    """config: what is said in it; and which tensor is lost."""
    programs.logged(0, ALONE, *LLAMA, "--steps", 1, "--save", folder / "saved")
    weights = folder / "saved/step_1" / FILES[0]
    metadata, model = read_tensors(weights)
    model.pop(config.get("lost"), None)
    write_tensors(weights, model, metadata)
    said = weights.with_name("config.json")
    said.write_text(json.dumps(json.loads(said.read_text()) | config))
    (folder / "model.safetensors.index.json").write_text("{}")
    init = [] if re.search("--(init|resume)", options) else ["--init", weights]
    outcome = programs.run(0, ALONE, *LLAMA, "--steps", 2, *init, *options.split(), cwd=folder)
    assert outcome.code == (DATA if words else 0), outcome
    assert not words or re.search(words, *outcome.own_errors()), outcome


def test_other_data_is_refused(programs, folder):
    text = [DDP, "--width", 8, "--layers", 1, "--batch", 1]
    programs.logged(1, *text, "--steps", 1, "--save", folder / "saved")
    (folder / "other").write_text("to be or not to be, that")
    outcome = programs.run(1, *text, "--data", folder / "other", "--resume", folder / "saved")
    assert outcome.code == DATA and 'its run has data "a text of 65044 bytes' in outcome.err
    outcome = programs.run(1, MIXED, *text[1:], "--dtype", "bf16", "--resume", folder / "saved")
    assert outcome.code == DATA and 'its run has dtype "fp32", this one "bf16"' in outcome.err


def test_one_folder_of_one_run(programs, folder):
    """Another run, and ranks that see two folders of that name, are told so."""
    for name in "ab":
        (folder / name / "saved").mkdir(parents=True)
    program = programs.command(0, DDP, *SMALL, "--quiet", "--save", "saved")
    with subprocess.Popen([*program, "--steps", str(10**8)], cwd=folder / "a") as first:
        while not (folder / "a/saved/.lock").exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = programs.start([*program, "--steps", "1"], folder / "a")
        first.kill()
    assert (second.code, second.own_errors()) == (
        USAGE, ["02_distributed_adam: --save saved: another run saves there"])
    shutil.rmtree(folder / "a/saved")
    apart = programs.start(programs.unlike(f"cd a && {shlex.join(program)}",
                                           f"cd b && {shlex.join(program)}"), folder)
    assert apart.code == USAGE
    said, = apart.own_errors()
    assert "--save saved: it is another folder than rank 0's" in said


# ---- What ends a run -----------------------------------------------------------------------------

def end_and_go_on(programs, folder, ranks, chapter, words, env):
    """Starts a run, and where something ends it goes on with what it has saved, if anything.
    Whether nothing did."""
    program = programs.command(ranks, chapter, *words, "--save", "saved", "--keep", 1)
    ended = programs.start(program, folder, **env)
    if ended.code == 0 and "\nparameters " in ended.out:  # not every launcher's 0 is true
        return True
    resume = ["--resume", "./saved"] if any(folder.glob("saved/step_?")) else []
    again = programs.start([*program, *resume], folder)
    assert again.code == 0, (ended, again)
    return False


@pytest.mark.parametrize("ranks, chapter, rank, calls", (
    (0, ALONE, 0, 62), (2, ZERO3, 0, 53), (2, ZERO3, 1, 32)),
    ids=("alone", "whole first", "whole other"))
def test_killed_at_every_call(programs, folder, ranks, chapter, rank, calls):
    """Of those on files in a save: what was complete before can be gone on with. With fewer calls
    something is not synced."""
    words = "--task mlp --width 3 --layers 1 --batch 1 --steps 3 --save-every 1".split()
    programs.logged(ranks, chapter, *words, "--save", folder / "whole")
    for number in range(1, 1000):
        shutil.rmtree(folder / "saved", ignore_errors=True)
        whole = end_and_go_on(programs, folder, ranks, chapter, words, {
            "LD_PRELOAD": INJECTOR, "FAULT": f"file {rank} {number}"})
        assert same_files(folder / "saved/step_3", folder / "whole/step_3")
        if whole:
            break
    assert number > calls


@pytest.mark.parametrize("ranks, how, words", (
    (2, 'FAULT="full 0 13" LD_PRELOAD=libinjector.so', "rank 0/2: .*No space left on device"),
    (2, 'FAULT="full 1 7" LD_PRELOAD=libinjector.so', "rank 1/2: .*No space left on device"),
    (2, 'FAULT="flip 1 2" LD_PRELOAD=libinjector.so', "rank 1/2: .* not hold what was written"),
    (2, 'FAULT="unread 1 1" LD_PRELOAD=libinjector.so', "rank 1/2: .*Input/output error"),
    (2, 'FAULT="denied 0 1" LD_PRELOAD=libinjector.so', "step.partial: Read-only file system"),
    (0, "ulimit -f 1;", ".*.safetensors: File too large")))
def test_the_system_refuses(programs, folder, ranks, how, words):
    """The run goes on to its end, and leaves nothing half written."""
    program = programs.command(0, ZERO3 if ranks else ALONE, *SMALL, "--width", 256, "--steps", 3,
                               "--save-every", 2, "--save", "saved")
    program.remove("7"), program.remove("--width")
    launch = [programs.mpiexec, "-n", str(ranks)] if ranks else []
    outcome = programs.start([*launch, "bash", "-c", how + ' exec "$@"', "bash", *program], folder)
    assert outcome.code == RESOURCES and "parameters " in outcome.out, outcome
    lines = outcome.own_errors()
    assert lines and all(re.search(": step [23] is not saved: .*" + words, x) for x in lines), lines
    assert not list(folder.glob("saved/*.partial"))
    assert ranks == 0 or (folder / "saved/step_3").exists()


def test_a_header_that_is_written_in_part(programs, folder):
    """Of 500 layers it is longer than the injector lets one call write."""
    words = "--task mlp --width 1 --layers 500 --batch 1 --steps 1 --save saved".split()
    done = programs.run(0, ALONE, *words, cwd=folder, LD_PRELOAD=INJECTOR)
    assert done.code == RESOURCES and "No space left on device" in done.err


@pytest.mark.parametrize("ranks, chapter", ((0, ALONE), (2, OFFLOAD)))
@pytest.mark.parametrize("which", (signal.SIGINT, signal.SIGTERM))
def test_a_signal_saves(programs, folder, ranks, chapter, which):
    if ranks and not programs.passes_signals:
        pytest.skip("this launcher ends its ranks when it gets a signal")
    program = programs.command(ranks, chapter, *SMALL, "--steps", 10**8, "--quiet", "--log", "log",
                               "--save", "saved")
    with subprocess.Popen(program, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        while not (folder / "log").exists() or (folder / "log").stat().st_size < 3000:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(which)
        try:
            err = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    said, = Outcome(process.returncode, "", err).own_errors()
    assert process.returncode == 128 + which
    step = int(re.search(rf"ended by signal {int(which)} after step (\d+)$", said)[1])
    *_, last, saved = map(json.loads, (folder / "log").read_text().splitlines())
    assert (last["step"], saved["save"]["step"], saved["save"]["path"]) == \
        (step, step, f"saved/step_{step}")
    assert programs.run(ranks, chapter, *SMALL, "--steps", step + 1, "--resume", "saved",
                        cwd=folder).code == 0


def test_whole_through_thirty_kills(programs, folder):
    """At random moments, all ranks: the files of the run in one piece."""
    words = [*SMALL, "--steps", 3000]
    programs.logged(4, ZERO3, *words, "--save", folder / "whole")
    saved = folder / "saved"
    command = [*programs.command(4, ZERO3, *words, "--quiet", "--save", saved), "--save-every", "5"]
    newest, killed = [], 0
    for _ in range(30):
        with subprocess.Popen([*command, *(["--resume", saved] if newest else [])],
                              stderr=subprocess.PIPE, start_new_session=True) as process:
            time.sleep(random.uniform(0.2, 1.2))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until what the launcher started has ended, too
        newest = sorted(int(path.name[5:]) for path in saved.glob("step_[0-9]*"))[-1:] or newest
        killed += process.returncode != 0
    assert killed > 5 and newest
    if newest[0] < 3000:
        assert programs.start([*command, "--resume", saved]).code == 0
    assert same_files(saved / "step_3000", folder / "whole/step_3000")
