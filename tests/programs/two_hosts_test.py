#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two ranks on two hosts, which are network namespaces of this machine, over TCP: the digest is one
host's, what crosses the wire is what was counted, a slow link is waited for, a dead one is told.
"""
import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
from programs import SKIPPED, Programs, options_of, read_log  # noqa: E402

HOSTS = {"zero_a": "10.77.0.1", "zero_b": "10.77.0.2"}
HEADERS = 0.08  # of Ethernet, IP, TCP and MPI, at most, of what is sent
MBIT, BURST = 50, 2**18  # of the slow link: its rate, and the bytes that may pass at once
# What mpiexec takes for ssh: [options] host command...
LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in 10.77.0.1) name=zero_a ;; *) name=zero_b ;; esac
shift
exec ip netns exec $name sh -c "$*"
"""


def ip(*words, of=None):
    return subprocess.run(["ip", *(["-n", of] if of else []), *words], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@contextlib.contextmanager
def hosts():
    with contextlib.ExitStack() as made:
        for name in HOSTS:
            ip("netns", "add", name)
            made.callback(ip, "netns", "delete", name)
        a, b = HOSTS
        ip("link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
        for (name, address), device in itertools.product(HOSTS.items(), ("lo", "eth0")):
            if device == "eth0":
                ip("address", "add", address + "/24", "dev", device, of=name)
            ip("link", "set", device, "up", of=name)
        while any(b"state UP" not in ip("link", "show", "eth0", of=name).stdout for name in HOSTS):
            time.sleep(0.05)  # the carrier comes a little later
        yield


def on_hosts(launcher, mpiexec, program, *words):
    """A command; UCX is kept from seeing that the hosts share a memory."""
    return ["ip", "netns", "exec", "zero_a", mpiexec, "-launcher", "ssh", "-launcher-exec",
            launcher, "-iface", "eth0", "-hosts", ",".join(HOSTS.values()), "-genv", "UCX_TLS",
            "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0", "-n", "2", *program,
            *map(str, words)]


def sent_bytes():
    path = "/sys/class/net/eth0/statistics/tx_bytes"
    return int(subprocess.check_output(["ip", "netns", "exec", "zero_a", "cat", path]))


def problems(programs, launcher, folder):
    words = ["--width", 128, "--layers", 4, "--steps", 20, "--quiet"]
    for chapter, slow in (("02_distributed_adam", False), ("05_zero2", False), ("06_zero3", False),
                          ("06_zero3", True), ("07_offload", False)):
        if slow:
            ip("netns", "exec", "zero_a", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf",
               "rate", f"{MBIT}mbit", "burst", str(BURST), "latency", "1s")
        log, before = folder / "log", sent_bytes()
        done = programs.start(on_hosts(launcher, programs.mpiexec, programs.command(0, chapter),
                                       *words, "--log", log))
        crossed = sent_bytes() - before
        if done.code != 0:
            yield f"{chapter}: {done}"
            continue
        run, steps, summary = read_log(log)
        traffic = summary["traffic"]
        elements = sum(phase["counted"] for phase in traffic["phases"].values())
        counted = elements * (4 if run["dtype"] == "fp32" else 2)
        counted += 8 * traffic["scalars"]["counted"]
        if summary["digest"] != programs.logged(2, chapter, *words)[2]["digest"]:
            yield f"{chapter}: another digest than on one host"
        if not counted <= crossed <= (1 + HEADERS) * counted:
            yield f"{chapter}: {crossed} bytes left the host, {counted} were counted"
        took, shaped = sum(step["ms"] for step in steps) / 1000, 8 * (counted - BURST)
        if slow and took < shaped / (MBIT * 1e6):
            yield f"{chapter}: {counted} bytes in {took:.2f} s are more than {MBIT} Mbit/s"
    yield from link_down(programs, launcher)


def link_down(programs, launcher):
    command = on_hosts(launcher, programs.mpiexec, programs.command(0, "05_zero2"),
                       "--steps", 10**6, "--timeout", 2)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as job:
        for line in job.stdout:
            if re.match(" +1 +\\d", line):  # the first step
                break
        ip("link", "set", "eth0", "down", of="zero_b")
        said = job.communicate(timeout=60)[0]
    here = f"rank 0/2 on {os.uname().nodename}: step "
    if job.returncode != 4 or here not in said or "for rank 1" not in said:
        yield f"a link that goes down: code {job.returncode}, {said}"


def main():
    options = options_of(__doc__)
    if "openmpi" in options.mpiexec:
        print("MPICH's launcher is needed to start ranks in namespaces")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="hosts_") as made, contextlib.ExitStack() as stack:
        launcher = Path(made) / "launcher"
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)
        try:
            stack.enter_context(hosts())
        except (OSError, subprocess.CalledProcessError) as why:
            print(f"network namespaces cannot be made here: {why}")
            return SKIPPED
        found = list(problems(Programs(options.build, options.mpiexec), launcher, Path(made)))
    print("\n".join(found) or "two hosts are as good as one")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
