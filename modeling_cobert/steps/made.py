"""What a finished step has made: its files, to be compared whenever its folder is opened again."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from .hashing import file_sha256

# These may be of any size, and our tables have checksums of their own: of them the size tells what was cut off.
BY_SIZE = (".parquet", ".safetensors")


def list_files(
    folder: str | os.PathLike, paths: Iterable[Path], by_size: tuple[str, ...] = BY_SIZE
) -> dict[str, int | str]:
    """By its name in `folder` the fingerprint of each file, or the size of one whose name ends in `by_size`."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size if path.suffix in by_size else file_sha256(path)
        for path in paths
    }


def fault_of_files(folder: str | os.PathLike, made: Mapping) -> str | None:
    """What a folder's user is told first: which file is missing or changed."""
    for path in missing_files(folder, made):
        return f"{path.name} is missing"
    for path in changed_files(folder, made):
        return f"{path.name} is not as it was written"
    return None


def missing_files(folder: str | os.PathLike, made: Mapping) -> list[Path]:
    """Those of [`list_files`] that are not there any more."""
    return [path for name in made if not (path := Path(folder) / name).is_file()]


def changed_files(folder: str | os.PathLike, made: Mapping) -> list[Path]:
    """Those of [`list_files`] that are there, but not as they were written; of `None` nobody knows how that was."""
    there = [(Path(folder) / name, known) for name, known in made.items() if known is not None]
    return [path for path, known in there if path.is_file() and known != _found(path, known)]


def check_unchanged(folder: str | os.PathLike, made: Mapping) -> None:
    """Raises where a file is not as it was written."""
    for path in changed_files(folder, made):
        raise ValueError(
            f"{path}: not as it was written (damaged, or edited): remove it, and the same command makes it anew"
        )


def is_list_of_files(made: object) -> bool:
    """Whether it may be from [`list_files`]; names that lead out of a folder are not."""
    return isinstance(made, dict) and all(
        not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts and "\0" not in name
        for name in made
    )


def _found(path: Path, known: object) -> int | str:
    return path.stat().st_size if isinstance(known, int) else file_sha256(path)
