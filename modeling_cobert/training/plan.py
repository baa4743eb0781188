"""What a training command stands for: one training, on the rows' splits or on a fold, or one for each fold."""

from pathlib import Path

from ..collections.folds import Fold
from ..data.rows import RowsFolder
from .arguments import DataOptions


def plan_trainings(rows: RowsFolder, options: DataOptions, output: Path) -> list[tuple[int | None, Fold, Path]]:
    """The number (if it is one of several), queries and folder of every training."""
    if not rows.folds and "train" not in rows.splits:
        raise ValueError(
            f"{rows.folder}: neither folds nor a split 'train' (but {', '.join(rows.splits)}), so there is nothing to "
            "train on: make rows with --folds random, say"
        )
    if options.fold is None:
        if "train" not in rows.splits:
            raise ValueError(
                f"{rows.folder}: no split 'train' (but {', '.join(rows.splits)}): give --fold 1 or --fold all"
            )
        return [(None, Fold(*(rows.splits.get(name, ()) for name in ("train", "validation", "test"))), output)]
    if not rows.folds:
        raise ValueError(f"{rows.folder}: there are no folds: leave out --fold")
    count = len(rows.folds)
    if options.fold != "all" and not 1 <= int(options.fold) <= count:
        raise ValueError(f"--fold {options.fold}: {rows.folder} has folds 1 to {count}")
    numbers = range(1, count + 1) if options.fold == "all" else [int(options.fold)]
    return [(number, rows.folds[number - 1], output / f"fold-{number}") for number in numbers]
