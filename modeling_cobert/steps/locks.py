"""A file that one process holds open and locked; the system lets go of it when that process ends, however it ends."""

import errno
import json
import os
import socket
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# The byte that is locked: far behind what is written, since Windows lets nobody read locked bytes.
_PLACE = 1 << 20


def take_lock(path: Path, locked: Path | None = None) -> IO | None:
    """
    Locks `path`, which is made if missing, and writes into it who has it; `None` where the file system has no locks.

    Raises a `ValueError` that names the other process, and what is locked (by default the folder of `path`), where
    another one has it.
    """
    locked = path.parent if locked is None else locked
    while True:
        file = open(path, "a+", encoding="utf-8")
        try:
            _lock(file)
        except OSError as error:
            with file:
                if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    return None
                file.seek(0)
                raise ValueError(f"{locked}: {_holder(file.read())} works in it: wait until it is done") from None
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # dropped, and removed, by another process between our opening and our locking
    try:
        file.truncate(0)
        file.write(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
        file.flush()
    except OSError as error:
        error.filename = str(path)  # a full disk does not say what it was full for
        drop_lock(file, path)
        raise
    return file


def drop_lock(file: IO | None, path: Path) -> None:
    """Removes the file, then lets go of it."""
    if file is not None:
        if fcntl is not None:
            path.unlink(missing_ok=True)
        file.close()
        if fcntl is None:  # Windows removes no open file
            path.unlink(missing_ok=True)


def lock_file(file: IO) -> bool:
    """Locks an open file for as long as it is open; `False` where another process has it, or there are no locks."""
    try:
        _lock(file)
    except OSError:
        return False
    return True


def _lock(file: IO) -> None:
    if fcntl is not None:
        # Not flock: a child of this process, such as a loader of batches, would inherit it and might outlive us.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _PLACE)
    else:
        import msvcrt

        file.seek(_PLACE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        file.seek(0)


def _holder(content: str) -> str:
    try:
        known = json.loads(content)
        return f"process {known['process']} on {known['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
