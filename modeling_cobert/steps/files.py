"""Files that are either whole or not there: written beside their final name, synced, then renamed."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .locks import lock_file

# No space, no more of it for this user, no file so large.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Temporary files that lay in a folder before this process first wrote there, by folder.
_left: dict[Path, list[Path]] = {}


@contextmanager
def atomic_open(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """
    Opens `path` for writing so that no reader, crash or full disk ever sees half of it. What a killed process left of
    an earlier attempt at the same file is removed.

    Args:
        path (`str` or `os.PathLike`): the final name; missing parent folders are made. A link stays, and what it leads
            to is written; a device, a pipe or a folder is an error.
        mode (`str`, *optional*, defaults to `"w"`): `"w"` (UTF-8 text, `\\n` line ends) or `"wb"`.

    Example:

    ```python
    >>> with atomic_open("runs/bm25.trec") as file:
    ...     _ = file.write("1 Q0 d1 1 2.5 bm25\\n")
    ```
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_open writes whole files: mode must be 'w' or 'wb', got {mode!r}")
    path = file_behind(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding, newline = (None, None) if mode == "wb" else ("utf-8", "\n")
    _remove_left(path)
    handle = tempfile.NamedTemporaryFile(
        mode, -1, encoding, newline, dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
    )
    try:
        with handle:
            lock_file(handle)  # whoever finds this file sees that it is not left, but being written
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        # NamedTemporaryFile makes private files; the result gets the permissions that open() would have given it.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(handle.name, 0o666 & ~umask)
        os.replace(handle.name, path)
    except BaseException as error:
        Path(handle.name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # a full disk does not say what it was full for
        raise


def file_behind(path: str | os.PathLike) -> Path:
    """What a name stands for: itself, or where a link leads. What is there already must be a file."""
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    if target.is_dir():
        raise ValueError(f"{path}: is a folder: give the name of a file")
    if os.path.lexists(target) and not target.is_file():
        raise ValueError(
            f"{path}: is a device, a pipe or the like, which a file would replace: give the name of a file"
        )
    return target


def _remove_left(path: Path) -> None:
    folder = path.parent.resolve()
    if folder not in _left:
        _left[folder] = list(folder.glob(".*.tmp"))
    for left in _left[folder]:
        if re.fullmatch(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.tmp", left.name):
            with suppress(OSError), open(left, "ab") as file:
                if lock_file(file):
                    left.unlink()


@contextmanager
def files_beside(folder: str | os.PathLike) -> Iterator[Path]:
    """
    A folder to write into with what knows nothing of whole files; at the end each file gets its place in `folder`.
    """
    folder = Path(folder)
    beside = folder / ".saving.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in sorted(beside.iterdir()):
            if path.is_dir():
                shutil.rmtree(folder / path.name, ignore_errors=True)
            else:
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
            os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def full_disk_named(folder: str | os.PathLike) -> Iterator[None]:
    """What torch and safetensors raise when a file does not fit tells neither the file nor always the reason."""
    try:
        yield
    except Exception as error:
        if getattr(error, "filename", None) is not None:
            raise
        number = getattr(error, "errno", None)
        if number is None and (said := re.search(r"\(os error (\d+)\)", str(error))):
            number = int(said[1])
        if number in _FULL or shutil.disk_usage(folder).free < 1 << 20:
            number = number if number in _FULL else errno.ENOSPC
            raise OSError(number, os.strerror(number), str(folder)) from error
        if any(part in str(error) for part in ("inline_container", "PytorchStreamWriter", "iostream error")):
            raise OSError(
                f"{folder}: a checkpoint cannot be written there ({error}): is a disk, a quota full?"
            ) from error
        raise


def write_json(path: str | os.PathLike, content: object) -> None:
    """Writes JSON for people and machines; the file is whole or not there."""
    with atomic_open(path) as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")
