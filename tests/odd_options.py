"""Every option of every command with values that nobody means: a right answer, or one line that names the cure.

    make fuzz-options        # all of them; `tests/test_odd_options.py` has a short version

A case is a command that works, with one option changed. It ends with exit code 0; or with 1 and a line `error: ..`,
and nothing is left behind; or with 2, for usage. Anything else is a fault: a traceback, a defect of ours, a hang.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import tiny
import tiny_collection
import transformers
from tiny_rows import make_rows

from modeling_cobert import cli

DEFECT = "This is a bug in cobert"
SECONDS = 120  # of a case; the longest take some five
SIZES = "--calibrator_layers 1 --scorer_layers 2 --max_length 32 --num_prototypes 2 --group_size 5 --group_overlap 1"
SMALL = f"{SIZES} --max_steps 2 --use_cpu --disable_tqdm True"
# A working command of each; {names} are the sandbox's, {out} is a new folder.
COMMANDS = {
    "prepare": "--collection {c} --skip_missing --selector lexical --first_stage bm25 --output {out}",
    "retrieve": "--collection {c} --skip_missing --first_stage bm25 --output {out}/run.trec",
    "select": "--collection {c} --skip_missing --run {c}/run.trec --selector lexical --tokenizer {bert} "
    "--output {out}",
    "rows": "--collection {c} --skip_missing --selected {selected} --output {out}",
    "train": f"--rows {{rows}} --encoder {{bert}} --output_dir {{out}} {SMALL}",
    "eval": "--model {model} --rows {rows} --use_cpu --output {out}",
    "rerank": "--model {model} --query red {documents}",
    "compare": "--qrels {c}/qrels.txt --baselines {c}/run.trec --html {out}/report.html",
    "explain": "--model {model} --rows {rows} --query_ids q5 --use_cpu --output {out}",
    "stability": "--model {model} --rows {rows} --use_cpu --output {out}",
    "flops": "",
    "bert-qe": "--collection {c} --skip_missing --run {c}/run.trec --k 5 --folds round-robin --num_folds 3 "
    "--output {out} --phase1 {cross} --phase2 {cross} --phase3 {cross} --max_length 48",
    "maxp": "--collection {c} --skip_missing --run {c}/run.trec --folds round-robin --num_folds 3 --output {out}",
    "mix": "--rows {rows} --sources first-stage selector --output {out}",
    "reproduce": "--collection {c} --skip_missing --encoder {bert} --dry_run --output {out}",
    "convert": "--checkpoint {weights} --encoder {bert} --output {out}",
    "export": "--model {pointwise} --output {out}",
}
# What does not end in seconds, or needs what is not there.
LEFT_OUT = {("train", "push_to_hub"), ("train", "hub_model_id"), ("train", "hub_strategy"), ("train", "report_to")}
VALUES = ["", " ", "nan", "inf", "-inf", "-1", "0", "1", "1.5", "1e400", "9" * 30, "nowhere/at-all", "../x", "{fold}"]
VALUES += [
    "\u202eé\x1b[2J",
    "a\tb",
    "a\nb",
    "-",
    "None",
    "True",
    "{directory}",
    "{empty}",
    "{binary}",
    "{json}",
    "{c}",
]


class Hang(BaseException):
    """A case took far too long."""


def sandbox(folder: Path) -> dict[str, str]:
    """What the commands work on."""
    transformers.utils.logging.disable_progress_bar()
    c = tiny_collection.make(folder / "c")
    lines = (c / "qrels" / "test.tsv").read_text().splitlines()
    (c / "qrels.txt").write_text("".join("{} 0 {} {}\n".format(*line.split("\t")) for line in lines))
    tiny_collection.rows(c, folder / "prepared")
    (folder / "documents.jsonl").write_text(json.dumps({"id": "a", "text": "red"}) + "\n")
    (folder / "directory").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(random.Random(0).randbytes(300))
    (folder / "some.json").write_text('{"a": [1]}')
    return {
        "c": str(c),
        "bert": str(tiny.bert_checkpoint(folder / "bert", layers=4)),
        "cross": str(tiny.bert_checkpoint(folder / "cross", layers=2, labels=1)),
        "model": str(tiny.checkpoint(folder / "model")),
        "pointwise": str(tiny.checkpoint(folder / "pointwise", use_calibrator=False, use_scorer=False)),
        "rows": str(make_rows(folder / "rows")),
        "selected": str(folder / "prepared" / "selected"),
        "documents": str(folder / "documents.jsonl"),
        "weights": str(folder / "binary"),
        "directory": str(folder / "directory"),
        "empty": str(folder / "empty"),
        "binary": str(folder / "binary"),
        "json": str(folder / "some.json"),
    }


def options_of(command: str) -> list[str]:
    """The options that the short help explains."""
    module = __import__(f"modeling_cobert.commands.{command.replace('-', '_')}", fromlist=["ARGUMENTS"])
    parser = cli.build_parser(command, module)
    cli._hide_foreign(parser, module)
    known = {field.name for arguments in module.ARGUMENTS for field in fields(arguments)}
    shown = [a.dest for a in parser._actions if a.dest in known and a.help != argparse.SUPPRESS and a.option_strings]
    return [name for name in shown if (command, name) not in LEFT_OUT]


def cases(names: dict[str, str], commands: list[str]) -> Iterator[tuple[str, str, str]]:
    """Command, option and value, all of them."""
    for command in commands:
        for option in options_of(command):
            for value in VALUES:
                yield command, option, value.format(**names, fold="{fold}") if value.startswith("{") else value


def changed(command: str, option: str, value: str, names: dict[str, str], out: Path) -> list[str]:
    """The working command with the option set to this value."""
    argv = [part.format(**names, out=out) for part in COMMANDS[command].split()]
    if f"--{option}" in argv:
        at = argv.index(f"--{option}")
        end = next((i for i in range(at + 1, len(argv)) if argv[i].startswith("--")), len(argv))
        argv[at:end] = []
    return [command, *argv, f"--{option}={value}"]


def run_case(argv: list[str]) -> tuple[int, str]:
    """Exit code and what was printed to standard error."""
    err = io.StringIO()

    def hang(*_):
        raise Hang

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cli.main(argv)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException as error:  # what a process would end with, and print as a traceback
            code = -1
            err.write(f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
    return code, err.getvalue()


def fault(code: int, err: str, out: Path) -> str | None:
    """What is wrong with how a case ended."""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if code == 0:
        return None
    if code == 2:
        return None if "error:" in err and "Traceback" not in err else "usage without a word"
    if code != 1:
        return "traceback"
    if DEFECT in err or "Traceback" in err:
        return "defect"
    if len(errors) != 1:
        return f"{len(errors)} error lines"
    if any(not character.isprintable() for character in errors[0]):
        return "control characters in the line"
    return "left something behind" if out.exists() else None


def run_cases(chosen: Iterable[tuple[str, str, str]], names: dict[str, str], folder: Path) -> Iterator[tuple]:
    """Each case with how it ended: command, option, value, exit code, standard error, fault."""
    here = folder / "here"
    here.mkdir()
    before = os.getcwd()
    os.chdir(here)  # files that are named by a value are written here
    try:
        for number, (command, option, value) in enumerate(chosen):
            out = folder / f"out-{number}"
            code, err = run_case(changed(command, option, value, names, out))
            yield command, option, value, code, err, fault(code, err, out)
            shutil.rmtree(out, ignore_errors=True)
            for left in here.iterdir():  # or a later case would find what this one made
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    finally:
        os.chdir(before)


def main() -> int:
    """Runs the cases that were asked for, prints the faults and a summary; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), help="only these")
    parser.add_argument("--options", nargs="+", help="only these")
    parser.add_argument("--accepted", action="store_true", help="list what was accepted too")
    args = parser.parse_args()
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        names = sandbox(Path(folder))
        chosen = (case for case in cases(names, args.commands) if not args.options or case[1] in args.options)
        for command, option, value, code, err, wrong in run_cases(chosen, names, Path(folder)):
            ends[wrong or {0: "answered", 1: "refused", 2: "usage"}[code]] += 1
            last = err.strip().splitlines()[-1][:300] if err.strip() else ""
            if wrong or (args.accepted and code == 0):
                print(f"{wrong or 'accepted'}: {command} --{option}={value!r}: {last!r}", flush=True)
    print(f"{sum(ends.values())} cases: {', '.join(f'{count} {name}' for name, count in sorted(ends.items()))}")
    return int(any(name not in ("answered", "refused", "usage") for name in ends))


if __name__ == "__main__":
    sys.exit(main())
