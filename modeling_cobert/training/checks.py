"""Checks at the door: the disk before a training, and what a resumed one reads."""

import errno
import json
import math
import os
import pickle
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import nn
from transformers.trainer import SCHEDULER_NAME

from ..checkpoint_cobert import load_config
from ..collections.judgments import such_as
from ..data.rows import RowsFolder
from ..evaluation.measures import DEFAULT_MEASURES
from ..ranking.seen import COMPLETE
from ..steps.folders import FILES, SETTINGS, check_outputs, differences, read_settings
from .arguments import CoBertTrainingArguments, ModelOptions
from .initial import in_fold
from .interruption import ANEW, fault_of_checkpoint


def check_space(folder: str | os.PathLike, model: nn.Module, args, steps: int, more: int = 0) -> None:
    """
    Compares the free disk with what a training will write: checkpoints with Adam's two moments, and the final model.

    Args:
        folder (`str` or `os.PathLike`): the output folder, made or not.
        model (`nn.Module`): what is trained; frozen parameters have no moments.
        args (`TrainingArguments`): `save_strategy`, `save_total_limit`, ...
        steps (`int`): how many optimizer steps there will be.
        more (`int`, *optional*, defaults to 0): bytes that are needed beside that.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    moments = 0 if args.save_only_model else 2 * sum(4 * p.numel() for p in model.parameters() if p.requires_grad)
    saves = {
        "no": 0,
        "epoch": math.ceil(args.num_train_epochs),
        "steps": math.ceil(steps / args.save_steps) if args.save_steps >= 1 else math.ceil(1 / args.save_steps),
        "best": math.ceil(args.num_train_epochs),
    }[str(getattr(args.save_strategy, "value", args.save_strategy))]
    # While a checkpoint is written, those that it will replace are still there.
    kept = saves if not args.save_total_limit else min(saves, args.save_total_limit + 1)
    there = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    needed = weights + kept * (weights + moments) + more - there
    place = Path(folder).absolute()
    free = shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free
    if free < needed:
        raise OSError(
            f"{folder}: {free / 2**30:.2f} GiB are free, but up to {needed / 2**30:.2f} GiB will be written ({kept} "
            f"checkpoints of {(weights + moments) / 2**30:.2f} GiB and the model): free some space, choose another "
            "--output_dir, or lower --save_total_limit"
        )


def check_top(output: Path, folds: int, teachers: Iterable[str]) -> None:
    """Of `--fold all` the folder: no others' run and results are where the merged ones go; `teachers` are read."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output_dir {output}: is a file: give a folder")
    there = [name for name in ("run.trec", "results.json") if (output / name).exists()]
    if there and not any((output / f"fold-{number}" / SETTINGS).exists() for number in range(1, folds + 1)):
        raise ValueError(
            f"--output_dir {output}: not empty and not of this command (there is {there[0]!r}, which would be "
            "replaced): give another folder"
        )
    if (output / SETTINGS).exists():
        raise ValueError(f"--output_dir {output}: is the folder of another step: give another one")
    check_outputs({"--output_dir": str(output / "run.trec")}, teachers)


def check_start(model: ModelOptions, args: CoBertTrainingArguments, fold: str | None) -> None:
    """Options of starting weights without any to learn; `fold` is what `--fold` says."""
    given = ["--learn_starting_weights"] * (model.learn_starting_weights is not None)
    given += ["--start_learning_rate"] * (args.start_learning_rate is not None)
    source = model.checkpoint or model.encoder or ""
    if not given or ("{fold}" in source and fold is None):  # which is an error of its own
        return
    weights, learned = model.starting_weights, model.learn_starting_weights
    if weights is None:
        try:
            config = load_config(in_fold(source, int(fold) if fold and fold != "all" else 1))
        except (OSError, ValueError):
            return  # so is a model that is not there
        if config.model_type == "cobert":
            weights = config.starting_weights
            if model.checkpoint is not None and learned is None:
                learned = config.learn_starting_weights
    if weights is None:
        raise ValueError(f"{', '.join(given)} without starting weights: give --starting_weights, or leave it out")
    if learned is False and "--start_learning_rate" in given:
        raise ValueError("--start_learning_rate, but the starting weights are not learned: leave it out")


def check_same_queries(rows: RowsFolder, train_rows: RowsFolder, query_ids: Collection[str]) -> None:
    """Raises where `--train_rows` are not of the queries of `--rows`: the same ids are queries of many collections."""
    if train_rows.name != rows.name:
        raise ValueError(
            f"--train_rows {train_rows.folder}: of the collection {train_rows.name!r}, but --rows of {rows.name!r}: "
            "give rows of the same collection"
        )
    texts, others = (_texts(folder, query_ids) for folder in (rows, train_rows))
    different = [query_id for query_id, text in texts.items() if others[query_id] != text]
    if different:
        raise ValueError(
            f"--train_rows {train_rows.folder}: {len(different)} training queries{such_as(different)}, have another "
            "text than in --rows: give rows of the same queries"
        )


def _texts(folder: RowsFolder, query_ids: Collection[str]) -> dict[str, str]:
    rows = folder.dataset(query_ids).select_columns(["query_id", "query"])  # raises where a query has no row
    return {row["query_id"]: row["query"] for row in rows}


def check_comparisons(loss: str, group_size: int, longest: int, taught: bool) -> None:
    """
    Raises where what compares documents of a group would never have two of them, and so teach nothing.

    Args:
        loss (`str`): the model's.
        group_size (`int`): n, the candidates of a group.
        longest (`int`): the most candidates of a training query.
        taught (`bool`): whether there is a teacher; its losses compare too.
    """
    if min(group_size, longest) > 1 or (loss == "pointwise" and not taught):
        return
    who = "a teacher" if loss == "pointwise" else f"--loss {loss}"
    if group_size > 1:
        raise ValueError(f"{who} compares documents, but no training query has two candidates: prepare rows with more")
    cure = "leave out the teacher" if loss == "pointwise" else "choose --loss pointwise"
    raise ValueError(f"{who} compares the documents of a group, and --group_size 1 has one: raise it, or {cure}")


def check_results(path: Path, counts: object) -> None:
    """Raises where the counts of a finished training's settings are not its results, as [`train`] writes them."""
    if not isinstance(counts, dict) or not _are_results(counts):
        raise ValueError(f"{path}: damaged, 'counts' must be the training's results: remove the folder to start over")


def _are_results(counts: dict) -> bool:
    measured = [counts[kind] for kind in ("validation", "test", "first_stage") if kind in counts]
    whole = all(
        isinstance(found, dict) and all(map(_is_number, map(found.get, DEFAULT_MEASURES))) for found in measured
    )
    numbers = _is_number(counts.get("step")) and _is_number(counts.get("epoch"))
    both = ("test" in counts) == ("first_stage" in counts)
    return isinstance(counts.get("variant"), str) and numbers and whole and both


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def named_checkpoint(args) -> str | None:
    """What `--resume_from_checkpoint` names; yes or no in its place names nothing."""
    given = args.resume_from_checkpoint
    return given if isinstance(given, str) and given.lower() not in ("true", "false") else None


def check_named(checkpoint: str, settings: Mapping) -> None:
    """
    Raises where what `--resume_from_checkpoint` names is not a whole checkpoint of this very training: one of another
    fold, say, has learned from the queries that this one is to be tested on.

    Args:
        checkpoint (`str`): the folder.
        settings (`Mapping`): of this training.
    """
    named, cure = f"--resume_from_checkpoint {checkpoint}", "leave it out, and the training goes on from its own last"
    if not Path(checkpoint).is_dir():
        raise ValueError(f"{named}: no such folder: name a checkpoint of this training, or {cure}")
    if not Path(checkpoint, COMPLETE).is_file():
        raise ValueError(f"{named}: no whole checkpoint of a training (there is no {COMPLETE}): {cure}")
    check_resumable(checkpoint)
    known, wanted = _settings_of(Path(checkpoint)), json.loads(json.dumps(settings))
    if known is None:
        raise ValueError(f"{named}: its {COMPLETE} does not say of which training it is: {cure}")
    if FILES not in known:
        del wanted[FILES]
    if known != wanted:
        raise ValueError(f"{named}: of another training: {differences(known, wanted)}: {cure}")
    if not Path(checkpoint, SCHEDULER_NAME).exists():
        raise ValueError(f"{named}: has no optimizer (--save_only_model), so nothing can go on from it: {cure}")


def _settings_of(checkpoint: Path) -> dict | None:
    """Of the training that saved a checkpoint; those of earlier versions say it by the folder that they lie in."""
    note = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
    if isinstance(note.get("settings"), dict):
        return note["settings"]
    above = checkpoint.absolute().parent
    if not (above / SETTINGS).is_file():
        return None
    return {key: value for key, value in read_settings(above).items() if key != "counts"}


def check_resumable(checkpoint: str | os.PathLike | None) -> None:
    """Raises where a checkpoint's weights are a pickle, which the Trainer would read, or are not what was saved."""
    if checkpoint is None or not Path(checkpoint).is_dir():
        return
    if Path(checkpoint, COMPLETE).is_file() and (fault := fault_of_checkpoint(checkpoint)) is not None:
        raise ValueError(f"{checkpoint} {fault}: {ANEW}")
    if any(Path(checkpoint).rglob("*.safetensors")):
        return
    pickled = sorted(path.name for path in Path(checkpoint).glob("*.bin"))
    if pickled:
        raise ValueError(f"{checkpoint}: its weights are a pickle ({pickled[0]}), which is not loaded: {ANEW}")


@contextmanager
def state_named(checkpoint: str | os.PathLike | None) -> Iterator[None]:
    """
    The state beside a checkpoint's weights is read by `torch.load(weights_only=True)`, so no code in it runs; what
    that says of such files, and of damaged ones, names none.
    """
    try:
        yield
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        of_torch = not isinstance(error, RuntimeError) or "PytorchStreamReader" in str(error)
        if checkpoint is None or not of_torch:
            raise
        raise ValueError(
            f"{checkpoint}: optimizer.pt, scheduler.pt or rng_state.pth is damaged or holds more than numbers: {ANEW}"
        ) from error
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        # torch reads beyond the end of a file that is cut, and the system calls that an invalid argument.
        of_system = isinstance(error, OSError) and (error.errno != errno.EINVAL or error.filename is not None)
        if checkpoint is None or of_system:
            raise
        raise ValueError(f"{checkpoint}: one of its files is damaged ({error}): {ANEW}") from error
