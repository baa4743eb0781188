"""The command `cobert`: one door to every step, and the manners that all steps share.

```bash
cobert retrieve --collection demo --output runs/demo.trec --evaluate
```

A command is a module of [`modeling_cobert.commands`]: its docstring is the help, `ARGUMENTS` are the dataclasses that
its options fill, `main` takes their instances. It is imported when it runs, so that the list of commands is quick.
"""

import argparse
import difflib
import importlib
import importlib.metadata
import inspect
import io
import logging
import os
import re
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies

from .steps.failures import told
from .steps.terminal import VisibleRecord, visible, visible_lines

if TYPE_CHECKING:
    from transformers import HfArgumentParser

COMMANDS = {
    "prepare": "from a collection to the rows that Co-BERT trains on, in one go",
    "retrieve": "rank a collection's documents for its queries, BM25 or DPH, with or without expansion",
    "select": "choose the best passage of each candidate",
    "rows": "join selected passages with judgments and splits",
    "train": "train a Co-BERT, select the best epoch, test it",
    "eval": "re-rank a query set and measure it beside the first stage",
    "rerank": "rank a file of documents for one query",
    "compare": "compare runs: measures, significance, queries helped and hurt, a report",
    "explain": "what feedback and group did to the ranking of a query",
    "stability": "how much a ranking depends on order, groups and candidates",
    "flops": "count what re-ranking costs, in multiply-accumulates",
    "bert-qe": "the baseline BERT-QE",
    "maxp": "rows for the baseline BERT-Base MaxP",
    "mix": "mix first stage, selector and runs, weights tuned on validation queries",
    "gains": "what each part gives on a collection, twins beside each other",
    "reproduce": "every table of the paper",
    "demo": "the whole way on a laptop's CPU",
    "convert": "turn the authors' weights into a Co-BERT",
    "export": "turn a pointwise Co-BERT into a plain BERT cross-encoder",
}

_HELP, _HELP_ALL = ("-h", "--help"), "--help-all"
# What `--help` prints, written by `make help-texts`: to make one reads the libraries of a command, seconds of them.
_HELP_TEXTS = Path(__file__).parent / "commands" / "help"
_HELP_WIDTH = 100
# What may be a model on the Hub, if there is no such file.
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# What transformers' string_to_bool takes for a value.
_BOOLEANS = {"yes", "true", "t", "y", "1", "no", "false", "f", "n", "0"}


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The docstring as it is, the default of every option that has one, and which options must be given."""

    def __init__(self, prog: str):
        super().__init__(prog, width=_HELP_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # Not `--group-size N` beside `--group_size N`, although it is understood.
        if len(action.option_strings) < 2 or action.nargs == 0:
            return super()._format_action_invocation(action)
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{action.option_strings[0]} {values}"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.required:
            return f"{action.help} (required)"
        return action.help if action.default in (None, "") else super()._get_help_string(action)


class _Once(logging.Filter):
    """Lets a warning through once: the same file is opened by several steps of a command."""

    def __init__(self):
        super().__init__()
        self.told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        known = record.getMessage() in self.told
        self.told.add(record.getMessage())
        return not known


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: `cobert COMMAND ...`; without a command, the list of them."""
    open_streams()
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in COMMANDS:
        run(argv[0], argv[1:])
        return
    with _in_one_line(debug=False):
        if not argv or argv[0] in ("-h", "--help"):
            print(_overview())
        elif argv[0] == "--version":
            print(f"cobert {importlib.metadata.version('modeling-cobert')}")
        else:
            cure = _did_you_mean(argv[0], COMMANDS) or "; `cobert` lists them"
            print(f"error: there is no command {argv[0]!r}{cure}", file=sys.stderr)
            sys.exit(2)


def run(name: str, argv: Sequence[str] | None = None) -> None:
    """
    Runs one command. What is wrong with the input ends it with one line and exit code 1, wrong usage with 2.

    Args:
        name (`str`): one of `COMMANDS`.
        argv (`list[str]`, *optional*): the options; by default those that the process was started with. With
            `--debug` among them an error shows its traceback.
    """
    # On some CPUs the last bit of a product depends on where in memory its factors lie: with this, equal inputs give
    # equal bytes. It is read at the first product.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    open_streams()
    argv = list(sys.argv[1:] if argv is None else argv)
    with _in_one_line("--debug" in argv):
        if not {*_HELP}.isdisjoint(argv) and _HELP_ALL not in argv:
            print(_stored_help(name), end="")
            sys.exit(0)
        _check_working_folder()
        argv = [_as_utf8(argument) for argument in argv]
        module = importlib.import_module(f".commands.{name.replace('-', '_')}", __package__)
        level = getattr(module, "LOG_LEVEL", logging.INFO)
        logging.setLogRecordFactory(VisibleRecord)
        handler = logging.StreamHandler()
        handler.addFilter(_Once())
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", handlers=[handler])
        parsed = parse(name, module, argv)
        _notice_offline(parsed)
        _quiet_bars()
        module.main(*parsed)
        sys.stdout.flush()
        _leave_together()


def open_streams() -> None:
    """
    Standard streams that everything can be printed to: one that was closed (`>&-`) takes all and gives nothing, and
    characters that a locale cannot write are escaped.
    """
    # In the order of their numbers: what is opened takes the lowest free one, which no other file must get.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # where a pipe, say, has taken the place of the file that it was opened on
                stream.reconfigure(errors="backslashreplace")


def _check_working_folder() -> None:
    """Libraries that ask for it end the process where it was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError("the working folder was removed: change into one that is there") from None


def _as_utf8(argument: str) -> str:
    """
    In a locale without UTF-8, the bytes of an argument arrive as lone surrogates, and a query would be other words.
    The name of a file stays, which is how it is opened there.
    """
    if not any("\udc80" <= character <= "\udcff" for character in argument) or os.path.exists(argument):
        return argument
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        raise ValueError(f"{argument}: not UTF-8: write it in UTF-8") from None


@contextmanager
def _in_one_line(debug: bool) -> Iterator[None]:
    """Around a command: what goes wrong is one line and an exit code, what is printed has been printed at the end."""
    try:
        try:
            yield
        except SystemExit:  # after --help, for example
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads our output has enough of it (`cobert ... | head`).
        _drop_output()
        sys.exit(141)
    except Exception as error:
        _fail(error, debug)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from what is finished", file=sys.stderr)
        sys.exit(130)


def _drop_output() -> None:
    """What is left to print goes nowhere: Python must not flush into a closed pipe or a full disk again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(name: str, module: ModuleType, argv: Sequence[str]) -> tuple:
    """The instances of a command's `ARGUMENTS` that its options describe; wrong usage exits with 2."""
    parser = build_parser(name, module)
    if _HELP_ALL in argv:
        argv = ["--help"]
    argv = _spell_out(_without_debug(argv, "debug" in _names(module)), _names(module, bool))
    *parsed, unknown = parser.parse_args_into_dataclasses(
        argv, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        known = [f"--{option}" for option in _names(module)]
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_did_you_mean(unknown[0], known)}")
    return tuple(parsed)


def _stored_help(name: str) -> str:
    return (_HELP_TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def help_text(name: str) -> str:
    """What `cobert NAME --help` is to print, made anew of the command's options."""
    module = importlib.import_module(f".commands.{name.replace('-', '_')}", __package__)
    parser = build_parser(name, module)
    _hide_foreign(parser, module)
    return parser.format_help()


def write_help_texts() -> None:
    """What `make help-texts` does, after options or their explanations have changed."""
    for name in COMMANDS:
        (_HELP_TEXTS / f"{name}.txt").write_text(help_text(name), encoding="utf-8")


def build_parser(name: str, module: ModuleType) -> "HfArgumentParser":
    """The parser of a command; a module that has `configure` adds to it what dataclasses cannot say."""
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):
        def error(self, message: str) -> NoReturn:
            # Not the usage, which is fifty options long here.
            self.exit(2, f"error: {visible(message)} (`{self.prog} --help` explains the options)\n")

        def _print_message(self, message: str, file: Any = None) -> None:
            # argparse's own would not say that a help could not be written.
            (file or sys.stderr).write(message)

    # No abbreviations: a new option must not change what an old command means.
    parser = Parser(
        module.ARGUMENTS,
        prog=f"cobert {name}",
        description=module.__doc__,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    if hasattr(module, "configure"):
        module.configure(parser)
    if "debug" not in _names(module):
        explained = "Show where in the code an error comes from."
        parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=explained)
    parser.usage = _usage(parser)
    return parser


def _usage(parser: argparse.ArgumentParser) -> str:
    """What must be given; a line of all options would be forty lines."""
    parts = [f"{a.option_strings[0]} {a.metavar or a.dest.upper()}" for a in parser._actions if a.required]
    places = [f"[{a.dest}]" for a in parser._actions if not a.option_strings]
    return " ".join([parser.prog, *parts, "[options]", *places])


def _hide_foreign(parser: "HfArgumentParser", module: ModuleType) -> None:
    """Options that a dataclass inherits from a library still work, but the help is silent of most of them."""
    ours: set[str] = set()
    for arguments in module.ARGUMENTS:
        for kind in arguments.__mro__:
            if not kind.__module__.startswith("transformers."):
                ours |= inspect.get_annotations(kind).keys()
        ours |= set(getattr(arguments, "OFTEN_USED", ()))
    hidden = [action for action in parser._actions if action.dest in set(_names(module)) - ours]
    for action in hidden:
        action.help = argparse.SUPPRESS
    if hidden:
        parser.epilog = f"More options, those of Hugging Face's Trainer, work as well: {_HELP_ALL} lists them."


def _names(module: ModuleType, kind: type | None = None) -> list[str]:
    """The options of a command, of one type or of all."""
    return [f.name for arguments in module.ARGUMENTS for f in fields(arguments) if f.init and kind in (None, f.type)]


def _without_debug(argv: Sequence[str], has_its_own: bool) -> list[str]:
    """Takes `--debug` out, but not with the values that TrainingArguments' option of that name has."""
    pairs = pairwise([*argv, "--"])
    return [a for a, following in pairs if a != "--debug" or (has_its_own and not following.startswith("--"))]


def _spell_out(argv: Sequence[str], flags: Iterable[str]) -> list[str]:
    """`--plain docs.txt` becomes `--plain True docs.txt`: the value of a flag may be left out, and a file is none."""
    spellings = {f"--{spelling}" for flag in flags for spelling in (flag, flag.replace("_", "-"))}
    spelt = []
    for argument, following in pairwise([*argv, ""]):
        spelt.append(argument)
        if argument in spellings and following.lower() not in _BOOLEANS:
            spelt.append("True")
    return spelt


def _notice_offline(parsed: Iterable) -> None:
    """An option that may name the Hub, and no way there: what is not in the cache fails at once, not after retries."""
    values = [value for options in parsed for value in vars(options).values() if isinstance(value, str)]
    if not any(_HUB_ID.fullmatch(value) and not os.path.exists(value) for value in values):
        return
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():
        return
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        logging.getLogger(__name__).warning(
            "%s cannot be found: only what is here already is used", constants.ENDPOINT
        )
        constants.HF_HUB_OFFLINE = True


def _fail(error: Exception, debug: bool) -> NoReturn:
    if debug:
        print(visible_lines(traceback.format_exc()), file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = "standard output"
    print(f"error: {told(error)}", file=sys.stderr)
    sys.exit(1)


def _leave_together() -> None:
    """Under `torchrun` no process ends well before all have: where one has failed, the others fail here."""
    if "torch" not in sys.modules:
        return
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from accelerate import PartialState

        PartialState().wait_for_everyone()
        PartialState().destroy_process_group()


def _quiet_bars() -> None:
    from .steps.progress import quiet_other_bars

    quiet_other_bars()


def _overview() -> str:
    lines = [f"  {name:<12}{description}" for name, description in COMMANDS.items()]
    usage = "usage: cobert COMMAND [options]\n\nCo-BERT, a groupwise, feedback-calibrated BERT re-ranker."
    ending = "`cobert COMMAND --help` explains a command and its options."
    return "\n".join([usage, "", "commands:", *lines, "", ending])


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    names = {name.replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.replace("-", "_"), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else ""


if __name__ == "__main__":
    main()
