"""Rows, unpacked: a copy of their parquet files that is read in place, checked whenever it is opened."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

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
        with atomic_open(path, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for group in _row_groups(folder, files_sha256):
                stream.write_table(group)
        with atomic_open(written) as file:
            file.write(file_sha256(path))
    return datasets.Dataset.from_file(str(path))


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
