#!/usr/bin/env python3
"""Plays docs/first-hour.md in a fresh Debian machine, command by command, and compares what each prints with the page.

    first_hour.py --dist FOLDER --root FOLDER [--write]

    --dist FOLDER   the folder of scripts/dist, with the Debian package
    --root FOLDER   a root with systemd made by debootstrap; it is copied, and not changed
    --write         rewrite the outputs in the page

Needs root, because systemd-nspawn boots the copy, with processes, mounts and a network of its own.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/first-hour.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Seconds in which a command that is repeated until its output is the page's has to succeed.
PATIENCE = 120
#: Seconds for the whole page.
LIMIT = 1200
#: What differs between two runs: durations, progress, counts of files and decisions. Other small numbers must be equal.
MASKS = [
    (r"\b[0-9a-f]{16,}\b", "<hex>"),
    (r"^(\d+ +\w+ +running +\S+) .*", r"\1"),
    (r"\bdecision +\d+", "decision <n>"),
    (r"\b\d+(\.\d+)?(ms|s|m|h|d)\b|\b\d+\.\d+\b|\b\d{3,}\b", "<n>"),
    (r"; next decision .*", ""),
    (r"[ \t]+", " "),
]


def masked(line: str) -> str:
    for pattern, mask in MASKS:
        line = re.sub(pattern, mask, line)
    return line.strip()


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the lines after it."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("# "):
            found.append((line[2:], ""))
        elif found and line.startswith("> "):
            found[-1] = (found[-1][0] + "\n" + line[2:], "")
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


class Shell:
    """A shell in a machine that systemd-nspawn boots. A command's output ends at a mark."""

    MARK = "--- the end of the output ---"

    def __init__(self, root: Path, console: Path) -> None:
        boot = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "-D"]
        boot += [str(root), "--boot"]
        with console.open("wb") as log:
            self.machine = subprocess.Popen(boot, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        # Nothing on the page takes so long.
        self.limit = threading.Timer(LIMIT, self.machine.kill)
        self.limit.daemon = True
        self.limit.start()
        try:
            self.enter()
        except BaseException:
            print(console.read_text(errors="replace")[-2000:], file=sys.stderr)
            self.machine.kill()
            self.machine.wait()
            raise

    def enter(self) -> None:
        """Starts the shell in the machine."""
        leader = self.leader()
        enter = ["nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        enter += ["--root", "--wd"]
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        self.process = subprocess.Popen(
            [*enter, "/bin/bash", "--norc"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.run("cd /root; exec 2>&1")

    def wait(self, console: Path) -> None:
        """Waits until the machine runs."""
        state = "offline\n"
        # Before systemd listens, it prints nothing.
        while state in ("", "offline\n"):
            state = self.run("systemctl is-system-running --wait 2>/dev/null")
        if state != "running\n":
            raise RuntimeError(f"the machine is {state}{console.read_text(errors='replace')[-2000:]}")

    def leader(self) -> str:
        """The machine's first process."""
        children = Path(f"/proc/{self.machine.pid}/task/{self.machine.pid}/children")
        while self.machine.poll() is None:
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return child
            time.sleep(0.1)
        raise RuntimeError("systemd-nspawn ended")

    def run(self, command: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{command}\necho; echo '{self.MARK}'\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.rstrip("\n") == self.MARK:
                return "".join(lines).removesuffix("\n").rstrip(" ")
            lines.append(line)
        raise RuntimeError(f"the shell ended: {''.join(lines)}")

    def end(self) -> None:
        self.limit.cancel()
        self.process.kill()
        self.process.wait()
        # The machine is shut down.
        self.machine.terminate()
        try:
            self.machine.wait(60)
        except subprocess.TimeoutExpired:
            self.machine.kill()
            self.machine.wait()


def until(shell: Shell, command: str, expected: str, write: bool) -> str:
    """The output of a command. One that begins with `sleep N;` is repeated until it prints what the page says, or, to
    write the page, the same twice."""
    output = shell.run(command)
    wait = re.match(r"sleep (\d+);", command)
    for _ in range(PATIENCE // int(wait[1]) if wait else 0):
        if same(output, expected):
            break
        before, output = output, shell.run(command)
        if write and same(output, before):
            break
    return output


def same(output: str, expected: str) -> bool:
    return [masked(line) for line in output.splitlines()] == [masked(line) for line in expected.splitlines()]


def play(shell: Shell, page: str, write: bool) -> tuple[str, list[str]]:
    """The page with the outputs of this run, and what differs."""
    differences: list[str] = []

    def again(block: re.Match[str]) -> str:
        text = ""
        for command, expected in commands(block[1]):
            output = until(shell, command, expected, write)
            print(f"# {command}\n{output}", end="", flush=True)
            if not same(output, expected):
                lines = difflib.unified_diff(expected.splitlines(), output.splitlines(), "page", "now", lineterm="")
                differences.append("\n".join([f"# {command}", *lines]))
            text += "# " + command.replace("\n", "\n> ") + "\n" + output
        return f"```console\n{text}```"

    return BLOCK.sub(again, page), differences


def newer(package: Path, folder: Path) -> Path:
    """The same package with a later version, for the upgrade."""
    subprocess.run(["dpkg-deb", "-R", package, folder / "tree"], check=True)
    control = folder / "tree/DEBIAN/control"
    text = control.read_text()
    version = re.search(r"^Version: (.*)$", text, re.MULTILINE)
    assert version
    control.write_text(text.replace(version[0], f"{version[0]}+1"))
    path = folder / package.name.replace(version[1], f"{version[1]}+1")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", folder / "tree", path], check=True)
    shutil.rmtree(folder / "tree")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    [package] = args.dist.glob("trainmaster_*.deb")
    # Programs in the root may still be ending.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "root"
        subprocess.run(["cp", "-a", args.root.resolve(), root], check=True)
        for file in (package, newer(package, Path(folder))):
            shutil.copy(file, root / "root")
        console = Path(folder) / "console.log"
        shell = Shell(root, console)
        try:
            shell.wait(console)
            page, differences = play(shell, PAGE.read_text(), args.write)
        finally:
            shell.end()
    if args.write:
        PAGE.write_text(page)
        return 0
    print("\n\n".join(differences), file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
