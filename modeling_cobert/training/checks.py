"""Checks at the door: the disk before a training, and what a resumed one reads."""

import errno
import json
import math
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from ..ranking.seen import COMPLETE
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
