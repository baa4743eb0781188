"""A step's folder: `settings.json` says what it is made of, guards a resumption and, at the end, has the counts."""

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .files import file_behind, full_disk_named, write_json
from .locks import drop_lock, take_lock
from .made import check_unchanged, is_list_of_files, list_files, missing_files

logger = logging.getLogger(__name__)

SETTINGS, LOCK = "settings.json", ".lock"
# How fast a step is done, not what comes out: a resumption may change it. In what portions, only once it is done.
PASSING, LAYOUT = ("batch_tokens",), ("shard_queries",)
# Fingerprints of files. Folders of versions that did not know them go on without.
FILES = "files_sha256"
# What the step has made, with fingerprints or sizes: compared here, and seen by nobody else. Older folders have none.
MADE = "made"
# The most differences that an error names.
MOST = 6


@dataclass
class _Claim:
    """A folder that this process works in: its open lock, if it has one, and the folders that were made for it."""

    lock: IO | None
    made: list[Path]
    fresh: bool


# By path. What is here is this process's own until the step is done, is released, or the process ends.
_claims: dict[Path, _Claim] = {}


def claim_folder(folder: str | os.PathLike, settings: Mapping) -> dict | None:
    """
    Takes `folder` for a step, before any work: new, or begun with the very same settings.

    What a killed process left under a temporary name is removed. A folder that was begun with other settings, that
    holds files of something else, or that another process works in, is an error: results of two settings are never
    mixed. Of the processes that `torchrun` started, the main one locks for all. A finished step that has lost files is
    one with work to do; one whose files are not as they were written is an error.

    Args:
        folder (`str` or `os.PathLike`): where the step writes.
        settings (`Mapping`): everything that the result depends on, options and fingerprints of the inputs.

    Returns:
        `dict` or `None`: the finished step's settings and `counts`, or `None` where there is still work to do.
    """
    folder, settings = Path(folder), json.loads(json.dumps(settings))
    done = _compare(folder, settings)
    if done is not None:
        _unlock_done(folder)
        return done
    missing = _missing_folders(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() not in _claims:
        try:
            lock = take_lock(folder / LOCK) if _is_main_process() else None
        except ValueError:
            _remove_folders(missing)
            raise
        _claims[folder.resolve()] = _Claim(lock, missing, not (folder / SETTINGS).exists())
    try:
        done = _compare(folder, settings)  # again: another process may have been here before the lock was ours
        ours = (folder / SETTINGS).exists()
        for left in list(folder.rglob(".*.tmp") if ours else folder.glob(f".{SETTINGS}.*.tmp")):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
        if done is None and not (folder / SETTINGS).exists():
            write_settings(folder, settings, None)
        elif done is None and _is_main_process():
            _begin_again(folder)
    except BaseException:
        _forget(folder)
        raise
    if done is not None:
        _release(folder)
    return done


def _begin_again(folder: Path) -> None:
    """A finished step that has lost files becomes one that was begun."""
    known, made = _read(folder)
    missing = missing_files(folder, made)
    for path in missing:
        logger.warning("%s: not there any more: it is made anew", path)
    if missing:
        write_settings(folder, {key: value for key, value in known.items() if key != "counts"}, None)


def check_folder(folder: str | os.PathLike, settings: Mapping) -> dict | None:
    """Says what [`claim_folder`] would say, and makes nothing."""
    folder = Path(folder)
    done = _compare(folder, json.loads(json.dumps(settings)))
    if done is not None:
        _unlock_done(folder)
    if done is None and _is_main_process() and folder.resolve() not in _claims and (folder / LOCK).exists():
        drop_lock(take_lock(folder / LOCK), folder / LOCK)
    return done


def _unlock_done(folder: Path) -> None:
    """Removes the lock of a process that was killed between its last file and this; a folder that is done has none."""
    if _is_main_process() and folder.resolve() not in _claims and (folder / LOCK).exists():
        with suppress(OSError, ValueError):  # not ours to write, or a process that is about to end
            drop_lock(take_lock(folder / LOCK), folder / LOCK)


@contextmanager
def claims_end() -> Iterator[None]:
    """
    Around a step, as a block or as a decorator: what it claims is free for other processes when it ends. Where it ends
    with an error, claimed folders in which nothing has been made yet are removed, so that a corrected call can have
    them.
    """
    before = set(_claims)
    try:
        yield
    except BaseException:
        for folder in _claims.keys() - before:
            _forget(folder)
        raise
    finally:
        for folder in _claims.keys() - before:
            _release(folder)


def _release(folder: Path) -> _Claim | None:
    claim = _claims.pop(folder.resolve(), None)
    if claim is not None:
        drop_lock(claim.lock, folder / LOCK)
    return claim


def _forget(folder: Path) -> None:
    claim = _release(folder)
    there = sorted(folder.rglob("*"), reverse=True)  # what lies in a folder before it
    if claim is None or not claim.fresh or not _is_main_process():
        return
    if all(path.is_dir() or path.name == SETTINGS and path.parent.samefile(folder) for path in there):
        (folder / SETTINGS).unlink(missing_ok=True)
        _remove_folders([*(path for path in there if path.is_dir()), *claim.made])


def check_writable(folder: str | os.PathLike, option: str) -> None:
    """Writes and removes a small file: what cannot be written must fail before the work, not after."""
    folder = Path(folder)
    missing = _missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Called as if settings were being written: what a kill leaves of it belongs to the step, and goes with it.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{SETTINGS}.", suffix=".tmp") as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"{folder}: cannot write into the output folder ({error}): choose another {option}") from error
    finally:
        _remove_folders(missing)


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | os.PathLike]) -> None:
    """
    Files that a command will write, by option: each can be written, none is read by the command, none is named twice.

    Args:
        outputs (`Mapping[str, str]`): option to file, as the user has given them; `None` where it was not given.
        inputs (`Iterable[str]`): all files that the command reads, there or not.
    """
    taken = [(path, "this command reads it") for path in inputs]
    for option, path in outputs.items():
        if path is None:
            continue
        target = file_behind(path)
        for other, why in taken:
            if _same_file(path, other):
                raise ValueError(f"{option} {path}: {why}, and it would be overwritten: give another file")
        taken.append((path, f"{option} is written there too"))
        check_writable(target.parent, option)


def check_begun(folder: str | os.PathLike, names: Iterable[str], option: str) -> None:
    """A folder of several steps, which lie in it under these names, must be new, empty, or begun by them."""
    folder, names = Path(folder), list(names)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{option} {folder}: is a file: give a folder")
    others = sorted({path.name for path in folder.iterdir()} - set(names)) if folder.is_dir() else []
    if others and not any(next((folder / name).rglob(SETTINGS), None) for name in names):
        raise ValueError(
            f"{option} {folder}: not empty and not of this command (there is {others[0]!r}): give another folder"
        )


@contextmanager
def whole_folder(output: str | os.PathLike, option: str = "--output") -> Iterator[Path]:
    """
    A folder that is whole or not there, for a step without a settings file: what is written into the folder that this
    yields is renamed at the end. `output` must be new or empty, and one process at a time works on it; what a killed
    one left is removed.

    Example:

    ```python
    >>> with whole_folder("models/notes") as beside:
    ...     _ = (beside / "notes.txt").write_text("whole, or not there")
    ```
    """
    output = Path(os.path.realpath(output))
    _check_vacant(output, option)
    check_writable(output.parent, option)
    missing, lock_path = _missing_folders(output.parent), output.with_name(f".{output.name}{LOCK}")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = take_lock(lock_path, output)
        try:
            _check_vacant(output, option)  # again: another process may have been here before the lock was ours
            if lock is not None:  # else nobody knows what is left and what is being written
                _remove_left(output)
            beside = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}.", suffix=".tmp"))
            try:
                with full_disk_named(output.parent):
                    yield beside
                    _sync(beside)
                if output.exists():
                    output.rmdir()
                beside.rename(output)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        finally:
            drop_lock(lock, lock_path)
    finally:
        _remove_folders(missing)


def _check_vacant(output: Path, option: str) -> None:
    if os.path.lexists(output) and not output.is_dir():
        raise ValueError(f"{option} {output}: is a file: give a folder")
    if output.is_dir() and any(output.iterdir()):
        raise ValueError(f"{option} {output}: there is something already: give a new folder")
    if output.is_dir() and (output.samefile(Path.cwd()) or os.path.ismount(output)):
        raise ValueError(f"{option} {output}: cannot be replaced by a whole one: give the name of a folder in it")


def _remove_left(output: Path) -> None:
    for left in output.parent.glob(".*.tmp"):
        if left.is_dir() and re.fullmatch(rf"\.{re.escape(output.name)}\.[a-z0-9_]{{8}}\.tmp", left.name):
            shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Everything is on the disk, with the permissions that a folder gets that is not temporary."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)


def _same_file(one: str | os.PathLike, other: str | os.PathLike) -> bool:
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _compare(folder: Path, settings: dict) -> dict | None:
    """The finished step that is there, if any; other settings and other files are errors."""
    if (folder / SETTINGS).exists():
        known, made = _read(folder)
        counts = known.pop("counts")
        done = counts is not None and not missing_files(folder, made)
        passing = PASSING + LAYOUT if done else PASSING
        passing += () if FILES in known else (FILES,)
        before, now = ({k: v for k, v in one.items() if k not in passing} for one in (known, settings))
        if before.get("step") != now.get("step"):
            raise ValueError(
                f"{folder}: this is the folder of {before.get('step')!r}, not of {now.get('step')!r}: give another one"
            )
        if before != now:
            raise ValueError(
                f"{folder / SETTINGS}: begun with other settings: {differences(before, now)}. "
                "Give another output folder, or remove this one to start over."
            )
        check_unchanged(folder, made)
        return known | {"counts": counts} if done else None
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file: give another folder")
    others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in others if name != LOCK and not re.fullmatch(rf"\.{SETTINGS}\..*\.tmp", name)]
    if others:
        raise ValueError(f"{folder}: not empty and not of this step (there is {others[0]!r}): give another folder")
    return None


def _is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that do not exist, the lowest first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_folders(folders: Iterable[Path]) -> None:
    """Removes those that are empty, the lowest first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def write_settings(
    folder: str | os.PathLike, settings: Mapping, counts: Mapping | None, files: Iterable[Path] = ()
) -> dict:
    """
    Writes the settings with the counts of a finished step (or `None` for one begun), and returns both together.
    `files` are those that the finished step must have, as they are now, whenever its folder is opened.
    """
    content = {**settings, "counts": counts}
    made = list_files(folder, files)
    write_json(Path(folder) / SETTINGS, content | {MADE: made} if made else content)
    if counts is not None:
        _release(Path(folder))
    return content


def read_settings(
    folder: str | os.PathLike, step: str | None = None, made_by: str = "", format: int | None = 1
) -> dict:
    """
    Reads a folder's settings; with `step`, that step must be what the folder holds, and it must be finished and whole.

    Args:
        folder (`str` or `os.PathLike`): where a step wrote.
        step (`str`, *optional*): which one.
        made_by (`str`, *optional*): the command that makes such folders, for whoever has one of an earlier version.
        format (`int`, *optional*, defaults to 1): the layout that the step writes today; `None` if it has no number.
    """
    path = Path(folder) / SETTINGS
    if not path.exists():
        cure = f": {made_by} makes one" if made_by else ""
        raise FileNotFoundError(f"{path}: not there, so {Path(folder)} is no folder of {step or 'a step'}{cure}")
    settings, made = _read(Path(folder))
    old = step is not None and settings.get("step") == step and settings.get("format") != format
    if old or (made_by and settings.get("step") == "groups"):
        raise ValueError(
            f"{folder}: in the layout of an earlier version, which is not read: make it anew with {made_by}"
        )
    if step is not None and settings.get("step") != step:
        raise ValueError(f"{path}: this is the folder of {settings.get('step')!r}, not of {step!r}")
    if step is not None and settings["counts"] is None:
        raise ValueError(f"{path}: {step} is not finished: run the same command again and it goes on")
    if step is not None:
        for lost in missing_files(folder, made):
            raise FileNotFoundError(f"{lost}: not there any more: the same command that made it makes it anew")
        check_unchanged(folder, made)
    return settings


def _read(folder: Path) -> tuple[dict, dict]:
    """The settings with their counts, and what the step has made."""
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(settings, dict) or "counts" not in settings:
        raise ValueError(f"{path}: not written by this package: no 'counts'")
    made = settings.pop(MADE, {})
    if not is_list_of_files(made):
        raise ValueError(f"{path}: {MADE!r} is no list of the folder's files: make the folder anew")
    return settings, made


def differences(known: Mapping, wanted: Mapping) -> str:
    """Which settings differ, and how, in words."""
    told = [
        f"{path} is {_short(known_value)}, now {_short(wanted_value)}"
        for path, known_value, wanted_value in _different(known, wanted)
    ]
    return ", ".join(told[:MOST]) + (f", and {len(told) - MOST} more" if len(told) > MOST else "")


def _different(known: Mapping, wanted: Mapping, above: str = "") -> Iterator[tuple[str, object, object]]:
    """The innermost keys that differ, as a path, with both values."""
    for key in dict.fromkeys([*known, *wanted]):
        one, other = known.get(key), wanted.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _different(one, other, f"{above}{key}.")
        elif one != other:
            yield f"{above}{key}", one, other


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:120]}..."
