"""Files that are either whole or not there: written beside their final name, synced, then renamed."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_open(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """
    Opens `path` for writing so that no reader, crash or full disk ever sees half of it.

    Args:
        path (`str` or `os.PathLike`): the final name; missing parent folders are made.
        mode (`str`, *optional*, defaults to `"w"`): `"w"` (UTF-8 text, `\\n` line ends) or `"wb"`.

    Example:

    ```python
    >>> with atomic_open("runs/bm25.trec") as file:
    ...     _ = file.write("1 Q0 d1 1 2.5 bm25\\n")
    ```
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_open writes whole files: mode must be 'w' or 'wb', got {mode!r}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding, newline = (None, None) if mode == "wb" else ("utf-8", "\n")
    handle = tempfile.NamedTemporaryFile(
        mode, -1, encoding, newline, dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
    )
    try:
        with handle:
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


def write_json(path: str | os.PathLike, content: object) -> None:
    """Writes JSON for people and machines; the file is whole or not there."""
    with atomic_open(path) as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")
