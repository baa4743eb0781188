"""The command `cobert`: its help, how it fails, its doors, and `rerank`, which exists only here."""

import importlib
import io
import json
import logging
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from transformers import TrainingArguments

from modeling_cobert import CoBertForGroupwiseRanking, cli
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import rerank

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
DOORS = {
    path: found[0]
    for path in [*sorted(ROOT.glob("data_scripts/*.py")), ROOT / "train_cobert.py", ROOT / "eval_cobert.py"]
    if (found := re.findall(r'^    run\("([\w-]+)"\)$', path.read_text(encoding="utf-8"), flags=re.MULTILINE))
}


def module_of(name: str):
    return importlib.import_module(f"modeling_cobert.commands.{name.replace('-', '_')}")


def run(argv: list[str], capsys) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `cobert`, in this process."""
    code = 0
    try:
        cli.main(argv)
    except SystemExit as exit_:
        code = exit_.code
    return code, *capsys.readouterr()


# --- the list and the help


def test_without_arguments_it_lists_the_commands(capsys):
    code, out, err = run([], capsys)
    assert code == 0 and not err
    for name, description in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(description)}$", out, flags=re.MULTILINE)
    assert run(["--help"], capsys) == (0, out, "")
    assert re.fullmatch(r"cobert \d+\.\d+\S*\n", run(["--version"], capsys)[1])


def test_every_module_is_a_command_and_every_command_a_module():
    there = {path.stem.replace("_", "-") for path in (ROOT / "modeling_cobert" / "commands").glob("[!_]*.py")}
    assert there - {"options"} == set(cli.COMMANDS)  # options that commands share
    assert '"console_scripts": ["cobert = modeling_cobert.cli:main"]' in (ROOT / "setup.py").read_text()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_lists_and_explains_every_option(name, capsys):
    code, out, _ = run([name, "--help-all"], capsys)
    assert code == 0 and out.startswith(f"usage: cobert {name} ")
    module = module_of(name)
    assert module.__doc__.strip() in out
    entries = re.split(r"\n  --", out.split("\noptions:\n")[1])[1:]
    explained = {
        re.match(r"\w+", entry)[0]: [word for word in entry.split()[1:] if word.isalpha() and not word.isupper()]
        for entry in entries
    }
    for arguments in module.ARGUMENTS:
        for option in fields(arguments):
            assert not option.init or len(explained[option.name]) > 1, f"no help for --{option.name}"
    assert explained["debug"]


@pytest.mark.parametrize("name", ["train", "reproduce"])
def test_the_short_help_leaves_out_what_is_not_ours(name, capsys):
    short, everything = (run([name, option], capsys)[1] for option in ("--help", "--help-all"))
    assert len(short.splitlines()) < 0.6 * len(everything.splitlines())
    for option in ("encoder", "learning_rate", "freeze_encoder", "seed", "push_to_hub"):
        assert f"\n  --{option}" in short
    for option in ("adam_beta1", "fsdp", "torch_compile"):
        assert f"--{option}" not in short and f"\n  --{option}" in everything
    told = [set(re.findall(r"\n  --(\w+)", text)) for text in (short, everything)]
    assert told[0] < told[1] and "More options" not in everything
    assert short.endswith("\nMore options, those of Hugging Face's Trainer, work as well: --help-all lists them.\n")


def test_the_help_of_a_command_with_no_other_options_is_whole(capsys):
    short, everything = (run(["retrieve", option], capsys)[1] for option in ("--help", "--help-all"))
    assert short == everything


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_that_is_stored_is_that_of_the_options(name):
    assert cli._stored_help(name) == cli.help_text(name), "run `make help-texts`"


def test_no_other_help_is_stored():
    assert {path.stem for path in cli._HELP_TEXTS.iterdir()} == set(cli.COMMANDS)


def test_help_marks_what_must_be_given(capsys):
    entries = re.split(r"\n  --", run(["retrieve", "--help"], capsys)[1].split("\noptions:\n")[1])
    assert {re.match(r"\w+", entry)[0] for entry in entries if "(required)" in entry} == {"collection", "output"}
    usages = {name: cli._stored_help(name).partition("\n")[0] for name in ("retrieve", "rerank", "demo")}
    assert usages == {
        "retrieve": "usage: cobert retrieve --collection COLLECTION --output OUTPUT [options]",
        "rerank": "usage: cobert rerank --model MODEL --query QUERY [options] [documents]",
        "demo": "usage: cobert demo [options]",
    }


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_commands_in_the_help_are_understood(name):
    module = module_of(name)
    text = module.__doc__.replace("\\\n", " ")
    commands = re.findall(r"^ {4}(?:.*\| )?cobert (.*)$", text, flags=re.MULTILINE)
    assert commands
    for command in commands:
        other, *argv = shlex.split(command)
        module = module_of(other)
        argv = cli._spell_out(argv, cli._names(module, bool))
        _, unknown = cli.build_parser(other, module).parse_known_args(argv)
        assert not unknown


# --- how it fails


@dataclass
class Options:
    """Of the commands that the tests make up."""

    some_path: str = field(default="", metadata={"help": "A path."})
    quick_one: bool = field(default=False, metadata={"help": "A flag."})


@pytest.fixture
def made_up(monkeypatch):
    """Makes a command `made-up` of a function."""

    def make(main, arguments=(Options,), **more):
        module = SimpleNamespace(__doc__="Made up.", ARGUMENTS=arguments, main=main, **more)
        monkeypatch.setitem(sys.modules, "modeling_cobert.commands.made_up", module)
        monkeypatch.setitem(cli.COMMANDS, "made-up", "made up")

    return make


def test_without_a_way_to_the_hub_it_is_not_asked_again_and_again(tmp_path):
    there = {name: value for name, value in ENVIRONMENT.items() if not name.lower().endswith(("_offline", "_proxy"))}
    command = [sys.executable, "-m", "modeling_cobert.cli", "prepare", "--collection", "demo", "--output", "out"]
    done = subprocess.run(
        [*command, "--selector", "no-such/encoder"],
        env={**there, "HF_ENDPOINT": "http://hub.invalid", "HF_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and "Retrying" not in done.stderr and "Traceback" not in done.stderr
    assert "http://hub.invalid cannot be found: only what is here already is used" in done.stderr
    assert "error: --selector no-such/encoder: give lexical" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError])
def test_an_error_is_one_line_and_exit_code_1(made_up, capsys, kind):
    def main(options):
        raise kind("a.trec:3:\n  bad")

    made_up(main)
    assert run(["made-up"], capsys) == (1, "", "error: a.trec:3: bad\n")
    code, _, err = run(["made-up", "--debug", "--some_path", "x"], capsys)
    assert code == 1 and err.startswith("Traceback") and err.endswith("error: a.trec:3: bad\n")


def test_a_defect_is_not_dressed_up_as_an_error(made_up, capsys):
    made_up(lambda options: {}["missing"])
    code, out, err = run(["made-up"], capsys)
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert re.match(
        r"error: KeyError: 'missing' at test_cli.py:\d+. This is a bug in cobert: --debug shows where", err
    )
    assert run(["made-up", "--debug"], capsys)[2].startswith("Traceback")


def test_wrong_usage_is_exit_code_2(capsys):
    code, out, err = run(["retreive"], capsys)
    assert (code, out, err) == (2, "", "error: there is no command 'retreive'; did you mean retrieve?\n")
    assert run(["xyzzy"], capsys)[2].endswith("no command 'xyzzy'; `cobert` lists them\n")
    code, _, err = run(["retrieve", "--collection", "demo"], capsys)
    assert code == 2 and "the following arguments are required: --output" in err
    code, _, err = run(["flops", "--mean-tokns", "3"], capsys)
    said = "unrecognized arguments: --mean-tokns 3; did you mean --mean_tokens?"
    assert code == 2 and err == f"error: {said} (`cobert flops --help` explains the options)\n"
    # abbreviations are not understood, so that a new option never changes what an old command means
    assert run(["flops", "--mean", "3"], capsys)[0] == 2


def test_options_are_spelt_with_underscores_or_hyphens(made_up):
    seen = []
    made_up(seen.append)
    for argv in (["--some_path", "x", "--quick_one"], ["--quick-one", "True", "--some-path=x"]):
        cli.main(["made-up", *argv])
    cli.main(["made-up", "--quick-one", "no"])
    assert seen == [Options("x", True), Options("x", True), Options("", False)]


def test_debug_of_training_arguments_keeps_its_values(made_up, tmp_path):
    seen = []
    made_up(seen.append, arguments=(TrainingArguments,))
    common = ["made-up", "--output_dir", str(tmp_path), "--use_cpu"]
    cli.main([*common, "--debug"])
    cli.main([*common, "--debug", "underflow_overflow"])
    assert [[option.value for option in args.debug] for args in seen] == [[], ["underflow_overflow"]]


def test_log_level(made_up, monkeypatch):
    levels = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: levels.append(options["level"]))
    made_up(lambda options: None)
    cli.main(["made-up"])
    made_up(lambda options: None, LOG_LEVEL=logging.WARNING)
    cli.main(["made-up"])
    assert levels == [logging.INFO, logging.WARNING]


def test_a_warning_is_given_once(made_up, monkeypatch):
    """Steps of one command open the same files, and each would warn of them."""
    printed = io.StringIO()
    root = logging.RootLogger(logging.WARNING)  # the real one has pytest's handlers
    monkeypatch.setattr(logging, "root", root)
    monkeypatch.setattr(sys, "stderr", printed)

    def main(options):
        for number in (1, 2, 1, 2):
            root.warning("line %d", number)
            root.info("progress")

    made_up(main)
    cli.main(["made-up"])
    lines = printed.getvalue().splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["line 1", "progress", "line 2", *["progress"] * 3]


READY = """
from modeling_cobert import cli
from modeling_cobert.commands import rerank
read = rerank.read_documents

def announced(options):
    print("reading", flush=True)
    return read(options)

rerank.read_documents = announced
cli.main()
"""


def test_interrupted(tmp_path):
    """Ctrl-C while the command waits for documents."""
    command = [sys.executable, "-c", READY, "rerank", "--model", "none", "--query", "bees"]
    options = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), "env": ENVIRONMENT, "text": True}
    # Tests that a shell has sent to the background are deaf to Ctrl-C, and their children would be so too.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=tmp_path, **options)
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "interrupted: the same command goes on from what is finished\n")
    assert process.returncode == 130


TOGETHER = """
import sys, types
from dataclasses import dataclass
from modeling_cobert import cli
from modeling_cobert.steps.shards import process_state

@dataclass
class Options:
    fails: bool = False

def main(options):
    state = process_state(use_cpu=True)
    if options.fails and state.process_index == 1:
        raise ValueError("only here")
    print(f"{state.process_index} has done its part", flush=True)

sys.modules["modeling_cobert.commands.two"] = types.SimpleNamespace(
    __doc__="Two.", ARGUMENTS=(Options,), main=main
)
try:
    cli.run("two")
except BaseException as error:
    print(f"exit {type(error).__name__}", flush=True)
    raise
print("ended well", flush=True)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_processes_end_together(tmp_path, fails):
    (tmp_path / "two.py").write_text(TOGETHER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(tmp_path / "two.py"), *(["--fails"] if fails else [])]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    if fails:
        assert done.returncode != 0 and "error: only here" in done.stderr
        assert "0 has done its part" in done.stdout and "ended well" not in done.stdout
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("ended well") == 2 and "destroy_process_group" not in done.stderr


# --- the doors


def test_every_door_has_a_command():
    assert set(DOORS.values()) <= set(cli.COMMANDS)
    assert {"retrieve", "compare", "flops", "convert", "export"} <= set(DOORS.values())
    for path in DOORS:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
        assert lines[0].startswith('"""') and lines[-3] == "from modeling_cobert.cli import run"


@pytest.mark.parametrize("argv", [["--paper", "gov2"], ["--num_queries", "3", "--k", "8", "--num_passages", "3"]])
def test_doors_say_the_same(argv, capsys, monkeypatch):
    said = run(["flops", *argv], capsys)
    monkeypatch.setattr(sys, "argv", ["flops.py", *argv])
    code = 0
    try:
        runpy.run_path(str(ROOT / "data_scripts" / "flops.py"), run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code
    assert (code, *capsys.readouterr()) == said
    assert code == (0 if "--paper" in argv else 1)


# --- rerank

DOCUMENTS = [
    {"_id": "a", "title": "bees", "text": "bees see light and the blue sky " * 4},
    {"id": 7, "text": "the road to honey"},
    {"text": "slow car \ud83d and\u202e wheel"},
    {"_id": "d", "title": None, "text": ""},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    return path


def expected(model, query="how do bees see", **options):
    texts = [{"title": d.get("title") or "", "text": d["text"].replace("\ud83d", "\ufffd")} for d in DOCUMENTS]
    return CoBertForGroupwiseRanking.from_pretrained(model).rerank(query, texts, **options)


def test_rerank_gives_what_the_model_gives(model, documents, capsys):
    common = ["rerank", "--model", model, "--query", "how do bees see", "--use_cpu"]
    code, out, _ = run([*common, "--format", "jsonl", str(documents)], capsys)
    ranking = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [item.pop("rank") for item in ranking] == [1, 2, 3, 4]
    ids = ["a", "7", "2", "d"]
    for item, wanted in zip(ranking, expected(model), strict=True):
        assert item.pop("id") == ids[wanted["corpus_id"]]
        assert item == {"index": wanted["corpus_id"], **{key: wanted[key] for key in ("score", "probability")}}
    options = ["--top-k", "2", "--selector", "lexical", "--batch-tokens", "64"]
    _, out, _ = run([*common, *options, "--format", "jsonl", "--documents", str(documents)], capsys)
    wanted = expected(model, top_k=2, selector="lexical", batch_tokens=64)
    assert [json.loads(line)["index"] for line in out.splitlines()] == [item["corpus_id"] for item in wanted]


def test_rerank_reads_first_stage_scores(tmp_path, capsys):
    """A model that starts from them says something else with other scores, and an error where one is missing."""
    model = str(tiny.checkpoint(tmp_path / "model", starting_weights=[0.5, 0.5, 1.0]))
    found = [
        {"text": text, "score": score} for text, score in (("red car", 3.0), ("bees see", 2.5), ("the sky", -1.0))
    ]
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in found))
    command = ["rerank", "--model", model, "--query", "bees", "--format", "jsonl", str(path)]
    code, out, _ = run(command, capsys)
    wanted = CoBertForGroupwiseRanking.from_pretrained(model).rerank("bees", found)
    assert code == 0 and [json.loads(line)["score"] for line in out.splitlines()] == [w["score"] for w in wanted]
    del found[1]["score"]
    path.write_text("".join(json.dumps(document) + "\n" for document in found))
    code, _, err = run(command, capsys)
    assert code == 1 and f"{path}:2: document 1 has the score None" in err


def test_rerank_for_people(model, documents, capsys):
    _, out, _ = run(["rerank", str(documents), "--model", model, "--query", "how do bees see"], capsys)
    lines = [line.split("\t") for line in out.splitlines()]
    wanted = expected(model)
    assert [line[:2] for line in lines] == [[str(i), f"{w['score']:.4f}"] for i, w in enumerate(wanted, start=1)]
    starts = {line[2]: line[3] for line in lines}
    assert starts["a"].startswith("bees bees see light") and starts["a"].endswith("...") and len(starts["a"]) == 80
    assert starts["2"] == "slow car \ufffd and\\u202e wheel" and starts["7"] == "the road to honey"


def test_rerank_writes_a_run(model, tmp_path, capsys):
    path = tmp_path / "docs.jsonl"
    # two documents of one text tie; trec_eval would break the tie by id, the other way round
    texts = {"a": "bees see", "b": "red car", "c": "the road"}
    same = {"_id": "z", "text": "bees see"}
    path.write_text("".join(json.dumps(d) + "\n" for d in [*({"_id": i, "text": t} for i, t in texts.items()), same]))
    common = ["rerank", "--model", model, "--query", "honey", "--format", "trec", "--query_id", "q7", "--tag", "mine"]
    code, out, _ = run([*common, str(path)], capsys)
    assert code == 0
    (tmp_path / "run.trec").write_text(out)
    scores = read_run(tmp_path / "run.trec")["q7"]
    ranked = [line.split() for line in out.splitlines()]
    assert [line[2] for line in ranked] == list(scores) and {line[5] for line in ranked} == {"mine"}
    assert list(scores).index("a") < list(scores).index("z") and len(set(scores.values())) == 4


def test_rerank_plain_from_standard_input(model, capsys, monkeypatch):
    texts = ["bees see light", "{red} car", "the road"]
    content = "\ufeff" + "".join(text + "\r\n" for text in texts)
    wanted = CoBertForGroupwiseRanking.from_pretrained(model).rerank("red", texts)
    common = ["rerank", "--model", model, "--query", "red", "--plain", "--format", "jsonl"]
    for more in ([], ["-"]):
        stdin = io.TextIOWrapper(io.BytesIO(content.encode()), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, _ = run([*common, *more], capsys)
        ranking = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and [item["index"] for item in ranking] == [item["corpus_id"] for item in wanted]
        assert [item["score"] for item in ranking] == [item["score"] for item in wanted]
        assert all(item["id"] == str(item["index"]) for item in ranking)


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (b'{"text": "a"}\nhello\n', [], "docs:2: not a JSON object (Expecting value"),
        (b'{"text": "a"}\n[]\n', [], "docs:2: not a JSON object, but list"),
        (b'{"text": "a"}\n\n', [], "docs:2: blank line; remove it"),
        (b'{"title": "a"}\n', [], "docs:1: 'text' must be a string, found nothing"),
        (b'{"text": "a", "title": 3}\n', [], "docs:1: 'title' must be a string, found 3"),
        (
            b'{"text": "a", "_id": [1]}\n',
            [],
            "docs:1: an id must be a non-empty string without white space",
        ),
        (b'{"text": "a"}\n\xff\n', [], "docs:2: not UTF-8"),
        (b"", [], "docs:1: no documents"),
        (b'{"text": "a", "_id": "x y"}\n', [], "docs:1: an id must be a non-empty string without white space"),
        (b'{"text": "a", "id": 1}\n{"text": "b", "_id": "1"}\n', [], "docs:2: document '1' appears twice, in line 1"),
        (
            b'{"text": "a", "_id": "1"}\n{"text": "b"}\n',
            [],
            "docs:2: document '1' appears twice, in line 1 too (a document without an id has its place, from 0,",
        ),
        (b"a\n", ["--threads", "0"], "--threads must be at least 1, got 0"),
        (b"a\n", ["--threads", "1000000"], "--threads must be at most 1024, got 1000000"),
        (b"a\n", ["--query", " "], "the query is empty"),
        (b"a\n", ["--top_k", "0"], "top_k must be at least 1, got 0"),
        (b"a\n", ["--tag", "a b"], "tag must be non-empty and without white space, got 'a b'"),
    ],
)
def test_rerank_says_what_is_wrong_before_a_model_is_loaded(tmp_path, monkeypatch, capsys, content, more, message):
    monkeypatch.chdir(tmp_path)
    Path("docs").write_bytes(content)
    monkeypatch.setattr(rerank.RankerOptions, "load", None)
    code, out, err = run(["rerank", "--model", "none", "--query", "bees", *more, "docs"], capsys)
    assert (code, out) == (1, "") and err.startswith(f"error: {message}") and err.count("\n") == 1


def test_a_null_id_is_none(model, tmp_path, capsys):
    path = tmp_path / "docs.jsonl"
    lines = ('"id": null', '"_id": null', '"_id": null, "id": null', '"_id": null, "id": "a"', '"id": 0, "_id": "b"')
    path.write_text("".join(f'{{"text": "red car", {line}}}\n' for line in lines))
    code, out, _ = run(["rerank", "--model", model, "--query", "bees", "--format", "jsonl", str(path)], capsys)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and {item["index"]: item["id"] for item in found} == dict(enumerate(["0", "1", "2", "a", "b"]))


def test_rerank_into_a_closed_pipe(model, documents, tmp_path):
    command = [
        sys.executable,
        "-m",
        "modeling_cobert.cli",
        "rerank",
        "--model",
        model,
        "--query",
        "red",
        str(documents),
    ]
    process = subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=100) == 141
    assert "BrokenPipe" not in err and "error" not in err
