"""The one resumable loop: files that are whole or not there, dealt to processes; and tables of queries made by it."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from accelerate import PartialState

from .files import atomic_open
from .processes import process_state

# How all our tables are written. Without checksums a flipped bit may be read as another number.
PARQUET = {"compression": "zstd", "write_page_checksum": True}


def fill(paths: Sequence[Path], make: Callable[[int], object], state: PartialState | None = None) -> None:
    """
    `make(number)` for every path that is not there; afterwards all are. Every process must call it.

    Each file is made by one process alone and never depends on which others were there, so neither a kill nor the
    number of processes leaves a trace in the result.

    Args:
        paths (`list[Path]`): the files, in the same order in every process.
        make (`Callable[[int], object]`): writes the file of that number, by [`atomic_open`].
        state (`PartialState`, *optional*): the processes that share the work.
    """
    state = state or process_state()
    state.wait_for_everyone()  # what the main process prepared or removed is seen by all
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    state.wait_for_everyone()  # nobody writes before all have looked
    for number in missing[state.process_index :: state.num_processes]:
        make(number)
    state.wait_for_everyone()


class QueryShards:
    """
    A table with a row a query, in parquet files of a few queries each.

    Args:
        folder (`str` or `os.PathLike`): where the files lie.
        query_ids (`list[str]`): all queries, in order.
        schema (`pa.Schema`): the columns; the first is `query_id`.
        size (`int`, *optional*, defaults to 1): how many queries are made, and saved, together.
    """

    def __init__(self, folder: str | os.PathLike, query_ids: Sequence[str], schema: pa.Schema, size: int = 1):
        if size < 1:
            raise ValueError(f"shard_queries must be at least 1, got {size}")
        self.schema = schema
        self.shards = [list(query_ids[start : start + size]) for start in range(0, len(query_ids), size)]
        self.paths = [Path(folder) / f"{number:05d}.parquet" for number in range(len(self.shards))]

    def missing(self) -> list[str]:
        """The queries whose files are not there."""
        return [q for path, shard in zip(self.paths, self.shards, strict=True) if not path.exists() for q in shard]

    def fill(self, make: Callable[[str], dict], state: PartialState | None = None) -> None:
        """Makes what is missing; `make(query_id)` gives a query's row."""

        def write(number: int) -> None:
            rows = [self._row(make, query_id) for query_id in self.shards[number]]
            with atomic_open(self.paths[number], "wb") as file:
                pq.write_table(pa.Table.from_pylist(rows, schema=self.schema), file, **PARQUET)

        fill(self.paths, write, state)

    def read(self) -> Iterator[dict]:
        """The rows in order; one file is in memory at a time."""
        for path, shard in zip(self.paths, self.shards, strict=True):
            yield from self._read(path, shard).to_pylist()

    def row(self, query_id: str) -> dict:
        """One query's row."""
        for path, shard in zip(self.paths, self.shards, strict=True):
            if query_id in shard:
                return self._read(path, shard).slice(shard.index(query_id), 1).to_pylist()[0]
        raise KeyError(query_id)

    def _read(self, path: Path, shard: Sequence[str]) -> pa.Table:
        table = read_parquet(path, self.schema)
        if table["query_id"].to_pylist() != shard:
            raise ValueError(f"{path}: has other queries than {shard[0]!r}, ...: remove it and run again")
        return table

    def _row(self, make: Callable[[str], dict], query_id: str) -> dict:
        try:
            return {"query_id": query_id, **make(query_id)}
        except ValueError as error:
            raise ValueError(f"query {query_id!r}: {error}") from error


def read_parquet(path: str | os.PathLike, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a file of ours; one that is damaged or has other columns is an error that names it."""
    try:
        found = pq.ParquetFile(path, page_checksum_verification=True)
        if found.schema_arrow.remove_metadata() != schema:
            raise ValueError(f"not these columns: {', '.join(schema.names)}")
        return found.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, ValueError, OSError) as error:
        # Arrow calls some damages an OSError too, but only the system's (not there, not ours to read) have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path}: damaged ({error}): remove it and run again") from None
