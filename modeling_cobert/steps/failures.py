"""What an exception is to a user: something that they can mend, in one line, or a defect of ours."""

import errno
import os
import traceback
from pathlib import Path

from .terminal import visible

# Errors of libraries about what they were given, by name: modules of that name differ between versions.
_OF_FILES = {
    "ArrowException",
    "SafetensorError",
    "UnpicklingError",
    "StrictDataclassError",
    "HTTPError",
    "OutOfMemoryError",
}
# What the system says of a name that is wrong, with a cure.
_MISTAKEN = {
    errno.ENOENT: "there is no such file: correct its name, or make it",
    errno.EISDIR: "is a folder: give the name of a file",
    errno.ENOTDIR: "a part of this name is a file, not a folder: correct it",
    errno.EEXIST: "is a file or a link to nothing, where a folder is to be made: give another name, or remove it",
    errno.ELOOP: "a part of this name is a link that leads back to itself: correct it, or give another one",
    errno.EROFS: "lies on a file system that takes no changes: give a place on another one",
    errno.EACCES: "may not be read or written by this user: change its permissions, or give another one",
}
LONGEST = 2000
_HERE = Path(__file__).resolve().parents[1]


def told(error: BaseException) -> str:
    """One line for whoever ran a command; of one that quotes a whole document, its beginning and its end."""
    line = _line(error)
    return visible(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}")


def _line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{message}: free some space, and the same command goes on"
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return f"{message}: allow larger files (ulimit -f, or another file system), and the same command goes on"
    if "StrictDataclassError" in names and error.__cause__ is not None:
        return _line(error.__cause__)  # what the validator said, without who called it
    if isinstance(error, OSError) and error.filename is not None and error.errno in _MISTAKEN:
        return f"{error.filename}: {_MISTAKEN[error.errno]}"
    if isinstance(error, UnicodeEncodeError):
        return f"{message}: in this locale it cannot be written: set PYTHONUTF8=1, or LC_ALL to a locale of UTF-8"
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return f"out of memory: take smaller batches or groups ({message or type(error).__name__})"
    loaded = _loaded(error)
    if isinstance(error, ValueError | OSError | ImportError | FloatingPointError) or names & _OF_FILES:
        if loaded is not None and loaded not in message:
            return f"{loaded}: cannot be loaded ({message or type(error).__name__})"
        return message or type(error).__name__
    if loaded is not None:
        return f"{loaded}: cannot be loaded ({type(error).__name__}: {message})"
    where = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(where[-1].filename).name}:{where[-1].lineno}" if where else ""
    return f"{type(error).__name__}: {message}{place}. This is a bug in cobert: --debug shows where, please report it"


def _loaded(error: BaseException) -> str | None:
    """The checkpoint that transformers was loading when it failed, unless it failed in our own code."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or Path(frames[-1].f_code.co_filename).resolve().is_relative_to(_HERE):
        return None
    for frame in frames:
        if frame.f_code.co_name == "from_pretrained":
            name = frame.f_locals.get("pretrained_model_name_or_path")
            if isinstance(name, str | os.PathLike):
                return os.fspath(name)
    return None
