"""A step's folder: `settings.json` says what it is made of, guards a resumption and, at the end, has the counts."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from .files import write_json

SETTINGS = "settings.json"


def claim_folder(folder: str | os.PathLike, settings: Mapping) -> dict | None:
    """
    Takes `folder` for a step, before any work: new, or begun with the very same settings.

    What a killed process left under a temporary name is removed. A folder that was begun with other settings, or that
    holds files of something else, is an error: results of two settings are never mixed.

    Args:
        folder (`str` or `os.PathLike`): where the step writes.
        settings (`Mapping`): everything that the result depends on, options and fingerprints of the inputs.

    Returns:
        `dict` or `None`: the finished step's settings and `counts`, or `None` where there is still work to do.
    """
    folder, settings = Path(folder), json.loads(json.dumps(settings))
    if (folder / SETTINGS).exists():
        known = read_settings(folder)
        counts = known.pop("counts")
        if known != settings:
            raise ValueError(
                f"{folder / SETTINGS}: begun with other settings: {_differences(known, settings)}. "
                "Give another output folder, or remove this one to start over."
            )
        for left in folder.rglob(".*.tmp"):
            left.unlink(missing_ok=True)
        return None if counts is None else known | {"counts": counts}
    for left in folder.glob(f".{SETTINGS}.*.tmp"):
        left.unlink(missing_ok=True)
    others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if others:
        raise ValueError(f"{folder}: not empty and not of this step (there is {others[0]!r}): give another folder")
    write_settings(folder, settings, None)
    return None


def write_settings(folder: str | os.PathLike, settings: Mapping, counts: Mapping | None) -> dict:
    """Writes the settings with the counts of a finished step (or `None` for one begun), and returns both together."""
    content = {**settings, "counts": counts}
    write_json(Path(folder) / SETTINGS, content)
    return content


def read_settings(
    folder: str | os.PathLike, step: str | None = None, made_by: str = "", format: int | None = 1
) -> dict:
    """
    Reads a folder's settings; with `step`, that step must be what the folder holds, and it must be finished.

    Args:
        folder (`str` or `os.PathLike`): where a step wrote.
        step (`str`, *optional*): which one.
        made_by (`str`, *optional*): the command that makes such folders, for whoever has one of an earlier version.
        format (`int`, *optional*, defaults to 1): the layout that the step writes today; `None` if it has no number.
    """
    path = Path(folder) / SETTINGS
    if not path.exists():
        raise FileNotFoundError(f"{path}: not there, so {Path(folder)} is no {step or 'step'}'s folder")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(settings, dict) or "counts" not in settings:
        raise ValueError(f"{path}: not written by this package: no 'counts'")
    old = step is not None and settings.get("step") == step and settings.get("format") != format
    if old or (made_by and settings.get("step") == "groups"):
        raise ValueError(
            f"{folder}: in the layout of an earlier version, which is not read: make it anew with {made_by}"
        )
    if step is not None and settings.get("step") != step:
        raise ValueError(f"{path}: this is the folder of {settings.get('step')!r}, not of {step!r}")
    if step is not None and settings["counts"] is None:
        raise ValueError(f"{path}: {step} is not finished: run the same command again and it goes on")
    return settings


def _differences(known: dict, wanted: dict) -> str:
    keys = [key for key in dict.fromkeys([*known, *wanted]) if known.get(key) != wanted.get(key)]
    return ", ".join(f"{key} is {_short(known.get(key))}, now {_short(wanted.get(key))}" for key in keys)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:120]}..."
