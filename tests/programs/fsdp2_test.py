# SPDX-License-Identifier: MIT
"""FSDP2 gathers as often as notes/fsdp2.md says, on two processes, if PyTorch is installed."""
import sys

import pytest
from programs import ROOT

# Prints "here" if PyTorch is there; then, for each setting, one process's gathers in both passes.
COUNTED = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
print("here", flush=True)
dist.init_process_group("gloo", f"file://{sys.argv[1]}", rank=int(os.fork() == 0), world_size=2)
for micro_batches, keeps_last, reshards in (1, 0, 1), (1, 1, 1), (4, 0, 1), (4, 0, 0):
    model, counts = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5))), [0, 0]
    for i in range(4): fully_shard(model[i], reshard_after_forward=i < 3 or not keeps_last)
    fully_shard(model)
    for micro_batch in range(micro_batches):
        model.set_reshard_after_backward(bool(reshards) or micro_batch == micro_batches - 1)
        for i, work in enumerate((lambda: model(torch.ones(2, 8)).sum(), lambda: loss.backward())):
            with CommDebugMode() as seen:
                loss = work()
            counts[i] += sum(n for op, n in seen.get_comm_counts().items() if "gather" in str(op))
    print(*counts) if dist.get_rank() else None
"""


def test_it_gathers_as_often(programs, folder):
    outs = [programs.start([python, "-c", COUNTED, f"{folder}/ranks"]).out
            for python in dict.fromkeys((sys.executable, "python3"))]
    if not any(outs):
        pytest.skip("no Python here has PyTorch with FSDP2 (pip install torch)")
    assert "\n5 4\n5 3\n20 16\n5 16" in max(outs), outs
    page = " ".join((ROOT / "notes/fsdp2.md").read_text().split())
    assert "5 times in forward and 4 times in backward; with the last block kept, 3 times" in page
    assert "gathered 5 + 16 times instead of 20 + 16" in page
