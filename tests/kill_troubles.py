"""Beside kills, for tests/kill_anywhere.py: full disks, read-only folders, changed inputs, wrong clocks."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from killing import Command, Moment, Outcome, run

DEFECT = "This is a bug in cobert"
DECADE = 10 * 365 * 24 * 3600


class Troubles:
    """
    One trouble after another for the steps of a chain.

    Args:
        search (`Search`): the folder, the chain, what undisturbed runs gave, and where faults are noted.
        compare, half_written (`Callable`): of tests/kill_anywhere.py.
    """

    def __init__(self, search, tree: Callable, differences: Callable, half_written: Callable):
        self.search, self.tree, self.differences, self.half_written = search, tree, differences, half_written
        self.counts: dict[str, int] = {}

    def all(self) -> None:
        """Every trouble, for every step."""
        for step in range(len(self.search.chain)):
            self.file_sizes(step)
            self.small_disk(step)
            self.clock(step, -1)
            self.clock(step, 1)
        self.changes()
        print("troubles: " + ", ".join(f"{name} {count}" for name, count in self.counts.items()), flush=True)

    def note(self, what: str, faults: list[str]) -> None:
        self.search._note(what, faults)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def begin(self, name: str, step: int) -> Path:
        """A folder where all steps before this one are done."""
        folder = self.search.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.fill(folder, step)
        return folder

    def fill(self, folder: Path, step: int) -> None:
        for command in self.search.chain[:step]:
            shutil.copytree(self.search.folder / "whole" / command.output, folder / command.output)

    def goes_on(self, what: str, folder: Path, step: int) -> None:
        command = self.search.chain[step]
        outcome = run(command, folder)
        if outcome.code:
            self.note(what, [f"does not go on, exit code {outcome.code}: {outcome.err[-300:]}"])
        else:
            self.note(what, self.differences(self.search.trees[step], self.tree(folder / command.output)))

    def refused(self, what: str, outcome: Outcome, folder: Path, command: Command) -> None:
        """Exit code 1, and one line that names a file or folder and is no defect of ours."""
        lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
        faults = [] if outcome.code == 1 and len(lines) == 1 else [f"exit code {outcome.code}: {outcome.err[-300:]}"]
        if lines and (
            DEFECT in lines[0] or not any(name in lines[0] for name in (command.output, "prepared", "/hf/", "mine"))
        ):
            faults.append(f"a line that names no file: {lines[0]}")
        self.note(what, faults + self.half_written(folder / command.output))

    # -- full disks ------------------------------------------------------------------------------------------------

    def file_sizes(self, step: int) -> None:
        """No file may be larger than a limit (`ulimit -f`, a file system of small files)."""
        command = self.search.chain[step]
        sizes = sorted(len(data) for data in self.search.trees[step].values() if data)
        for limit in sorted({0, sizes[len(sizes) // 3], sizes[-1] // 2, sizes[-1] - 1}):
            what = f"{command.output}, files of at most {limit} bytes"
            folder = self.begin("limited", step)
            reading, writing = os.pipe()  # what is said goes into no file

            def before(limit=limit, writing=writing):
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

            code = run(command, folder, before=before).code
            os.close(writing)
            with open(reading, encoding="utf-8", errors="replace") as file:
                said = file.read()
            self.count("file size limits")
            if code != 0:
                self.refused(what, Outcome(code, "", said, 0), folder, command)
                self.count("of them met")
            self.goes_on(what, folder, step)

    def small_disk(self, step: int) -> None:
        """A disk that is too small, then one that is read-only; then neither."""
        command = self.search.chain[step]
        folder = self.begin("disk", 0)
        with mounted(folder) as remount:
            if remount is None:
                self.count("disks that could not be mounted")
                return
            self.fill(folder, step)
            used = sum(-(-p.stat().st_size // 4096) * 4096 for p in folder.rglob("*") if p.is_file())
            needed = sum(-(-len(data or b"x") // 4096) * 4096 for data in self.search.trees[step].values())
            for share in (0.0, 0.3, 0.8):
                remount(f"size={used + 8192 + int(share * needed)}")
                outcome = run(command, folder)
                self.count("small disks")
                if outcome.code:
                    self.refused(f"{command.output}, a disk of {share:.0%}", outcome, folder, command)
                    self.count("of them full")
            remount("size=1g")
            if not (folder / command.output).exists() or outcome.code:
                remount("ro")
                self.refused(f"{command.output}, a read-only disk", run(command, folder), folder, command)
                self.count("read-only disks")
                remount("rw")
            self.goes_on(f"{command.output}, after small disks", folder, step)

    # -- clocks and inputs -----------------------------------------------------------------------------------------

    def half(self, command: Command, folder: Path, step: int) -> None:
        """Kills it in the middle of its operations."""
        operations = self.search.whole[False][step].operations
        outcome = run(command, folder, Moment("operation", max(1, operations // 2)))
        if not outcome.killed:
            self.note(command.output, [f"was not killed in the middle: {outcome.code}"])

    def clock(self, step: int, direction: int) -> None:
        """Killed, then all files seem to be of another decade, in any order; then it goes on."""
        command, choose = self.search.chain[step], random.Random(step)
        folder = self.begin("clock", step)
        self.half(command, folder, step)
        for path in folder.rglob("*"):
            when = path.stat().st_mtime + direction * DECADE * choose.random()
            os.utime(path, (when, when))
        self.count("clocks")
        self.goes_on(f"{command.output}, file times {direction * 10} years off", folder, step)

    def changes(self) -> None:
        """Killed in the middle, and an input changed: refused, or the result is that of the changed input alone."""
        inputs = {
            "mine/corpus.jsonl": _longer_text,
            "mine/queries.jsonl": _longer_text,
            "mine/qrels/test.tsv": lambda path: _replace(path, "\t0\n", "\t1\n"),
            "folds.json": _other_order,
            "encoder/tokenizer.json": lambda path: _replace(path, '"lowercase": true', '"lowercase": false'),
            "encoder/model.safetensors": _last_byte,
        }
        for step, command in enumerate(self.search.chain):
            used = [word for word in command.words if word.startswith("../")]
            for name, change in inputs.items():
                if any(name.startswith(word.removeprefix("../")) for word in used):
                    self.changed(step, name, change, "..")
        trained = {"prepared/rows/qrels.trec": lambda path: _replace(path, " 0\n", " 1\n")}
        trained["trained/fold-1/model.safetensors"] = _last_byte
        for step, command in enumerate(self.search.chain):
            for name, change in trained.items():
                if any(name.startswith(word) for word in command.words if word != command.output):
                    self.changed(step, name, change, ".")

    def changed(self, step: int, name: str, change: Callable, where: str) -> None:
        command, what = self.search.chain[step], f"{self.search.chain[step].output}, {name} changed after a kill"
        world = self.search.folder / "world"
        shutil.rmtree(world, ignore_errors=True)
        for part in ("mine", "encoder"):
            shutil.copytree(self.search.folder / part, world / part)
        shutil.copy(self.search.folder / "folds.json", world)
        folder, fresh = world / "round", world / "fresh"
        for made in (folder, fresh):
            made.mkdir()
            self.fill(made, step)
        self.half(command, folder, step)
        change(folder / where / name)
        if where == ".":
            change(fresh / name)
        outcome = run(command, folder)
        self.count("changed inputs")
        if outcome.code:
            self.refused(what, outcome, folder, command)
            self.count("of them refused")
            return
        expected = run(command, fresh)
        if expected.code:
            self.note(what, [f"accepted, but refused where nothing was begun: {expected.err[-300:]}"])
        else:
            lines = self.differences(self.tree(fresh / command.output), self.tree(folder / command.output))
            self.note(what, [f"neither refused nor of the new input alone: {line}" for line in lines])


@contextmanager
def mounted(folder: Path) -> Iterator[Callable[[str], None] | None]:
    """A disk in memory; `None` where none can be mounted."""
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True).returncode:
        yield None
        return

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, path
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def _longer_text(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines[0]["text"] += " function"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _other_order(path: Path) -> None:
    folds = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(dict(zip(folds, reversed(folds.values()), strict=True))), encoding="utf-8")


def _last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1  # of the last weight; not its exponent
    path.write_bytes(data)
