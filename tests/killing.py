"""Commands in processes of their own, killed with SIGKILL at a chosen moment: for tests/kill_anywhere.py.

A command runs as a user types it, or in a fork of this process, which has imported everything once: the import takes
seconds and tells nothing. A moment is a time, a number of changes that the system sees below the folder, or a number
of operations that the command asks the system for there: the last can be repeated exactly.
"""

import ctypes
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A command that takes longer than this hangs.
MOST_SECONDS = 600
CHANGES = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200  # modified, attributes, moved from and to, made, removed
MADE, IS_FOLDER = 0x100 | 0x80, 0x40000000
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OPERATIONS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.link", "os.symlink"}


@dataclass(frozen=True)
class Command:
    """
    A command of `cobert`.

    Args:
        name (`str`): what `cobert` calls it.
        door (`str`): the script that a user may run in its place.
        words (`list[str]`): its options.
        output (`str`): what it writes into, in the folder that it runs in.
    """

    name: str
    door: str
    words: list[str]
    output: str


@dataclass(frozen=True)
class Moment:
    """
    When to kill.

    Args:
        kind (`str`): `time` (seconds), `change` (the system's, counted) or `operation` (the command's, counted).
        when (`float`): how many of these.
    """

    kind: str
    when: float

    def __str__(self) -> str:
        return f"after {self.when:.2f} s" if self.kind == "time" else f"at {self.kind} {self.when:.0f}"


@dataclass(frozen=True)
class Outcome:
    """Exit code, what was printed, seconds, and how many changes and operations there were."""

    code: int
    out: str
    err: str
    seconds: float
    changes: int = 0
    operations: int = 0
    last: str = ""  # the operation that a kill came before

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


# Of the kinds of moments only operations are the same again with the same seed, and only a fork of ours counts them.
KINDS = ("time", "early", "change", "change", "operation", "operation")


def draw_moment(choose: random.Random, whole: Outcome, kinds: Sequence[str] = KINDS) -> Moment:
    """A moment of a command whose undisturbed run is known."""
    kind = choose.choice(kinds)
    if kind in ("time", "early"):
        return Moment("time", choose.uniform(0, whole.seconds * (1 if kind == "time" else 0.15)))
    return Moment(kind, choose.randint(1, max(1, getattr(whole, f"{kind}s"))))


class Watch:
    """The changes below a folder, as the system tells them (inotify); without a fork of the watched process."""

    def __init__(self, folder: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, Path] = {}
        self._add(folder)

    def _add(self, folder: Path) -> None:
        number = self._libc.inotify_add_watch(self._file, os.fsencode(folder), CHANGES)
        if number < 0:
            return  # removed already
        self._folders[number] = folder
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                self._add(path)

    def count(self, seconds: float) -> int:
        """Waits for changes so long at most; how many there were."""
        if not select.select([self._file], [], [], seconds)[0]:
            return 0
        data, place, found = os.read(self._file, 1 << 16), 0, 0
        while place < len(data):
            number, mask, _, length = struct.unpack_from("iIII", data, place)
            name = data[place + 16 : place + 16 + length].rstrip(b"\0")
            place += 16 + length
            found += bool(mask & CHANGES)
            if mask & IS_FOLDER and mask & MADE and number in self._folders:
                try:
                    self._add(self._folders[number] / os.fsdecode(name))
                except OSError:
                    pass  # removed already
        return found

    def close(self) -> None:
        os.close(self._file)


def run(command: Command, folder: Path, moment: Moment | None = None, real: bool = False, before=None) -> Outcome:
    """
    Runs a command in `folder`, and kills its process group at the moment.

    Args:
        real (`bool`, *optional*, defaults to `False`): as a user types it, in a process that imports all anew.
        before (`Callable`, *optional*): called in the child before the command, if it is our fork.
    """
    notes = folder.parent / f"{folder.name}.notes"
    notes.mkdir(exist_ok=True)
    (notes / "operations").unlink(missing_ok=True)
    watch, start, changes = Watch(folder), time.monotonic(), 0
    pid = _start_real(command, folder, notes) if real else _fork(command, folder, notes, moment, before)
    limit, reached, timed = start + MOST_SECONDS, False, moment is not None and moment.kind == "time"
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            wait = min(0.02, max(0.0, start + moment.when - time.monotonic())) if timed else 0.02
            changes += watch.count(wait)
            reached = timed and time.monotonic() - start >= moment.when
            reached = reached or (moment is not None and moment.kind == "change" and changes >= moment.when)
            if reached or time.monotonic() > limit:
                kill_group(pid)
                _, status = os.waitpid(pid, 0)
                break
    finally:
        watch.close()
    seconds = time.monotonic() - start
    if seconds > MOST_SECONDS:
        raise TimeoutError(f"{command.name}: not done after {MOST_SECONDS} s")
    counted = json.loads(text) if (text := _read(notes / "operations")) else {"count": 0, "last": ""}
    code = os.waitstatus_to_exitcode(status)
    out, err = _read(notes / "out"), _read(notes / "err")
    return Outcome(code, out, err, seconds, changes, counted["count"], counted["last"])


def kill_group(pid: int) -> None:
    """SIGKILL to a process that leads its group, and to all in it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # it has not become a leader yet, and is alone


def environment() -> dict[str, str]:
    """Of a command that is run as a user would, with this source."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _start_real(command: Command, folder: Path, notes: Path) -> int:
    with open(notes / "out", "wb") as out, open(notes / "err", "wb") as err:
        words = [sys.executable, str(ROOT / command.door), *command.words]
        process = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=out, stderr=err, start_new_session=True
        )
    process.returncode = 0  # we wait for it ourselves
    return process.pid


def _fork(command: Command, folder: Path, notes: Path, moment: Moment | None, before) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(notes / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        counter = _Operations(folder, notes / "operations", moment)
        sys.addaudithook(counter)
        if before is not None:
            before()
        from modeling_cobert import cli

        sys.argv = [command.door, *command.words]
        try:
            cli.run(command.name, command.words)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        counter.write()
    finally:
        os._exit(code)


class _Operations:
    """An audit hook that counts what is asked of the system below a folder, and kills before one of these."""

    def __init__(self, folder: Path, note: Path, moment: Moment | None):
        self.folder, self.note = os.path.realpath(folder) + os.sep, str(note)
        self.at = int(moment.when) if moment is not None and moment.kind == "operation" else None
        self.count, self.last, self.off = 0, "", False

    def __call__(self, event: str, arguments: tuple) -> None:
        if self.off or not (event in OPERATIONS or event == "open" and arguments[2] & WRITING):
            return
        try:
            path = os.fsdecode(arguments[0])
        except TypeError:
            return  # an open file's number
        if os.path.isabs(path) and not path.startswith(self.folder):
            return  # what is not absolute is below: it runs there, or removes what lies in an open folder
        self.count += 1
        if self.count == self.at:
            self.last = f"{event} {path.removeprefix(self.folder)}"
            self.write()
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self) -> None:
        self.off = True
        with open(self.note, "w", encoding="utf-8") as file:
            json.dump({"count": self.count, "last": self.last}, file)
