"""Progress: bars on a terminal, and at most a line a minute in a pipe or a file."""

import sys
from typing import TextIO

from tqdm.auto import tqdm
from tqdm.std import tqdm as plain_tqdm

A_MINUTE = 60.0


class _Lines:
    """Takes what tqdm writes over and over at one place, and writes lines."""

    def __init__(self, file: TextIO):
        self.file = file

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            self.file.write(f"{line}\n")

    def flush(self) -> None:
        self.file.flush()


def progress_bar(iterable=None, *, desc: str, unit: str, total: int | None = None, show: bool = True) -> tqdm:
    """
    A tqdm bar that appears after 3 seconds; where nobody watches, a line after each minute and nothing before.

    Args:
        iterable (`Iterable`, *optional*): what to walk through; without it, call `update`.
        desc, unit (`str`): what is done, and what is counted.
        total (`int`, *optional*): how many there will be.
        show (`bool`, *optional*, defaults to `True`): `False` in all processes but the main one.
    """
    if sys.stderr.isatty() or not show:
        return tqdm(iterable, desc=desc, unit=f" {unit}", total=total, disable=not show, delay=3)
    return plain_tqdm(
        iterable,
        desc=desc,
        unit=f" {unit}",
        total=total,
        file=_Lines(sys.stderr),
        mininterval=A_MINUTE,
        # Fixed: a bar that tqdm adapts to the pace is woken when the pace drops, and would print a line too many.
        miniters=1,
        delay=A_MINUTE,
        leave=False,
        ncols=100,
        ascii=True,
    )


def quiet_other_bars() -> None:
    """Where nobody watches, the bars of the libraries that we call (loading weights, reading files) are turned off."""
    if sys.stderr.isatty():
        return
    import datasets
    import huggingface_hub
    import transformers

    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    huggingface_hub.utils.disable_progress_bars()
