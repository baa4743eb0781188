"""What a user got wrong: one line that names it and the cure, exit code 1, and nothing left behind."""

import errno
import json
import os
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import tiny
import tiny_collection
import torch
from safetensors import SafetensorError
from tiny_rows import make_rows

from modeling_cobert import cli
from modeling_cobert.collections.trec import read_qrels, write_qrels
from modeling_cobert.ranking.loading import _named
from modeling_cobert.steps.failures import told
from modeling_cobert.steps.files import atomic_open, full_disk_named
from modeling_cobert.steps.folders import check_folder, claim_folder, claims_end, write_settings

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_collection.make(tmp_path_factory.mktemp("collection") / "words")


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    return make_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("models") / "encoder", layers=4, labels=2)


def training(rows, encoder, output, *more) -> list[str]:
    sizes = ["--calibrator_layers", 1, "--scorer_layers", 2, "--max_length", 32, "--num_prototypes", 2]
    sizes += ["--group_size", 5, "--group_overlap", 1, "--num_train_epochs", 1, "--use_cpu"]
    return ["train", "--rows", rows, "--encoder", encoder, "--output_dir", output, *sizes, *more]


# --- judgments that are of something else


@pytest.fixture(params=["ids", "grades"])
def useless(request, folder, tmp_path) -> tuple[Path, str]:
    """Judgments of documents that are called otherwise, or without a relevant one; and what is said of them."""
    path = tmp_path / "qrels.txt"
    lines = (folder / "qrels" / "test.tsv").read_text().splitlines()
    judged = [line.split("\t") for line in lines]
    if request.param == "ids":
        path.write_text("".join(f"{q} 0 {d[1:]} {g}\n" for q, d, g in judged))
        return path, f"{path}: not one of the judged documents (such as '{judged[0][1][1:]}') is in "
    path.write_text("".join(f"{q} 0 {d} 0\n" for q, d, _ in judged))
    return path, f"{path}: not one of its {len(judged)} grades is above 0"


def test_useless_judgments_of_a_collection(useless, folder, tmp_path, refuse):
    qrels, message = useless
    common = ["--collection", folder, "--qrels", qrels, "--skip_missing"]
    output = tmp_path / "out"
    first = ["--first_stage", "bm25", "--selector", "lexical"]
    assert message in refuse("prepare", *common, *first, "--output", output)
    assert message in refuse("retrieve", *common, "--evaluate", "--output", output / "run.trec")
    run = ["--run", folder / "run.trec", "--output", output]
    assert message in refuse("maxp", *common, *run)
    model = tiny.checkpoint(tmp_path / "model")
    assert message in refuse("eval", *common, *run, "--model", model, "--use_cpu")
    said = refuse("compare", "--qrels", qrels, "--baselines", folder / "run.trec")
    assert message in said and ("grades" in message or "such as 'd0'" in said)
    assert not output.exists()


def test_single_judgments_of_unknown_documents_stay(folder, tmp_path, capsys):
    path = tmp_path / "qrels.txt"
    path.write_text("q0 0 nowhere 1\nq1 0 d3 0\nq1 0 d4 1\n")
    cli.main(["compare", "--qrels", str(path), "--baselines", str(folder / "run.trec")])
    assert "nDCG@20" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["ids", "grades"])
def test_useless_judgments_of_rows(wrong, encoder, tmp_path, refuse):
    rows = make_rows(tmp_path / "rows")
    qrels = read_qrels(rows / "qrels.trec")
    changed = {
        q: {(d if wrong == "grades" else f"x{d}"): (0 if wrong == "grades" else g) for d, g in grades.items()}
        for q, grades in qrels.items()
    }
    write_qrels(rows / "qrels.trec", changed)
    message = "grades is above 0" if wrong == "grades" else "(such as 'xq0-d0') is in"
    said = refuse(*training(rows, encoder, tmp_path / "out"))
    assert said.startswith(f"error: {rows / 'qrels.trec'}: not one of") and message in said
    assert not (tmp_path / "out").exists()


# --- numbers that would not do what they say


def test_max_length_beyond_the_encoder(rows, folder, encoder, tmp_path, refuse):
    output = tmp_path / "out"
    common = ["--collection", folder, "--skip_missing", "--output", output, "--max_length", 9999]
    for more in (["--selector", encoder], ["--selector", "lexical", "--tokenizer", encoder]):
        message = f"--max_length 9999: {encoder} reads at most 64 tokens"
        assert message in refuse("select", *common, *more, "--run", folder / "run.trec")
        assert message in refuse("prepare", *common, *more, "--first_stage", "bm25")
    model = tiny.checkpoint(tmp_path / "model")
    command = ["train", "--rows", rows, "--output_dir", output, "--use_cpu", "--max_length", 9999]
    for start in (["--encoder", encoder], ["--checkpoint", model]):
        assert "the encoder's 64 positions, got 9999" in refuse(*command, *start)
    assert not output.exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("num_train_epochs", 0, "--num_train_epochs 0 trains nothing: give a number above 0, or --max_steps"),
        ("num_train_epochs", -2, "--num_train_epochs -2 trains nothing"),
        ("num_train_epochs", "nan", "--num_train_epochs nan trains nothing"),
        ("per_device_train_batch_size", 0, "--per_device_train_batch_size must be at least 1, got 0"),
        ("gradient_accumulation_steps", 0, "--gradient_accumulation_steps must be at least 1, got 0"),
        ("learning_rate", -0.1, "--learning_rate must be from 0 to 1, got -0.1"),
        ("learning_rate", 1e30, "--learning_rate must be from 0 to 1, got 1e+30"),
        ("max_steps", 0, "--max_steps 0 trains nothing: give a number above 0, or leave it out"),
    ],
)
def test_numbers_that_train_nothing(rows, encoder, tmp_path, refuse, option, value, message):
    assert message in refuse(*training(rows, encoder, tmp_path / "out", f"--{option}={value}"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label_smoothing_factor", 0.1], "--label_smoothing_factor is for classes"),
        (["--report_to", "clearml"], "--report_to clearml: not installed: pip install clearml, or leave it out"),
        (["--do_train", "False"], "--do_train False: this command trains; cobert eval measures a model"),
        (["--variant", "neither", "--scorer", "x"], "--variant neither has no scorer: leave out --scorer, or"),
        (["--variant", "scorer", "--calibrator", "x"], "--variant scorer has no calibrator: leave out --calibrator"),
        (["--vectors_dir", "vectors"], "--vectors_dir is where --freeze_encoder and --content keep vectors: leave it"),
    ],
)
def test_options_that_nothing_reads(rows, encoder, tmp_path, refuse, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert message in refuse(*training(rows, encoder, tmp_path / "out", *options))
    assert not (tmp_path / "out").exists() and not (tmp_path / "vectors").exists()


def test_vectors_have_a_folder_of_their_own(rows, encoder, tmp_path, refuse):
    for folder in (rows, tmp_path / "out"):
        command = training(rows, encoder, tmp_path / "out", "--freeze_encoder", "--vectors_dir", folder)
        assert f"--vectors_dir {folder}: is the folder of another step, or of this one" in refuse(*command)
    assert not (tmp_path / "out").exists()


def test_rows_that_nothing_can_be_trained_on(encoder, tmp_path, refuse):
    path = make_rows(tmp_path / "rows") / "settings.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"splits": ["test"]}))
    for more in ([], ["--fold", 1], ["--fold", "all"]):
        said = refuse(*training(tmp_path / "rows", encoder, tmp_path / "out", *more))
        assert "neither folds nor a split 'train' (but test), so there is nothing to train on: make rows with" in said


# --- a refused command leaves nothing behind, and the corrected one works


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--scorer_layers", 9], "the scorer wants the encoder's first 9 layers"),
        (["--feedback_weight", 1], "`feedback_weight` needs `starting_weights`"),
        (["--metric_for_best_model", "nonsense"], "unknown measure 'nonsense'"),
        (["--calibrator", "nowhere"], "--calibrator nowhere: give the folder or Hub id of a model"),
        (["--group_overlap", 5], "got size 5 and overlap 5"),
        (["--resume_from_checkpoint", "nowhere"], "nowhere"),
    ],
)
def test_a_refused_training_leaves_nothing(rows, encoder, tmp_path, refuse, wrong, message):
    assert message in refuse(*training(rows, encoder, tmp_path / "deep" / "out", *wrong))
    assert not (tmp_path / "deep").exists()


def test_after_a_refusal_the_corrected_command_works(rows, encoder, tmp_path, refuse, capsys):
    refuse(*training(rows, encoder, tmp_path / "out", "--scorer_layers", 9))
    cli.main(list(map(str, training(rows, encoder, tmp_path / "out"))))
    assert (tmp_path / "out" / "results.json").exists() and not (tmp_path / "out" / ".lock").exists()
    said = refuse(*training(rows, encoder, tmp_path / "out", "--learning_rate", 1e-5))
    assert said.split("begun with other settings: ")[1].startswith("training.learning_rate is 3e-06, now 1e-05. Give")


def test_a_checkpoint_of_something_else(rows, encoder, tmp_path, refuse):
    command = ["train", "--rows", rows, "--output_dir", tmp_path / "out", "--use_cpu", "--checkpoint"]
    assert "a Co-BERT is needed, this is a 'bert': name it as --encoder" in refuse(*command, encoder)
    assert "--checkpoint nowhere: give the folder or Hub id" in refuse(*command, "nowhere")
    broken = tiny.checkpoint(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\xff" * 100)
    assert str(broken) in refuse(*command, broken)
    config = json.loads((broken / "config.json").read_text())
    tiny.checkpoint(broken)
    config["encoder_config"]["hidden_size"] = 44
    (broken / "config.json").write_text(json.dumps(config))
    assert "bug" not in refuse(*command, broken)
    (broken / "config.json").write_text("{")
    assert str(broken) in refuse(*command, broken)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--selector", "lexicall"], "--selector lexicall: give lexical, first-stage, or the folder or Hub id"),
        (
            ["--selector", "lexical", "--folds", "rondom"],
            "--folds rondom: no such file: give a JSON file of folds, or one of auto, none, random, round-robin",
        ),
    ],
)
def test_choices_are_named(folder, tmp_path, refuse, more, message):
    common = ["--collection", folder, "--skip_missing", "--output", tmp_path / "out", "--first_stage", "bm25"]
    assert message in refuse("prepare", *common, *more)
    assert not (tmp_path / "out").exists()


def test_a_tag_with_a_blank(folder, tmp_path, refuse):
    message = "--tag must be non-empty and without white space, got 'a b'"
    common = ["--collection", folder, "--output", tmp_path / "out", "--tag", "a b"]
    assert message in refuse("retrieve", *common)
    assert message in refuse("eval", *common, "--run", folder / "run.trec", "--model", "none")


def test_flops_of_a_wrong_folder(encoder, tmp_path, refuse):
    assert "settings.json: not there" in refuse("flops", "--rows", encoder)
    (tmp_path / "settings.json").write_text('{"step": "rows", "format": 1, "counts": {}, "splits": []}')
    assert "bug" not in refuse("flops", "--rows", tmp_path)


def test_damaged_rows_are_named(encoder, tmp_path, refuse):
    rows = make_rows(tmp_path / "rows")
    (path,) = (rows / "data").glob("train-*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:600] + b"\xff" * 300 + whole[900:])  # where the footer does not tell
    assert f"{rows}: one of its parquet files is damaged" in refuse(*training(rows, encoder, tmp_path / "out"))
    path.write_bytes(whole[:-9])
    assert f"{path}: damaged" in refuse(*training(rows, encoder, tmp_path / "out"))
    path.unlink()
    assert str(path) in refuse(*training(rows, encoder, tmp_path / "out"))


# --- two processes in one folder

HOLDER = """
import sys, time
from modeling_cobert.steps.folders import claim_folder
claim_folder(sys.argv[1], {"step": "made up"})
print("claimed", flush=True)
time.sleep(600)
"""


def test_a_folder_is_one_processs_until_that_ends(tmp_path):
    folder, settings = tmp_path / "out", {"step": "made up"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout.readline() == "claimed\n"
            told = re.escape(f"{folder}: process {first.pid} on {socket.gethostname()} works in it")
            for attempt in (claim_folder, check_folder):
                with pytest.raises(ValueError, match=told):
                    attempt(folder, settings)
        finally:
            first.kill()
    with claims_end():  # killed, it has let go; its lock file is still there
        assert (folder / ".lock").exists() and check_folder(folder, settings) is None
        assert claim_folder(folder, settings) is None and claim_folder(folder, settings) is None
        assert (folder / ".lock").exists()
    assert [path.name for path in folder.iterdir()] == ["settings.json"]
    with claims_end():
        claim_folder(folder, settings)
        write_settings(folder, settings, {"all": 1})
        assert not (folder / ".lock").exists()
    assert claim_folder(folder, settings) == settings | {"counts": {"all": 1}}
    assert [path.name for path in folder.iterdir()] == ["settings.json"]


def test_the_main_process_locks_for_all(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with claims_end():
        claim_folder(tmp_path / "out", {"step": "made up"})
        assert not (tmp_path / "out" / ".lock").exists()


def test_a_claim_ends_with_its_step(tmp_path):
    with pytest.raises(KeyError), claims_end():
        claim_folder(tmp_path / "a" / "b", {"step": "made up"})
        (tmp_path / "a" / "b" / "shards").mkdir()
        raise KeyError
    assert not (tmp_path / "a").exists()
    with pytest.raises(KeyError), claims_end():
        claim_folder(tmp_path / "a" / "b", {"step": "made up"})
        (tmp_path / "a" / "b" / "part").write_text("work")
        raise KeyError
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"settings.json", "part"}


# --- errors of the system and of libraries


def test_a_full_disk_names_its_file(tmp_path):
    path = tmp_path / "run.trec"
    with pytest.raises(OSError, match="No space left on device: '.*run.trec'") as raised, atomic_open(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert told(raised.value).endswith("run.trec': free some space, and the same command goes on")
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        said = f"{os.strerror(number)}: '{tmp_path}'"
        for raised_by in (SafetensorError(f"I/O error: so it is (os error {number})"), OSError(number, "full")):
            with pytest.raises(OSError, match=said) as raised, full_disk_named(tmp_path):
                raise raised_by
            assert told(raised.value).endswith("and the same command goes on")
    with pytest.raises(OSError, match="run.trec"), full_disk_named(tmp_path):
        raise OSError(errno.ENOSPC, "full", str(path))
    for torchs in ("[enforce fail at inline_container.cc:672] . unexpected pos 5", "basic_ios::clear: iostream error"):
        said = f"^{tmp_path}: a checkpoint cannot be written there"
        with pytest.raises(OSError, match=said), full_disk_named(tmp_path):
            raise RuntimeError(torchs)
    with pytest.raises(KeyError), full_disk_named(tmp_path):
        raise KeyError


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("bad header"),
        pa.ArrowKeyError("bad header"),
        pickle.UnpicklingError("bad header"),
        FloatingPointError("bad header"),
    ],
)
def test_errors_of_libraries_are_no_defects(error):
    assert told(error) == "bad header"


def test_memory():
    assert told(MemoryError()) == "out of memory: take smaller batches or groups (MemoryError)"


def test_too_little_memory_is_no_damage():
    with pytest.raises(MemoryError, match="^none$"), _named("model", "damaged"):
        raise MemoryError("none")
    with pytest.raises(MemoryError, match="while loading model: .*can't allocate memory") as raised:
        with _named("model", "damaged"):
            torch.empty(2**56, dtype=torch.uint8)
    assert told(raised.value).startswith("out of memory: ")
    with pytest.raises(ValueError, match="model: damaged"), _named("model", "damaged"):
        raise RuntimeError("something else")


# --- numbers that no list, and no library, can count to


BEYOND = str(10**30)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["prepare", "--selector", "lexical", "--k", BEYOND], "--k must be at most 2147483647"),
        (["prepare", "--selector", "lexical", "--shard_queries", "0"], "--shard_queries must be at least 1, got 0"),
        (["prepare", "--selector", "lexical", "--max_length", "0"], "--max_length must be at least 1, got 0"),
        (["prepare", "--selector", "lexical", "--k1", "inf"], "--k1 must be at most 2147483647, got inf"),
        (["prepare", "--selector", "lexical", "--beta", "nan"], "--beta must be at least 0, got nan"),
    ],
)
def test_numbers_of_a_preparation(argv, message, folder, tmp_path, refuse):
    """Before anything is retrieved."""
    assert message in refuse(*argv, "--collection", folder, "--skip_missing", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_numbers_of_a_training(rows, encoder, tmp_path, refuse):
    said = refuse(*training(rows, encoder, tmp_path / "out", "--num_prototypes", BEYOND))
    assert f"--num_prototypes must be at most 10000, got {BEYOND}" in said
    said = refuse(*training(rows, encoder, tmp_path / "out", "--max_steps", 2, "--num_train_epochs", "inf"))
    assert "--num_train_epochs inf" in said
    for option, value, message in (
        ("max_steps", BEYOND, "--max_steps must be at most 2147483647"),
        ("warmup_steps", "inf", "--warmup_steps must be a finite number, got inf"),
        ("logging_steps", "-inf", "--logging_steps must be a finite number, got -inf"),
        ("metric_for_best_model", "", "--metric_for_best_model is empty: name a measure"),
    ):
        assert message in refuse(*training(rows, encoder, tmp_path / "out", f"--{option}={value}"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--k", BEYOND], "--k must be at most 2147483647"),
        (["--measures", f"nDCG@{BEYOND}"], "cutoff must be an integer of at least 1 and at most 2147483647"),
        (["--samples", "0"], "--samples must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--split", "test"], "--split test: splits are those of a --collection"),
    ],
)
def test_numbers_of_a_comparison(more, message, folder, tmp_path, refuse):
    (tmp_path / "qrels.txt").write_text("q0 0 d3 1\n")
    command = ["compare", "--qrels", tmp_path / "qrels.txt", "--baselines", folder / "run.trec"]
    assert message in refuse(*command, *more)


def test_more_shuffles_than_end(rows, tmp_path, refuse):
    command = ["stability", "--model", tiny.checkpoint(tmp_path / "model"), "--rows", rows, "--seeds", BEYOND]
    assert "--seeds must be at most 100000" in refuse(*command, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_documents_than_are_counted(refuse):
    assert f"at most 100000000 documents, got {BEYOND}" in refuse("flops", "--k", BEYOND)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--k", 3], "--k goes with --collection: rows hold their own"),
        (["--top", -1], "--top must be at least 1, got -1"),
        (["--attended", -1], "--attended must be at least 0, got -1"),
        (["--fold", 0], "--fold must be at least 1, got 0"),
    ],
)
def test_numbers_of_an_explanation(more, message, rows, tmp_path, refuse):
    """Each would have been ignored, or have left out the last document."""
    model = tiny.checkpoint(tmp_path / "model")
    command = ["explain", "--model", model, "--rows", rows, "--query_ids", "q5", "--output", tmp_path / "out"]
    assert message in refuse(*command, *more)
    assert not (tmp_path / "out").exists()
