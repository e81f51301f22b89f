# SPDX-License-Identifier: MIT
"""Two ranks on two network namespaces of this machine, which play hosts, over TCP. The digest is
that of one host, the bytes on the wire are those that were counted, a slow link takes its time, and
a link that goes down ends the run."""
import contextlib
import os
import re
import subprocess
import time

import pytest
from programs import COMMUNICATION, read_log

HOSTS = {"zero_a": "10.77.0.1", "zero_b": "10.77.0.2"}
HEADERS = 0.08  # the headers of Ethernet, IP, TCP and MPI are at most this share of what is sent
MBIT, BURST = 50, 2**18  # the slow link's Mbit/s, and the bytes that may pass at once
# What mpiexec takes for ssh: [options] host command...
LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in 10.77.0.1) name=zero_a ;; *) name=zero_b ;; esac
shift
exec ip netns exec $name unshare --uts sh -c "hostname ${name#zero_}; $*"
"""


def ip(*words, of=None):
    return subprocess.run(["ip", *(["-n", of] if of else []), *words], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def make_hosts():
    a, b = HOSTS
    ip("link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
    for name, address in HOSTS.items():
        ip("address", "add", address + "/24", "dev", "eth0", of=name)
        ip("link", "set", "lo", "up", of=name)
        ip("link", "set", "eth0", "up", of=name)
    while any(b"state UP" not in ip("link", "show", "eth0", of=name) for name in HOSTS):
        time.sleep(0.05)  # a link comes up a little after the command


@pytest.fixture
def on_hosts(programs, folder):
    """Returns a function that makes the command of a run on both hosts. UCX may use TCP only,
    because it would see that the hosts share memory."""
    if "openmpi" in programs.mpiexec:
        pytest.skip("MPICH's launcher is needed to start ranks in namespaces")
    launcher = folder / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    with contextlib.ExitStack() as made:
        try:
            for name in HOSTS:
                ip("netns", "add", name)
                made.callback(ip, "netns", "delete", name)
            make_hosts()
        except (OSError, subprocess.CalledProcessError) as why:
            pytest.skip(f"network namespaces cannot be made here: {why}")
        yield lambda *words: [
            "ip", "netns", "exec", "zero_a", programs.mpiexec, "-launcher", "ssh", "-launcher-exec",
            launcher, "-iface", "eth0", "-hosts", ",".join(HOSTS.values()), "-genv", "UCX_TLS",
            "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0", "-n", "2", *programs.command(0, *words)]


def sent_bytes():
    return int(ip("netns", "exec", "zero_a", "cat", "/sys/class/net/eth0/statistics/tx_bytes"))


@pytest.mark.parametrize("chapter, slow", (
    ("02_distributed_adam", False), ("05_zero2", False), ("06_zero3", False), ("06_zero3", True),
    ("07_offload", False), ("08_infinity", False)))
def test_two_hosts(programs, on_hosts, folder, chapter, slow):
    if slow:
        ip("netns", "exec", "zero_a", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf",
           "rate", f"{MBIT}mbit", "burst", str(BURST), "latency", "1s")
    words = [chapter, "--width", 128, "--layers", 4, "--steps", 20]
    before = sent_bytes()
    done = programs.start(on_hosts(*words, "--quiet", "--log", folder / "log"))
    crossed = sent_bytes() - before
    assert done.code == 0, done
    run, steps, summary = read_log(folder / "log")
    traffic = summary["traffic"]
    elements = sum(phase["counted"] for phase in traffic["phases"].values())
    counted = elements * (4 if run["dtype"] == "fp32" else 2) + 8 * traffic["scalars"]["counted"]
    assert summary["digest"] == programs.logged(2, *words)[2]["digest"]
    assert counted <= crossed <= (1 + HEADERS) * counted
    took, shaped = sum(step["ms"] for step in steps) / 1000, 8 * (counted - BURST)
    assert not slow or took >= shaped / (MBIT * 1e6)


def test_a_link_goes_down(on_hosts):
    command = on_hosts("05_zero2", "--steps", 10**6, "--timeout", 2)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as job:
        for line in job.stdout:
            if re.match(" +1 +\\d", line):  # the first step
                break
        ip("link", "set", "eth0", "down", of="zero_b")
        said = job.communicate(timeout=60)[0]
    assert job.returncode == COMMUNICATION, said
    assert f"rank 0/2 on {os.uname().nodename}: step " in said and "for rank 1" in said
