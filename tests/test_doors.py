"""What a command is given at its door: outputs that are no files, inputs that are none, models that are not there."""

import os
import re
from pathlib import Path

import pytest
import tiny
import tiny_collection
from tiny_rows import make_rows

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
