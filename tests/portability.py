#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""README's two commands on another system, as a new user types them.

A clean root is made by debootstrap and by what the Dockerfile runs. There a user who is not root
has a clone of this repository's HEAD, in a folder with a blank and an umlaut in its name, and runs
./tutorial demo, which must have the recorded bits, and ./tutorial test. This needs root. Where it
cannot be done, or an archive does not bring what it lists, it says so and is skipped.
"""
import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = 77  # the exit code by which Meson knows it
# Debian's name of the system, and packages that are there before anything else.
SYSTEMS = {"12": ("bookworm", ""), "13": ("trixie", ""), "testing": ("testing", ""),
           "13-openmpi": ("trixie", "openmpi-bin libopenmpi-dev")}
FOLDER = "zero für alle"
# What apt-get says of packages that it knows and cannot bring.
ARCHIVE = re.compile("Failed to fetch|unmet dependencies|not valid yet|expired|Hash Sum mismatch|"
                     "Temporary failure|Could not (resolve|connect)|Connection (failed|timed out)")
NO = re.compile(r"(?m)^.*: +no\b.*$")  # a verdict of the demo's


class Skipped(Exception):
    """It cannot be tried here and now."""


class CleanRoot:
    """A system in a folder. Nothing outlives the command that is run there: its mounts and
    processes are in namespaces of their own."""

    def __init__(self, path, with_sys):
        self.path = path
        self.mounts = ["mount -t proc proc proc", "mount --rbind /dev dev",
                       "mount -t tmpfs -o size=64m tmpfs dev/shm",  # as much as Docker gives
                       *(["mount --rbind /sys sys"] if with_sys else [])]

    def run(self, command, folder="/", user="root", limit=1200):
        """Its exit code and output."""
        account = subprocess.run(["grep", f"^{user}:", self.path / "etc/passwd"], check=True,
                                 capture_output=True, text=True).stdout.split(":")
        inside = f"cd {shlex.quote(folder)} && {command}"
        become = f"chroot --userspec={account[2]}:{account[3]} . /usr/bin/env -i HOME={account[5]} " \
                 "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin " \
                 f"DEBIAN_FRONTEND=noninteractive sh -c {shlex.quote(inside)}"
        try:
            done = subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec",
                 "\n".join([*self.mounts, become])], cwd=self.path, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, text=True,
                errors="replace")
        except subprocess.TimeoutExpired as late:
            return None, f"{late.output}\nended after {limit} s"
        return done.returncode, done.stdout

    def prepare(self, command, **how):
        """Runs what must succeed before the project itself is tried."""
        code, said = self.run(command, **how)
        if code and ARCHIVE.search(said):
            raise Skipped(f"the archive: {last_line(said)}")
        assert code == 0, f"{command}\n{said}"


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def docker_steps():
    """The Dockerfile's lines as (instruction, rest), continued lines as one."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def build(root, before):
    """Follows the Dockerfile in a root that debootstrap has made, but that it copies the
    repository into a folder of another name; returns that folder and its user."""
    user, folder = "root", "/"
    if before:
        root.prepare(f"apt-get update && apt-get install -y --no-install-recommends {before}")
    for instruction, rest in docker_steps():
        if instruction == "RUN":
            root.prepare(rest, folder=folder, user=user)
        elif instruction == "USER":
            user = rest
        elif instruction == "WORKDIR":
            folder = str(Path(rest).parent / FOLDER)
        elif instruction == "COPY":
            there = root.path / folder.lstrip("/")
            subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, there], check=True)
            root.prepare(f"chown -R {user}: {shlex.quote(folder)}")
    return folder, user


def clean_root(path, suite):
    done = subprocess.run(["debootstrap", "--variant=minbase", suite, path], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Skipped(f"debootstrap makes no {suite}: {last_line(done.stdout)}")


def check(root, folder, user):
    """Runs the two commands; returns what is wrong."""
    for command in ("./tutorial demo", "./tutorial test"):
        start = time.monotonic()
        code, said = root.run(command, folder=folder, user=user)
        wrong = "\n".join(NO.findall(said)) if code == 0 else said
        if command.endswith("demo") and "the same bits as the recorded runs: yes" not in said:
            wrong = said
        print(f"{command}: {time.monotonic() - start:.0f} s, {last_line(said)}", flush=True)
        if wrong:
            return wrong
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--without-sys", action="store_true", help="as in some containers")
    parser.add_argument("--keep", action="store_true", help="the root, where something is wrong")
    options = parser.parse_args()
    suite, before = SYSTEMS[options.system]
    missing = [tool for tool in ("debootstrap", "unshare", "git") if not shutil.which(tool)]
    path = Path(tempfile.mkdtemp(prefix="zero_root_", dir="/var/tmp"))
    path.chmod(0o755)  # the user's / is this folder
    wrong = ""
    try:
        if missing or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode:
            raise Skipped(f"it needs root, and {', '.join(missing) or 'the right to mount'}")
        clean_root(path, suite)
        root = CleanRoot(path, not options.without_sys)
        wrong = check(root, *build(root, before))
    except Skipped as why:
        print(f"Debian {options.system}: {why}")
        return SKIPPED
    finally:
        if options.keep and wrong:
            print(f"kept: {path}")
        else:
            shutil.rmtree(path)
    print(wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
