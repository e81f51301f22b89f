#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs README's two commands on other systems, as a new user types them.

A clean root is made by debootstrap and by what the Dockerfile runs. There a user who is not root
has a clone of this repository's HEAD, in a folder with a blank and an umlaut in its name, and runs
./tutorial demo, which must have the recorded bits, and ./tutorial test, both in ten minutes. This
script needs root. If it cannot run, or an archive does not bring what it lists, it says so and ends
as skipped. With --record it writes what was tried to notes/systems.json, from which
tools/measure.py --only systems makes the table of notes/tested.md.
"""
import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = 77  # the exit code by which Meson knows a skipped test
OPEN_MPI = "openmpi-bin libopenmpi-dev"
# {system: (Debian's name of it, packages that are there before anything else)}. The last one stands
# for Ubuntu 24.04: it has the same Open MPI (4.1) and {fmt} (9).
SYSTEMS = {"13": ("trixie", ""), "testing": ("testing", ""), "12": ("bookworm", ""),
           "13-openmpi": ("trixie", OPEN_MPI), "12-openmpi": ("bookworm", OPEN_MPI)}
RECORD = ROOT / "notes/systems.json"
FOLDER = "zero für alle"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT = 600  # seconds for ./tutorial demo and test together, or for another command
# What apt-get says of packages that it cannot bring, and ./tutorial when its apt-get has failed.
ARCHIVE = re.compile("Failed to fetch|unmet dependencies|not valid yet|expired|Hash Sum mismatch|"
                     "Temporary failure|Could not (resolve|connect)|Connection (failed|timed out)")
INSTALLING = re.compile(r"(?m)^(reading the lists of packages.*|installing \d+ packages) +failed$")
VERDICT = re.compile(r"(?m)^.+: +(yes|no)$")
BITS = re.compile(r"(?m)^the same bits as the recorded runs: +yes$")


class Skipped(Exception):
    """Says why a system cannot be tried here and now."""


class Wrong(Exception):
    """Has the output of a command that did not do what it should."""


class CleanRoot:
    """A system in a folder. Nothing outlives the command that is run there: its mounts and
    processes are in namespaces of their own."""

    def __init__(self, path, with_sys):
        self.path, self.user, self.folder = path, "root", "/"
        self.mounts = ["mount -t proc proc proc", "mount --rbind /dev dev",
                       "mount -t tmpfs -o size=1g tmpfs dev/shm",  # as README's docker command
                       *(["mount --rbind /sys sys"] if with_sys else [])]

    def run(self, command, limit=LIMIT):
        """Returns what the command prints. Raises Wrong if it fails, Skipped if an archive does."""
        users = dict(line.split(":", 1) for line in (self.path / "etc/passwd").open())
        _, uid, gid, _, home, _ = users[self.user].split(":")
        become = ["chroot", f"--userspec={uid}:{gid}", ".", "/usr/bin/env", "-i", f"HOME={home}",
                  f"PATH={PATH}", "DEBIAN_FRONTEND=noninteractive", "sh", "-c",
                  f"cd {shlex.quote(self.folder)} && {command}"]
        with subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec",
                               "\n".join([*self.mounts, shlex.join(become)])], cwd=self.path,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace") as process:
            try:
                said, late = process.communicate(timeout=limit)[0], ""
            except subprocess.TimeoutExpired:
                process.kill()
                said, late = process.communicate()[0], f"ended after {limit:.0f} s"
        if process.returncode == 0:
            return said
        if ARCHIVE.search(said) and (self.user == "root" or INSTALLING.search(said)):
            raise Skipped(f"the archive: {last_line(said)}")
        raise Wrong(f"{said}{command}: {late or f'exit code {process.returncode}'}")

    def build(self):
        """Follows the Dockerfile, but copies the repository into a folder of another name."""
        text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
        for line in text.splitlines():
            instruction, _, rest = line.partition(" ")
            if instruction == "RUN":
                self.run(rest)
            elif instruction == "USER":
                self.user = rest
            elif instruction == "WORKDIR":
                there = self.path / Path(rest).relative_to("/").with_name(FOLDER)
                subprocess.run(["git", "clone", "-q", "--no-local", ROOT, there], check=True)
                self.commit = subprocess.run(
                    ["git", "-C", there, "rev-parse", "--short", "HEAD"], check=True,
                    capture_output=True, text=True).stdout.strip()
                owner = there.parent.stat()
                subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", there], check=True)
                self.folder = f"/{there.relative_to(self.path)}"


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def debootstrap(suite, path):
    done = subprocess.run(["debootstrap", "--variant=minbase", suite, path], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Skipped(f"debootstrap makes no {suite}: {last_line(done.stdout)}")


def run_both(root):
    """Runs README's two commands. Returns the time of each, and the last line of the second."""
    end, told = time.monotonic() + LIMIT, []
    for command in ("./tutorial demo", "./tutorial test"):
        start = time.monotonic()
        said = root.run(command, end - start)
        if "demo" in command and (not BITS.search(said) or "no" in VERDICT.findall(said)):
            raise Wrong(said)
        told.append(f"{time.monotonic() - start:.0f} s")
        print(f"{command}: {told[-1]}, {last_line(said)}", flush=True)
    return *told, last_line(said)


def record(root, system, demo, test, counts):
    """Replaces the system's row in notes/systems.json, by what ./tutorial doctor says there."""
    rows = {row["system"]: row for row in json.loads(RECORD.read_text())}
    found = dict(re.findall(r"(?m)^(\S+(?: \S+)?)  +(.*)$", said := root.run("./tutorial doctor")))
    rows[system] = {
        "system": system, "mpi": re.search(r"Will be used: (.+?),", said)[1],
        "compiler": f"g++ {found['compiler'].split()[-1]}", "meson": found["meson"],
        "date": date.today().isoformat(), "commit": root.commit, "demo": demo, "test": test,
        "counts": counts}
    text = ",\n ".join(json.dumps(rows[name]) for name in SYSTEMS if name in rows)
    RECORD.write_text(f"[{text}]\n")


def try_system(system, options):
    """Tries a system in a new root. Returns the exit code."""
    print(f"Debian {system}", flush=True)
    suite, before = SYSTEMS[system]
    path = Path(tempfile.mkdtemp(prefix="zero_root_", dir="/var/tmp"))
    path.chmod(0o755)  # the user's / is this folder
    root = CleanRoot(path, not options.without_sys)
    try:
        if not all(map(shutil.which, ("debootstrap", "unshare", "git"))) or subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "true"]).returncode:
            raise Skipped("a clean root takes root, the right to mount, debootstrap and git")
        debootstrap(suite, path)
        # Every installation has this file. Without it Open MPI asks a name server, and waits.
        (path / "etc/hosts").write_text("127.0.0.1 localhost\n")
        if options.old_archive:
            (path / "etc/apt/apt.conf.d/old").write_text('Acquire::Check-Valid-Until "false";\n')
        if before:
            root.run(f"apt-get update && apt-get install -y --no-install-recommends {before}")
        root.build()
        told = run_both(root)
        if options.record:
            record(root, system, *told)
    except (Skipped, Wrong) as why:
        print(f"Debian {system}: {why}", flush=True)
        return SKIPPED if isinstance(why, Skipped) else 1
    finally:
        if options.keep:
            print(f"kept: {path}")
        else:
            shutil.rmtree(path)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=[*SYSTEMS, "by-turns"],
                        help="by-turns: the day of the year chooses one of them; where it cannot "
                             "be tried, the next one")
    parser.add_argument("--without-sys", action="store_true", help="as in some containers")
    parser.add_argument("--old-archive", action="store_true", help="take lists past their date")
    parser.add_argument("--keep", action="store_true", help="the root, to look into it")
    parser.add_argument("--record", action="store_true", help="note it in notes/systems.json")
    options = parser.parse_args()
    systems = [options.system]
    if systems == ["by-turns"]:
        today = date.today().timetuple().tm_yday % len(SYSTEMS)
        systems = [*SYSTEMS][today:] + [*SYSTEMS][:today]
    for system in systems:
        code = try_system(system, options)
        if code != SKIPPED:
            break
    return code


if __name__ == "__main__":
    sys.exit(main())
