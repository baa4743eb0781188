"""Work on queries one by one, a file each: dealt to processes, killed and resumed without a trace in the result."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from .files import atomic_open
from .folders import claim_folder


def process_state(use_cpu: bool = False) -> PartialState:
    """This process among those that `torchrun` or `accelerate launch` started; alone if there was neither."""
    # Processes wait for the slowest one, which may have hours of work more than the others.
    return PartialState(cpu=use_cpu or not torch.accelerator.is_available(), timeout=timedelta(days=30))


def map_queries(
    function: Callable[[str, Callable[[int], None]], object],
    query_ids: Sequence[str],
    folder: str | os.PathLike,
    settings: dict,
    state: PartialState | None = None,
    description: str = "Queries",
    progress: bool = True,
) -> dict:
    """
    `function(query_id, advance)` for every query; results that are in the folder already are not made again.

    Args:
        function (`Callable`): gives what JSON can say; calls `advance` with the number of pairs it has encoded.
        query_ids (`list[str]`): all queries, in the order of the result.
        folder (`str` or `os.PathLike`): where the results lie, one file a query, each whole or not there.
        settings (`dict`): all that the results depend on; a folder begun with others is an error.
        state (`PartialState`, *optional*): the processes that share the work and the folder.
        description, progress: of the bar, which the main process shows.

    Returns:
        `dict`: query id to result, read from the files, the same in every process.
    """
    folder = Path(folder)
    with state.main_process_first() if state else nullcontext():
        claim_folder(folder, {**settings, "queries": list(query_ids)})
    wait = state.wait_for_everyone if state else lambda: None
    wait()  # nobody writes a part before all have looked which are missing
    missing = [number for number in range(len(query_ids)) if not _part(folder, number).exists()]
    wait()
    mine = missing[state.process_index :: state.num_processes] if state else missing
    shown = progress and (state is None or state.is_main_process)
    with tqdm(total=len(mine), desc=description, unit=" queries", disable=not shown) as bar:
        pairs = 0

        def advance(count: int) -> None:
            nonlocal pairs
            pairs += count
            bar.set_postfix_str(f"{pairs:,} pairs encoded")

        for number in mine:
            try:
                result = function(query_ids[number], advance)
            except ValueError as error:
                raise ValueError(f"query {query_ids[number]!r}: {error}") from error
            with atomic_open(_part(folder, number)) as file:
                json.dump({"query_id": query_ids[number], "result": result}, file, ensure_ascii=False)
            bar.update()
    wait()
    return {query_id: _read(_part(folder, number), query_id) for number, query_id in enumerate(query_ids)}


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _read(path: Path, query_id: str) -> object:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
        found, result = part["query_id"], part["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({error!r}): remove it and run again") from None
    if found != query_id:
        raise ValueError(f"{path}: this is query {found!r}, not {query_id!r}: remove it and run again")
    return result
