"""Rows, unpacked: a copy of their parquet files that is read in place, checked whenever it is opened."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from ..steps.files import atomic_open
from ..steps.hashing import file_sha256, json_sha256

logger = logging.getLogger(__name__)


def open_unpacked(folder: Path, files_sha256: Mapping[str, str], schema: pa.Schema) -> datasets.Dataset:
    """
    All rows of some parquet files, one after the other. Not from `datasets.load_dataset`: its cache takes two folders
    of one name and layout for the same dataset, a folder that was made anew for the old one, and what lies in it for
    what was written there. Here the copy's name says what is in the files, and a fingerprint beside it what is in the
    copy; one that is damaged, cut or missing is made anew.

    Args:
        folder (`Path`): where the files are.
        files_sha256 (`Mapping[str, str]`): the fingerprint of each by its name in `folder`, in the order of the rows.
        schema (`pa.Schema`): their columns.
    """
    name = json_sha256(list(files_sha256.values()))[:32]
    path = Path(datasets.config.HF_DATASETS_CACHE) / "cobert-rows" / f"{name}.arrow"
    written = path.with_suffix(".sha256")
    if not _is_as_written(path, written):
        if path.exists():
            logger.warning("%s: damaged, and made anew", path)
        with atomic_open(path, "wb") as file:
            hashed = _Hashed(file)
            with pa.PythonFile(hashed, mode="w") as sink, pa.ipc.new_stream(sink, schema) as stream:
                for group in _row_groups(folder, files_sha256):
                    stream.write_table(group)
            # Before the copy has its name: no other process finds it without.
            with atomic_open(written) as beside:
                beside.write(hashed.digest.hexdigest())
    return datasets.Dataset.from_file(str(path))


class _Hashed:
    """A file for Arrow to write to, with the fingerprint of what was written."""

    closed = False

    def __init__(self, file: IO):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """Whoever has opened the file closes it."""


def _is_as_written(path: Path, written: Path) -> bool:
    return path.is_file() and written.is_file() and written.read_bytes() == file_sha256(path).encode()


def _row_groups(folder: Path, names: Mapping[str, str]) -> Iterator[pa.Table]:
    """One at a time: all of them may not fit into memory."""
    for name in names:
        try:
            file = pq.ParquetFile(folder / name, page_checksum_verification=True)
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)
        except (pa.ArrowException, OSError) as error:
            # Arrow calls some damages an OSError too, but only the system's (not there, a full disk) have a number.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(
                f"{folder}: one of its parquet files is damaged ({name}: {error}): make it anew"
            ) from None
