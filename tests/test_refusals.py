"""What a user got wrong: one line that names it and the cure, exit code 1, and nothing left behind."""

import json
from pathlib import Path

import pytest
import tiny
import tiny_collection
from tiny_rows import make_rows

from modeling_cobert import cli
from modeling_cobert.collections.trec import read_qrels, write_qrels


@pytest.fixture
def refuse(capsys):
    """Runs a command that must end with one line and exit code 1, and gives that line."""

    def run(*argv) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(map(str, argv)))
        err = capsys.readouterr().err
        assert ended.value.code == 1, err
        lines = [line for line in err.splitlines() if not line.startswith(("WARNING", "INFO"))]
        assert len(lines) == 1 and lines[0].startswith("error: "), err
        return lines[0]

    return run


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
        ("learning_rate", -0.1, "--learning_rate must be a finite number that is not negative, got -0.1"),
    ],
)
def test_numbers_that_train_nothing(rows, encoder, tmp_path, refuse, option, value, message):
    assert message in refuse(*training(rows, encoder, tmp_path / "out", f"--{option}={value}"))
    assert not (tmp_path / "out").exists()
