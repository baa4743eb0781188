"""Stopping and going on: SIGTERM saves and exits, a killed process leaves no checkpoint that is only half there."""

import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..ranking.seen import COMPLETE
from ..steps.files import atomic_open, write_json
from ..steps.folders import MADE
from ..steps.made import fault_of_files, list_files

logger = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM
ANEW = "remove that folder, and the training goes on from the one before it, or anew"


class Interruption(TrainerCallback):
    """
    On SIGTERM: finish the step, save a checkpoint, leave with exit code 143, as a shell reports a terminated process.

    At the end of an epoch the validation is not skipped, since the choice of the best epoch rests on it.

    Example:

    ```python
    >>> interruption = Interruption()
    >>> trainer.add_callback(interruption)
    >>> with interruption.listening():
    ...     done = trainer.train()
    ```
    """

    def __init__(self):
        self.received = False
        self.agreed = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Takes SIGTERM while the block runs. Signals reach the main thread only; elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def receive(signum, frame):
            self.received = True

        before = signal.signal(signal.SIGTERM, receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_step_end(self, args, state, control, **kwargs):
        self._agree(args.device)
        # state.epoch is whole after the last step of an epoch: there on_epoch_end evaluates first.
        if self.agreed and state.epoch != int(state.epoch):
            control.should_save = True

    def on_epoch_end(self, args, state, control, **kwargs):
        self._agree(args.device)
        if self.agreed:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        if self.agreed:
            logger.warning(
                "SIGTERM: step %d is saved in %s. The same command goes on from there.",
                state.global_step,
                args.output_dir,
            )
            raise SystemExit(EXIT_CODE)

    def _agree(self, device: torch.device) -> None:
        # Processes receive the signal at different moments, but must stop after the same step.
        self.agreed = self.received
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            flag = torch.tensor(int(self.received), device=device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            self.agreed = bool(flag.item())


def mark_complete(checkpoint: str | os.PathLike, content: dict) -> None:
    """Writes the last file of a checkpoint, with the fingerprints of the others."""
    # Not of the Trainer's state: a training that is moved corrects it.
    own = (COMPLETE, TRAINER_STATE_NAME)
    files = [path for path in sorted(Path(checkpoint).rglob("*")) if path.is_file() and path.name not in own]
    write_json(Path(checkpoint) / COMPLETE, {**content, MADE: list_files(checkpoint, files, by_size=())})


def last_complete_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest whole checkpoint of a training; those that are half written, cut down or damaged are removed."""
    whole = None
    for path in _checkpoints(folder):
        fault = fault_of_checkpoint(path)
        if fault is None:
            whole = str(path)
        else:
            logger.warning("%s %s: it is removed", path, fault)
            shutil.rmtree(path)
    return whole


def fault_of_checkpoint(checkpoint: str | os.PathLike) -> str | None:
    """Why no training can go on from it: going on without its optimizer, say, would train another model."""
    mark = Path(checkpoint) / COMPLETE
    if not mark.is_file():
        return "was interrupted while it was saved or removed"
    try:
        note = json.loads(mark.read_text(encoding="utf-8"))
        made = note.get(MADE)  # of an earlier version there is none
        known = {} if made is None else {**made, TRAINER_STATE_NAME: None}
    except (ValueError, AttributeError, TypeError):
        return f"is damaged, {COMPLETE} cannot be read"
    fault = fault_of_files(checkpoint, known)
    return None if fault is None else f"is damaged, {fault}"


def best_checkpoint(checkpoint: str | os.PathLike) -> str | None:
    """
    The best checkpoint so far, by what a whole one has noted. A training that was moved, or is called by another path,
    has its best one beside this one; the note is corrected, or the Trainer would go on as if there were none.
    """
    noted = Path(checkpoint) / TRAINER_STATE_NAME
    try:
        state = json.loads(noted.read_text(encoding="utf-8"))
        found = state["best_model_checkpoint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{noted}: damaged ({type(error).__name__}: {error}): {ANEW}") from None
    if found is None:
        return None
    best = str(Path(checkpoint).parent / Path(found).name)
    if best != found:
        with atomic_open(noted) as file:
            file.write(json.dumps(state | {"best_model_checkpoint": best}, indent=2, sort_keys=True) + "\n")
    return best


def remove_older(checkpoint: str | os.PathLike, limit: int | None, best: str | None) -> None:
    """
    Removes what `save_total_limit` does not keep beside the checkpoint that is the newest, and the best one.

    Which is the newest is what the caller says, and no clock; those of later steps are left from an earlier training.

    Args:
        checkpoint (`str` or `os.PathLike`): the newest, whole.
        limit (`int`, *optional*): how many are kept; all by default.
        best (`str`, *optional*): the best one; its name counts, not where it was when it was saved.
    """
    if not limit or limit < 1:
        return
    newest = Path(checkpoint)
    kept = {newest.name} if best is None else {newest.name, Path(best).name}
    steps = _checkpoints(newest.parent)
    others = [path for path in steps if path.name not in kept]
    others.sort(key=lambda path: _step(path) < _step(newest))  # an earlier training's first, then from the first on
    for path in others[: max(0, len(steps) - max(limit, len(kept)))]:
        (path / COMPLETE).unlink(missing_ok=True)  # first: what a kill leaves of it is not taken for a whole one
        shutil.rmtree(path)


def _checkpoints(folder: str | os.PathLike) -> list[Path]:
    """All of a training, the first step first."""
    found = [path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return sorted((path for path in found if re.fullmatch("[0-9]+", path.name.split("-", 1)[1])), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-", 1)[1])
