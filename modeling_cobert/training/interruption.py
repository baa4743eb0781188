"""Stopping and going on: SIGTERM saves and exits, a killed process leaves no checkpoint that is only half there."""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..ranking.seen import COMPLETE
from ..steps.files import write_json

logger = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM


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
    """Writes the last file of a checkpoint."""
    write_json(Path(checkpoint) / COMPLETE, content)


def last_complete_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest whole checkpoint of a training; those that a killed process left half written are removed."""
    steps = {}
    for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if path.is_dir() and step.isascii() and step.isdigit():
            steps[int(step)] = path
    for step in sorted(steps, reverse=True):
        if (steps[step] / COMPLETE).is_file():
            return str(steps[step])
        logger.warning("%s was interrupted while it was saved: it is removed", steps[step])
        shutil.rmtree(steps[step])
    return None
