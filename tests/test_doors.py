"""What a command is given at its door: outputs that are no files, inputs that are none, models that are not there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_collection
from safetensors.torch import load_file, save_file
from tiny_rows import make_rows

from modeling_cobert import cli
from modeling_cobert.steps.files import atomic_open


@pytest.fixture
def folder(tmp_path) -> Path:
    return tiny_collection.make(tmp_path / "words")


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    return make_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "cobert")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("models") / "encoder", layers=4, labels=2)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes, every folder with none."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


# --- outputs that would replace something


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "topics.txt", "more.tsv", "link"])
def test_a_run_is_not_written_over_its_collection(name, folder, tmp_path, refuse):
    (folder / "more.tsv").write_text("q0\tblue sky\n")
    os.symlink(folder / "corpus.jsonl", folder / "link")
    before = contents(tmp_path)
    command = ["retrieve", "--collection", folder, "--first_stage", "bm25", "--skip_missing"]
    command += ["--queries", folder / "more.tsv"]
    said = refuse(*command, "--output", folder / name)
    assert f"--output {folder / name}: this command reads it, and it would be overwritten: give another" in said
    assert contents(tmp_path) == before


def test_a_run_is_not_written_over_its_stop_list(folder, tmp_path, refuse):
    (tmp_path / "words.txt").write_text("the\n")
    before = contents(tmp_path)
    command = ["retrieve", "--collection", folder, "--first_stage", "bm25", "--skip_missing"]
    said = refuse(*command, "--stopwords", tmp_path / "words.txt", "--output", tmp_path / "words.txt")
    assert f"--output {tmp_path / 'words.txt'}: this command reads it" in said and contents(tmp_path) == before
    cli.main(list(map(str, [*command, "--stopwords", "lucene", "--output", tmp_path / "lucene"])))


@pytest.mark.parametrize("option", ["markdown", "latex", "html", "json"])
def test_a_comparison_is_not_written_over_what_is_compared(option, folder, tmp_path, refuse):
    run, qrels = folder / "run.trec", folder / "qrels" / "test.tsv"
    before = contents(tmp_path)
    common = ["compare", "--collection", folder, "--baselines", run, f"--{option}"]
    for output in (run, qrels, folder / "qrels" / ".." / "corpus.jsonl"):
        assert f"--{option} {output}: this command reads it" in refuse(*common, output)
    for output in (run, qrels):
        assert "reads it" in refuse("compare", "--qrels", qrels, "--baselines", f"a={run}", f"--{option}", output)
    other = "html" if option == "json" else "json"
    said = refuse(*common, tmp_path / "out", f"--{other}", tmp_path / "words" / ".." / "out")
    assert "is written there too, and it would be overwritten" in said
    assert "is a folder: give the name of a file" in refuse(*common, folder)
    assert contents(tmp_path) == before


def test_only_files_are_replaced(tmp_path, folder, refuse):
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path / "pipe", tmp_path / "link")
    os.symlink(tmp_path / "round", tmp_path / "round")
    for name in ("pipe", "link", "round"):
        said = f"{tmp_path / name}: is a device, a pipe or the like, which a file would replace"
        with pytest.raises(ValueError, match=re.escape(said)), atomic_open(tmp_path / name):
            pass
        command = ["retrieve", "--collection", folder, "--first_stage", "bm25", "--skip_missing", "--output"]
        assert said in refuse(*command, tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    with pytest.raises(ValueError, match="is a folder"), atomic_open(tmp_path):
        pass


@pytest.mark.parametrize("there", [False, True])
def test_a_link_stays_and_its_target_is_written(there, tmp_path):
    target, link = tmp_path / "far" / "run.trec", tmp_path / "run.trec"
    target.parent.mkdir()
    if there:
        target.write_text("before")
    os.symlink(Path("far") / "run.trec", link)
    with atomic_open(link) as file:
        file.write("after")
    assert link.is_symlink() and target.read_text() == "after" and not target.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"far", "run.trec"}
    assert [path.name for path in target.parent.iterdir()] == ["run.trec"]


def test_a_conversion_is_not_written_over_a_model(encoder, refuse, tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"")
    before = contents(encoder)
    said = refuse("convert", "--weights", tmp_path / "weights.pt", "--encoder", encoder, "--output", encoder)
    assert f"--output {encoder}: there is something already: give a new folder" in said
    assert contents(encoder) == before


@pytest.mark.parametrize("command", ["prepare", "explain", "gains", "demo", "maxp", "bert-qe"])
def test_a_folder_of_something_else_is_not_filled(command, folder, rows, model, encoder, tmp_path, refuse):
    before = contents(tmp_path)
    collection = ["--collection", folder, "--skip_missing"]
    argv = {
        "prepare": [*collection, "--selector", "lexical", "--first_stage", "bm25"],
        "explain": ["--rows", rows, "--model", model, "--query_ids", "q5"],
        "gains": [*collection, "--encoder", encoder, "--bi_encoder", encoder],
        "demo": ["--encoder", encoder, "--bi_encoder", encoder],
        "maxp": [*collection, "--run", folder / "run.trec"],
        "bert-qe": [*collection, "--run", folder / "run.trec"]
        + [word for number in (1, 2, 3) for word in (f"--phase{number}", encoder)],
    }
    said = refuse(command, *argv[command], "--output", folder)
    assert f"--output {folder}: not empty and not of this command (there is 'corpus.jsonl')" in said
    assert "is a file: give a folder" in refuse(command, *argv[command], "--output", folder / "run.trec")
    assert contents(tmp_path) == before


def test_the_passages_of_maxp_are_no_folder_for_its_rows(folder, tmp_path, refuse):
    command = ["maxp", "--collection", folder, "--skip_missing", "--run", folder / "run.trec", "--folds", "none"]
    cli.main(list(map(str, [*command, "--output", tmp_path / "out"])))
    before = contents(tmp_path)
    said = refuse(*command, "--output", tmp_path / "out" / "passages")
    assert (
        f"{tmp_path / 'out' / 'passages' / 'train'} is the folder of 'selection', not of 'rows': give another" in said
    )
    assert contents(tmp_path) == before


def test_the_folds_of_a_training_are_no_folders_for_bert_qe(folder, encoder, tmp_path, refuse):
    for name in ("fold-1", "fold-2"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "settings.json").write_text('{"step": "training", "counts": {}}')
    before = contents(tmp_path)
    phases = [word for number in (1, 2, 3) for word in (f"--phase{number}", encoder)]
    command = ["bert-qe", "--collection", folder, "--skip_missing", "--run", folder / "run.trec", *phases]
    said = refuse(*command, "--output", tmp_path / "out")
    assert re.search("--output .*out/fold-[12]: not empty and not of this command .there is 'settings.json'", said)
    assert contents(tmp_path) == before


def test_folds_are_checked_before_passages_are_chosen(folder, tmp_path, refuse):
    """The query that the run has nothing for is the only one that a fold tests."""
    parts = [["q9"], ["q0", "q1"], ["q2", "q3", "q4", "q5"]]
    (folder / "folds.json").write_text(json.dumps(parts))
    common = ["--collection", folder, "--skip_missing", "--run", folder / "run.trec"]
    for command in (["prepare", "--selector", "lexical"], ["maxp"]):
        said = refuse(*command, *common, "--output", tmp_path / "out")
        assert "folds of words: no query is left to validation on in fold 3" in said or "to test on in fold 1" in said
        assert not (tmp_path / "out").exists()


def test_an_explanation_of_other_queries_is_not_replaced(rows, model, tmp_path, refuse):
    command = ["explain", "--rows", rows, "--model", model, "--use_cpu", "--output", tmp_path / "why", "--query_ids"]
    for _ in range(2):
        cli.main(list(map(str, [*command, "q5"])))
    before = contents(tmp_path)
    assert "explanation.json: explains other queries (q5) and would be replaced" in refuse(*command, "q4")
    assert contents(tmp_path) == before and len(before) == 3


def test_an_explanation_of_another_model_is_not_replaced(rows, model, tmp_path, refuse):
    other = tiny.checkpoint(tmp_path / "other", num_prototypes=1)
    command = ["explain", "--rows", rows, "--use_cpu", "--output", tmp_path / "why", "--query_ids", "q5", "--model"]
    cli.main(list(map(str, [*command, model])))
    before = contents(tmp_path)
    assert "explanation.json: explains another model and would be replaced" in refuse(*command, other)
    assert contents(tmp_path) == before
    path = tmp_path / "why" / "explanation.json"
    found = json.loads(path.read_text())
    assert found[0].pop("model") and found[0]["query_id"] == "q5"
    path.write_text(json.dumps(found))  # as an earlier version wrote it, which did not say of which model it is
    cli.main(list(map(str, [*command, other])))
    assert json.loads(path.read_text())[0]["model"]


@pytest.mark.parametrize(("command", "name"), [("explain", "explanation.html"), ("stability", "stability.json")])
def test_a_result_of_something_else_is_not_replaced(command, name, rows, model, tmp_path, refuse):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    before = contents(tmp_path)
    argv = [command, "--rows", rows, "--model", model, "--use_cpu", "--query_ids", "q5", "--output", tmp_path / "out"]
    assert re.search(f"{name}: .*: give another --output", refuse(*argv)) and contents(tmp_path) == before
    (tmp_path / "out" / name).unlink()
    for _ in range(2):  # its own is replaced
        cli.main(list(map(str, argv)))


# --- models that are not there, or are something else


@pytest.mark.parametrize("command", ["eval", "rerank", "flops", "export", "explain"])
def test_a_model_that_is_not_there_is_named(command, rows, tmp_path, refuse):
    (tmp_path / "docs.jsonl").write_text('{"text": "blue sky"}\n')
    output = ["--output", tmp_path / "out"]
    argv = {
        "eval": ["--rows", rows, *output],
        "explain": ["--rows", rows, "--query_ids", "q5", *output],
        "rerank": ["--query", "sky", tmp_path / "docs.jsonl"],
        "flops": [],
        "export": output,
    }
    said = refuse(command, "--model", "nosuch", *argv[command])
    assert "nosuch: there is no such folder here, nor could it be had from the Hub (" in said
    assert not (tmp_path / "out").exists()


def test_a_selector_that_is_none(folder, model, tmp_path, refuse):
    docs = tmp_path / "docs.jsonl"
    docs.write_text('{"text": "blue sky"}\n')
    command = ["rerank", "--model", model, "--query", "sky", docs]
    assert "selector nosuch: there is no such folder here" in refuse(*command, "--selector", "nosuch")
    gone = tiny.checkpoint(tmp_path / "gone", selector="gone/encoder")
    said = refuse("rerank", "--model", gone, "--query", "sky", docs)
    assert "selector gone/encoder: there is no such folder here" in said and "choose lexical" in said
    said = refuse(*command, "--selector", model)
    assert f"selector '{model}' is a Co-BERT, which ranks whole lists: choose lexical" in said
    assert "trust_remote_code" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--selector", "MODEL"], "is a Co-BERT, which ranks whole lists"),
        (["--selector", "ENCODER", "--max_length", 3], "max_length 3: a query-passage pair has 3 special tokens"),
        (["--selector", "lexical", "--tokenizer", "ENCODER", "--max_length", 3], "max_length 3: a query-passage pair"),
    ],
)
def test_a_selector_is_checked_before_anything_is_written(options, message, folder, model, encoder, tmp_path, refuse):
    options = [{"MODEL": model, "ENCODER": encoder}.get(option, option) for option in options]
    command = ["prepare", "--collection", folder, "--skip_missing", "--first_stage", "bm25"]
    assert message in refuse(*command, *options, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- gains


@pytest.fixture(scope="module")
def bi_encoder(tmp_path_factory) -> Path:
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("models") / "bi-encoder", layers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bi_encoder", "ENCODER"], "this is a cross-encoder, which has no vectors of single passages"),
        (["--encoder", "nosuch"], "--encoder nosuch: give the folder or Hub id of a model"),
        (["--seeds", -1], "--seeds must be at least 0, got -1"),
        (["--epochs", "nan"], "--num_train_epochs nan trains nothing"),
        (["--select_by", "foo"], "unknown measure 'foo'"),
        (["--starting_weights", 1], "`starting_weights` are three finite numbers"),
        (["--learning_rate", "nan"], "--learning_rate must be from 0 to 1"),
        (["--neighbour_weight", "nan"], "`neighbour_weight` must be a finite number"),
        (["--folds", "none"], "--folds: by none there is no judged query in train"),
        (["--max_length", 3], "max_length 3: a query-passage pair has 3 special tokens"),
        (["--max_length", 4], "max_length 4: a query-passage pair has 3 special tokens"),
        (["--max_length", 999], "max_length"),
    ],
)
def test_gains_checks_all_before_anything_is_written(options, message, folder, encoder, bi_encoder, tmp_path, refuse):
    given = {"--encoder": encoder, "--bi_encoder": bi_encoder, "--max_length": 32, "--k": 8}
    given |= {options[0]: encoder if options[1] == "ENCODER" else options[1]}
    argv = [word for pair in given.items() for word in pair]
    common = ["gains", "--collection", folder, "--skip_missing", "--use_cpu", "--output", tmp_path / "out"]
    assert message in refuse(*common, *argv)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_steps", -2], "--max_steps must be at least -1, got -2"),
        (["--encoder", "nope"], "nope"),
        (["--bi_encoder", "ENCODER"], "this is a cross-encoder, which has no vectors of single passages"),
    ],
)
def test_the_demo_checks_all_before_anything_is_written(options, message, tmp_path, encoder, refuse):
    given = {"--encoder": tiny.bert_checkpoint(tmp_path / "encoder", layers=4, max_position_embeddings=128)}
    given |= {"--bi_encoder": tiny.bert_checkpoint(tmp_path / "bi", layers=1, max_position_embeddings=128)}
    given |= {options[0]: encoder if options[1] == "ENCODER" else options[1]}
    said = refuse("demo", "--output", tmp_path / "out", *[word for pair in given.items() for word in pair])
    assert message in said, said
    assert not (tmp_path / "out").exists()


# --- judgments of nothing


def test_runs_without_a_judged_query(folder, tmp_path, refuse, capsys):
    run, qrels, other = folder / "run.trec", folder / "qrels" / "test.tsv", tmp_path / "other.trec"
    other.write_text("".join(f"x{line}" for line in run.read_text().splitlines(keepends=True)))
    message = (
        f"{other}: not one of its 6 queries (such as 'xq0') is judged in {qrels} (which has queries such as 'q0')"
    )
    assert message in refuse("compare", "--qrels", qrels, "--baselines", other)
    assert message in refuse("compare", "--qrels", qrels, "--baselines", run, "--runs", f"new={other}")


def test_a_grade_that_no_scale_has(folder, tmp_path, refuse):
    (tmp_path / "qrels.txt").write_text("q0 0 d1 1\nq0 0 d2 999999999\n")
    common = ["--collection", folder, "--skip_missing", "--qrels", tmp_path / "qrels.txt"]
    said = refuse("retrieve", *common, "--first_stage", "bm25", "--evaluate", "--output", tmp_path / "run.trec")
    assert f"{tmp_path / 'qrels.txt'}:2: the grade must be an integer of at most 10000, found '999999999'" in said
    assert not (tmp_path / "run.trec").exists()


def test_judged_queries_without_text_name_their_file(folder, tmp_path, refuse):
    (tmp_path / "qrels.txt").write_text("q0 0 d1 1\nunknown 0 d2 1\n")
    common = ["--collection", folder, "--qrels", tmp_path / "qrels.txt", "--output", tmp_path / "run.trec"]
    said = refuse("retrieve", *common, "--first_stage", "bm25", "--evaluate")
    assert f"{tmp_path / 'qrels.txt'}: 1 judged queries have no text, such as 'unknown': correct them, or go" in said


# --- numbers and sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "1e308", "1e308"], "weights are from 0 to 2147483647"),
        (["--weights", "inf", "1"], "weights are from 0 to 2147483647"),
        (["--step", "1e-9"], "step must divide 1"),
        (["--step", "0.000001"], "--step 1e-06 with 2 sources would try 1000001 weights, and at most 100000 are"),
        (["--step", "5e-324"], "step must divide 1"),
    ],
)
def test_a_mixture_that_never_ends(options, message, rows, tmp_path, refuse):
    command = ["mix", "--rows", rows, "--sources", "first-stage", "selector", "--output", tmp_path / "out"]
    assert message in refuse(*command, *options)
    assert not (tmp_path / "out").exists()


def test_flops_of_a_bi_encoder_that_is_none(model, refuse):
    said = refuse("flops", "--bi_encoder", model)
    assert f"{model}: a BERT is needed, this is a 'cobert', without num_hidden_layers" in said
    assert "nosuch: there is no such folder here" in refuse("flops", "--bi_encoder", "nosuch")


# --- options that would have been ignored


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["flops", "--rows", "R", "--k", 5], "--rows brings its own counts: leave out --k"),
        (["flops", "--rows", "R", "--num_queries", 3], "--rows brings its own counts: leave out --num_queries"),
        (["flops", "--paper", "robust04", "--rows", "R"], "--paper and --rows are two workloads"),
        (["flops", "--paper", "robust04", "--k", 3], "--paper brings its own counts: leave out --k"),
        (["flops", "--first_edge", 99], "--first_edge does not change what is counted"),
        (["flops", "--prototypes", "none"], "--prototypes does not change what is counted"),
        (
            ["prepare", "--run", "R", "--first_stage", "dph", "--k1", 3, "--collection", "demo", "--selector"]
            + ["lexical", "--output", "out"],
            "--run R is the first stage, none is made: leave out --first_stage, --k1",
        ),
        (
            [
                "rows",
                "--selected",
                "S",
                "--collection",
                "demo",
                "--output",
                "out",
                "--folds",
                "none",
                "--fold_seed",
                7,
            ],
            "--folds none draws nothing: leave out --fold_seed",
        ),
        (
            ["mix", "--rows", "R", "--sources", "first-stage", "selector", "--output", "out", "--weights", 1, 1]
            + ["--step", 0.1],
            "--weights are fixed, and nothing is tuned: leave out --step",
        ),
    ],
)
def test_options_that_exclude_each_other(argv, message, tmp_path, monkeypatch, refuse):
    monkeypatch.chdir(tmp_path)
    assert message in refuse(*argv)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("turned", [False, True])
def test_documents_are_named_once(turned, model, tmp_path, capsys):
    (tmp_path / "docs.jsonl").write_text('{"text": "blue sky"}\n')
    named = ["--documents", "nosuch"]
    docs = [str(tmp_path / "docs.jsonl")]
    with pytest.raises(SystemExit) as ended:
        cli.main(["rerank", "--model", str(model), *(docs + named if turned else named + docs), "--query", "sky"])
    assert ended.value.code == 2
    assert " are given, and one file is ranked" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_a_model_is_no_model(name, model, tmp_path, refuse):
    (tmp_path / "docs.jsonl").write_text('{"text": "blue sky"}\n')
    said = refuse("rerank", "--model", model / name, "--query", "sky", tmp_path / "docs.jsonl")
    assert f"{model / name}: is a file: give the folder of a checkpoint" in said


def test_missing_weights_are_told_in_one_line(tmp_path):
    """By us alone: transformers' own tables would stand before it."""
    folder = tiny.checkpoint(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if name.startswith("scorer."))
    save_file({name: value for name, value in weights.items() if name != gone}, folder / "model.safetensors")
    (tmp_path / "docs.jsonl").write_text('{"text": "blue sky"}\n')
    done = command("rerank", "--model", folder, "--query", "sky", tmp_path / "docs.jsonl")
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert gone in done.stderr


# --- places that cannot be worked in


def command(*argv, **options) -> subprocess.CompletedProcess:
    python = [sys.executable, "-m", "modeling_cobert.cli", *map(str, argv)]
    return subprocess.run(python, capture_output=True, text=True, **options)


def test_a_working_folder_that_was_removed_is_told(folder, tmp_path):
    def leave() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    argv = ["retrieve", "--collection", folder, "--output", tmp_path / "run.trec"]
    done = command(*argv, preexec_fn=leave, env=environment)
    assert done.returncode == 1 and done.stderr == (
        "error: the working folder was removed: change into one that is there\n"
    )


@pytest.mark.parametrize("name", ["eval", "stability", "explain"])
def test_outputs_that_can_be_no_folders_are_told(name, rows, model, tmp_path, refuse):
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    os.symlink(tmp_path / "round", tmp_path / "round")
    before = {path.name for path in tmp_path.iterdir()}
    argv = [name, "--rows", rows, "--model", model, "--use_cpu", "--query_ids", "q5", "--output"]
    cure = "give another|choose another"
    for output in ("dangling", "dangling/below", "round", "round/below"):
        assert re.search(f"{tmp_path / output.split('/')[0]}.*({cure})", refuse(*argv, tmp_path / output))
    assert {path.name for path in tmp_path.iterdir()} == before


# --- files that are none


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", "nosuch: there is no such file: correct its name, or make it"),
        ("", "words: is a folder: give the name of a file"),
        ("run.trec/x", "run.trec/x: a part of this name is a file, not a folder: correct it"),
    ],
)
def test_inputs_that_are_no_files(name, message, folder, model, tmp_path, refuse):
    path = folder / name
    said = refuse("compare", "--collection", folder, "--baselines", folder / "run.trec", "--runs", path)
    assert said.endswith(message) and "Errno" not in said
    assert message in refuse("rerank", "--model", model, "--query", "sky", path)
    queries = ["retrieve", "--collection", folder, "--first_stage", "bm25", "--queries", path]
    assert message in refuse(*queries, "--output", tmp_path / "run.trec")
